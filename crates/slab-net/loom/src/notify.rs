//! Of tokio's `Notify` what event counts use, as its documentation has it. Two threads that use it are ordered
//! no more than they are there: by what is done under its mutex.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use loom::sync::Mutex;

#[derive(Debug, Default)]
pub struct Notify {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// A notification that met nobody.
    stored: bool,
    next: usize,
    /// The first has waited for the longest.
    waiting: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    number: usize,
    waker: Option<Waker>,
    told: bool,
}

impl List {
    fn tell_one(&mut self) -> Option<Waker> {
        let Some(one) = self.waiting.iter_mut().find(|one| !one.told) else {
            self.stored = true;
            return None;
        };
        one.told = true;
        one.waker.take()
    }

    fn position(&self, number: usize) -> usize {
        let mut waiting = self.waiting.iter();
        let at = waiting.position(|one| one.number == number);
        at.expect("it stays until it is told, or gone")
    }
}

impl Notify {
    pub fn notified(&self) -> Notified<'_> {
        Notified {
            notify: self,
            state: State::New,
        }
    }

    pub fn notify_one(&self) {
        let waker = self.list.lock().unwrap().tell_one();
        waker.into_iter().for_each(Waker::wake);
    }
}

#[derive(Debug)]
pub struct Notified<'a> {
    notify: &'a Notify,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Waits(usize),
    Done,
}

impl Notified<'_> {
    pub fn enable(self: Pin<&mut Self>) -> bool {
        self.get_mut().look(None).is_ready()
    }

    fn look(&mut self, waker: Option<&Waker>) -> Poll<()> {
        let mut list = self.notify.list.lock().unwrap();
        match self.state {
            State::New => {
                if !core::mem::take(&mut list.stored) {
                    let number = list.next;
                    list.next += 1;
                    list.waiting.push(Waiter {
                        number,
                        waker: waker.cloned(),
                        told: false,
                    });
                    self.state = State::Waits(number);
                    return Poll::Pending;
                }
            }
            State::Waits(number) => {
                let at = list.position(number);
                if !list.waiting[at].told {
                    list.waiting[at].waker = waker.cloned();
                    return Poll::Pending;
                }
                list.waiting.remove(at);
            }
            State::Done => {}
        }
        self.state = State::Done;
        Poll::Ready(())
    }
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.get_mut().look(Some(cx.waker()))
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let State::Waits(number) = self.state else {
            return;
        };
        let mut list = self.notify.list.lock().unwrap();
        let at = list.position(number);
        let told = list.waiting.remove(at).told;
        let next = told.then(|| list.tell_one());
        drop(list);
        next.flatten().into_iter().for_each(Waker::wake);
    }
}
