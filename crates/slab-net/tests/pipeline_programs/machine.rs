//! Runs a program step by step on real queues and on their models, on one thread.

use crate::model::{Counts, Item, Offered, PANICS, Policy, Queue};
use crate::programs::Random;
use crate::waiting::{Kind, Outcome, Output, Owned, Waiting};
use slab_net::PacketPool;
use slab_net::pipeline::{
    Overflow, Priority, QueueMonitor, QueueReceiver, QueueSendError, QueueSender, flow_queues,
    priority_queue, queue,
};
use slab_net::udp::PacketBatch;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use tokio::task::coop::has_budget_remaining;

const SOURCES: u16 = 8;
/// The most futures that wait at a time.
const MOST_WAITING: usize = 12;

/// How often the programs reached what they are for.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    waited: u64,
    waited_in_vain: u64,
    out_of_budget: u64,
    cancelled_when_woken: u64,
    panicked: u64,
    partly_sent: u64,
    given_back: u64,
    ended: u64,
    closed: u64,
}

impl Reached {
    pub(crate) fn all(&self) -> [(&'static str, u64); 9] {
        [
            ("waited", self.waited),
            ("polled without a notification", self.waited_in_vain),
            ("out of budget", self.out_of_budget),
            ("cancelled when woken", self.cancelled_when_woken),
            ("a priority panicked", self.panicked),
            ("partly sent", self.partly_sent),
            ("given back", self.given_back),
            ("the last sender gone", self.ended),
            ("the last receiver gone", self.closed),
        ]
    }
}

pub(crate) struct Machine {
    random: Random,
    reached: Reached,
    pool: PacketPool,
    queues: Vec<Queue>,
    monitors: Vec<QueueMonitor>,
    /// The queue of each source.
    queue_of: Vec<usize>,
    is_flow: bool,
    senders: Vec<Rc<QueueSender>>,
    receivers: Vec<(usize, Rc<QueueReceiver>)>,
    waiting: Vec<Waiting>,
    given_back: Vec<(QueueSendError, usize, Item)>,
    held: Vec<PacketBatch>,
    next_number: u32,
}

fn item_of(batch: &PacketBatch) -> Item {
    let contents = batch.contents();
    let (number, rest) = contents.split_first_chunk().expect("cut");
    Item {
        number: u32::from_le_bytes(*number),
        priority: rest[0],
        datagrams: batch.datagrams() as u64,
        bytes: contents.len() as u64,
    }
}

fn priority_of(batch: &PacketBatch) -> Priority {
    match item_of(batch).priority {
        0 => Priority::Low,
        1 => Priority::Normal,
        2 => Priority::High,
        3 => Priority::Critical,
        // Prints nothing, unlike `panic!`.
        _ => std::panic::resume_unwind(Box::new("on purpose")),
    }
}

/// Until the next yield.
fn use_up_budget() {
    let mut cx = Context::from_waker(Waker::noop());
    while has_budget_remaining() {
        let _ = pin!(tokio::task::consume_budget()).poll(&mut cx);
    }
}

fn source(number: u16) -> SocketAddr {
    ([192, 0, 2, 1], 1000 + number).into()
}

impl Machine {
    pub(crate) fn new(seed: u64, reached: Reached) -> Self {
        let mut random = Random::new(seed);
        let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
        let capacity = random.pick(&[1, 1, 2, 3, 5]);
        let room = NonZeroUsize::new(capacity).unwrap();
        let policy = random.pick(&[
            Policy::Fifo(Overflow::Wait),
            Policy::Fifo(Overflow::Wait),
            Policy::Fifo(Overflow::DropNewest),
            Policy::Fifo(Overflow::DropOldest),
            Policy::Priority,
        ]);
        let mut is_flow = false;
        let (sender, receivers) = match policy {
            Policy::Fifo(overflow) if random.chance(400) => {
                is_flow = true;
                let consumers = NonZeroUsize::new(random.pick(&[1, 2, 3])).unwrap();
                flow_queues(consumers, room, overflow)
            }
            Policy::Fifo(overflow) => {
                let (sender, receiver) = queue(room, overflow);
                (sender, vec![receiver])
            }
            Policy::Priority => {
                let (sender, receiver) = priority_queue(room, priority_of);
                (sender, vec![receiver])
            }
        };
        let mut machine = Self {
            random,
            reached,
            pool,
            queues: vec![Queue::new(policy, capacity); receivers.len()],
            monitors: receivers.iter().map(QueueReceiver::monitor).collect(),
            queue_of: Vec::new(),
            is_flow,
            senders: vec![Rc::new(sender)],
            receivers: receivers.into_iter().map(Rc::new).enumerate().collect(),
            waiting: Vec::new(),
            given_back: Vec::new(),
            held: Vec::new(),
            next_number: 0,
        };
        for number in 0..SOURCES {
            machine.learn_queue_of(number);
        }
        machine
    }

    /// Sources are hashed with a random key. So programs with flows differ from run to run in which sources
    /// share a queue, and in nothing else if there is one queue.
    fn learn_queue_of(&mut self, number: u16) {
        let probe = PacketBatch::try_copy_from_slice(&self.pool, b"    \x01", 0, source(number));
        self.senders[0].try_send(probe.unwrap()).unwrap();
        let got = |(at, receiver): &(usize, Rc<QueueReceiver>)| Some((*at, receiver.try_recv()?));
        let (at, batch) = self.receivers.iter().find_map(got).expect("it was sent");
        let queue = &mut self.queues[at];
        assert_eq!(queue.offer(item_of(&batch)), Offered::Done);
        assert_eq!(queue.pop(), Some(item_of(&batch)));
        self.queue_of.push(at);
    }

    fn batch(&mut self) -> (PacketBatch, usize, Item) {
        let mut payload = self.next_number.to_le_bytes().to_vec();
        self.next_number += 1;
        let panics = self.random.chance(40);
        let priority = self.random.below(4) as u8;
        payload.push(if panics { PANICS } else { priority });
        payload.resize(5 + self.random.below(20) as usize, 0);
        let from = self.random.below(SOURCES.into()) as u16;
        let segment_size = self.random.below(30) as usize;
        let batch =
            PacketBatch::try_copy_from_slice(&self.pool, &payload, segment_size, source(from));
        let batch = batch.expect("memory for a few batches");
        let item = item_of(&batch);
        (batch, self.queue_of[usize::from(from)], item)
    }

    /// Runs one step, and compares everything that can be seen.
    pub(crate) async fn step(&mut self) {
        match self.random.below(100) {
            0..=15 => self.start_send(),
            16..=22 => self.start_send_many(),
            23..=30 => self.try_send(),
            31..=33 => self.send_unpolled(),
            34..=49 => self.start_recv(),
            50..=57 => self.try_recv(),
            58..=59 => self.start_closed(),
            60..=75 => self.poll_some(),
            76..=81 => self.cancel_one(),
            82..=83 => self.clone_handle(),
            84..=86 => self.drop_handle(false),
            87..=88 => self.settle_given_back(),
            89 => use_up_budget(),
            _ => self.quiesce().await,
        }
        while self.waiting.len() > MOST_WAITING {
            self.cancel_one();
        }
        self.held.truncate(3);
        self.check();
    }

    /// Ends everything, in random order.
    pub(crate) fn finish(mut self) -> Reached {
        while !self.waiting.is_empty() {
            match self.random.chance(500) {
                true => self.cancel_one(),
                false => self.drop_handle(true),
            }
            self.check();
        }
        while !(self.senders.is_empty() && self.receivers.is_empty()) {
            self.drop_handle(true);
            self.check();
        }
        while !self.given_back.is_empty() {
            self.settle_given_back();
            self.check();
        }
        self.held.clear();
        self.check();
        assert_eq!(self.pool.slab().stats().in_use(), 0);
        self.reached
    }

    fn check(&self) {
        for (monitor, queue) in self.monitors.iter().zip(&self.queues) {
            assert_eq!(Counts::of(&monitor.stats()), queue.counts());
        }
        if let Some(sender) = self.senders.first() {
            let is_closed = self.queues.iter().all(|queue| queue.receivers == 0);
            assert_eq!(sender.is_closed(), is_closed);
        }
        let queued: usize = self.queues.iter().map(Queue::len).sum();
        let waiting = self.waiting.iter().map(|one| one.kind.batches());
        let elsewhere = self.given_back.len() + self.held.len();
        assert_eq!(
            self.pool.slab().stats().in_use() as usize,
            queued + waiting.sum::<usize>() + elsewhere
        );
    }

    fn pick<T>(&mut self, of: impl Fn(&Self) -> &[T]) -> Option<usize> {
        let count = of(self).len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    /// Returns a handle for a future: one that others use too, or a clone of its own.
    fn sender(&mut self) -> Option<(Rc<QueueSender>, Owned)> {
        let at = self.pick(|all| &all.senders)?;
        let sender = &self.senders[at];
        if self.random.chance(700) {
            return Some((Rc::clone(sender), Owned::Nothing));
        }
        let another = Rc::new(QueueSender::clone(sender));
        self.queues.iter_mut().for_each(|queue| queue.senders += 1);
        Some((another, Owned::Sender))
    }

    fn receiver(&mut self) -> Option<(usize, Rc<QueueReceiver>, Owned)> {
        let at = self.pick(|all| &all.receivers)?;
        let (queue, receiver) = &self.receivers[at];
        if self.random.chance(700) {
            return Some((*queue, Rc::clone(receiver), Owned::Nothing));
        }
        self.queues[*queue].receivers += 1;
        let another = Rc::new(QueueReceiver::clone(receiver));
        Some((*queue, another, Owned::Receiver(*queue)))
    }

    fn start(&mut self, kind: Kind, owned: Owned, future: impl Future<Output = Output> + 'static) {
        self.waiting.push(Waiting {
            future: Box::pin(future),
            kind,
            owned,
            has_looked: false,
            woken: Arc::default(),
        });
        self.poll(self.waiting.len() - 1);
    }

    fn start_send(&mut self) {
        let Some((sender, owned)) = self.sender() else {
            return;
        };
        let (batch, queue, item) = self.batch();
        let future = async move { Output::Sent(sender.send(batch).await.is_ok()) };
        self.start(Kind::Send(queue, item), owned, future);
    }

    fn many(&mut self) -> (Vec<PacketBatch>, VecDeque<(usize, Item)>) {
        let count = self.random.below(6);
        let all = (0..count).map(|_| self.batch());
        all.map(|(batch, queue, item)| (batch, (queue, item)))
            .unzip()
    }

    fn start_send_many(&mut self) {
        let Some((sender, owned)) = self.sender() else {
            return;
        };
        let (batches, rest) = self.many();
        let kind = Kind::SendMany {
            rest,
            is_flow: self.is_flow,
            ok: true,
        };
        let future = async move { Output::Sent(sender.send_many(batches).await.is_ok()) };
        self.start(kind, owned, future);
    }

    fn start_recv(&mut self) {
        let Some((queue, receiver, owned)) = self.receiver() else {
            return;
        };
        if self.random.chance(500) {
            let future = async move { Output::Got(receiver.recv().await.into_iter().collect()) };
            return self.start(Kind::Recv(queue), owned, future);
        }
        let limit = self.random.below(4) as usize;
        let future = async move {
            let mut out = Vec::new();
            let count = receiver.recv_many(&mut out, limit).await;
            assert_eq!(count, out.len());
            Output::Got(out)
        };
        self.start(Kind::RecvMany(queue, limit), owned, future);
    }

    fn start_closed(&mut self) {
        let Some((sender, owned)) = self.sender() else {
            return;
        };
        let future = async move {
            sender.closed().await;
            Output::Closed
        };
        self.start(Kind::Closed, owned, future);
    }

    fn try_send(&mut self) {
        let Some(at) = self.pick(|all| &all.senders) else {
            return;
        };
        let (batch, queue, item) = self.batch();
        self.try_send_batch(at, batch, queue, item);
    }

    fn try_send_batch(&mut self, sender: usize, batch: PacketBatch, queue: usize, item: Item) {
        let sender = Rc::clone(&self.senders[sender]);
        #[expect(clippy::result_large_err, reason = "as the method has it")]
        let sent = catch_unwind(AssertUnwindSafe(|| sender.try_send(batch)));
        let expected = self.queues[queue].offer(item);
        match sent {
            Err(_) => assert_eq!(expected, Offered::Panicked),
            Ok(Ok(())) => assert_eq!(expected, Offered::Done),
            Ok(Err(error)) => {
                let is_closed = expected == Offered::Closed;
                assert!(is_closed || expected == Offered::NoRoom, "{expected:?}");
                assert_eq!(error.is_closed(), is_closed);
                self.reached.given_back += 1;
                self.given_back.push((error, queue, item));
            }
        }
    }

    /// Drops batches that `try_send` gave back, or sends them again.
    fn settle_given_back(&mut self) {
        let Some((error, queue, item)) = self.given_back.pop() else {
            return;
        };
        let sender = self.pick(|all| &all.senders);
        match sender {
            Some(sender) if self.random.chance(500) => {
                let batch = error.into_batch();
                assert_eq!(item_of(&batch), item);
                self.try_send_batch(sender, batch, queue, item);
            }
            _ => {
                self.queues[queue].drop_given_back(item, error.is_closed());
                drop(error);
            }
        }
    }

    /// Like the loser of a `select!`.
    fn send_unpolled(&mut self) {
        let Some(at) = self.pick(|all| &all.senders) else {
            return;
        };
        let (batches, items) = if self.random.chance(500) {
            self.many()
        } else {
            let (batch, queue, item) = self.batch();
            (vec![batch], VecDeque::from([(queue, item)]))
        };
        let sender = Rc::clone(&self.senders[at]);
        match <[PacketBatch; 1]>::try_from(batches) {
            Ok([batch]) => drop(sender.send(batch)),
            Err(batches) => drop(sender.send_many(batches)),
        }
        for (queue, item) in items {
            self.queues[queue].refuse(item);
        }
    }

    fn try_recv(&mut self) {
        let Some(at) = self.pick(|all| &all.receivers) else {
            return;
        };
        let (queue, receiver) = &self.receivers[at];
        let got = receiver.try_recv();
        assert_eq!(got.as_ref().map(item_of), self.queues[*queue].pop());
        self.held.extend(got);
    }

    fn clone_handle(&mut self) {
        if self.random.chance(500) {
            if let Some(at) = self.pick(|all| &all.senders).filter(|&at| at < 4) {
                let another = QueueSender::clone(&self.senders[at]);
                self.senders.push(Rc::new(another));
                self.queues.iter_mut().for_each(|queue| queue.senders += 1);
            }
        } else if let Some(at) = self.pick(|all| &all.receivers).filter(|&at| at < 6) {
            let (queue, receiver) = &self.receivers[at];
            let another = (*queue, Rc::new(QueueReceiver::clone(receiver)));
            self.queues[*queue].receivers += 1;
            self.receivers.push(another);
        }
    }

    /// Drops a handle that no future borrows.
    fn drop_handle(&mut self, last_too: bool) {
        if self.random.chance(500) {
            let Some(at) = self.pick(|all| &all.senders) else {
                return;
            };
            let is_last = self.senders.len() == 1;
            let is_free = Rc::strong_count(&self.senders[at]) == 1;
            if is_free && (!is_last || last_too || self.random.chance(100)) {
                drop(self.senders.swap_remove(at));
                Owned::Sender.drop_in(&mut self.queues);
            }
        } else {
            let Some(at) = self.pick(|all| &all.receivers) else {
                return;
            };
            let (queue, receiver) = &self.receivers[at];
            let (queue, is_free) = (*queue, Rc::strong_count(receiver) == 1);
            let is_last = self.queues[queue].receivers == 1;
            if is_free && (!is_last || last_too || self.random.chance(100)) {
                drop(self.receivers.swap_remove(at));
                Owned::Receiver(queue).drop_in(&mut self.queues);
            }
        }
    }

    /// Drops a future, preferably one that has just been woken.
    fn cancel_one(&mut self) {
        let Some(any) = self.pick(|all| &all.waiting) else {
            return;
        };
        let woken = self
            .waiting
            .iter()
            .position(|one| one.woken.0.load(Ordering::Relaxed));
        self.reached.cancelled_when_woken += u64::from(woken.is_some());
        self.cancel(woken.unwrap_or(any));
    }

    fn cancel(&mut self, at: usize) {
        let mut one = self.waiting.remove(at);
        drop(one.future);
        one.kind.cancel(&mut self.queues);
        one.owned.drop_in(&mut self.queues);
    }

    /// The last handle of one side goes while several wait on the other.
    pub(crate) async fn end_one_side(&mut self) {
        let is_senders = self.random.chance(500);
        for _ in 0..4 {
            if is_senders {
                self.start_recv();
            } else {
                self.start_send();
                self.start_closed();
            }
        }
        for at in (0..self.waiting.len()).rev() {
            let receives = matches!(self.waiting[at].kind, Kind::Recv(_) | Kind::RecvMany(..));
            if receives != is_senders {
                self.cancel(at);
            }
        }
        if is_senders {
            for sender in std::mem::take(&mut self.senders) {
                drop(sender);
                Owned::Sender.drop_in(&mut self.queues);
            }
        } else {
            for (queue, receiver) in std::mem::take(&mut self.receivers) {
                drop(receiver);
                Owned::Receiver(queue).drop_in(&mut self.queues);
            }
        }
        self.check();
        self.quiesce().await;
        self.check();
    }

    /// Polls one that was woken, or any.
    fn poll_some(&mut self) {
        let Some(any) = self.pick(|all| &all.waiting) else {
            return;
        };
        let woken = |one: &Waiting| one.woken.0.load(Ordering::Relaxed);
        let at = self.waiting.iter().position(woken);
        let at = at.filter(|_| self.random.chance(700)).unwrap_or(any);
        self.poll(at);
    }

    fn poll(&mut self, at: usize) {
        let one = &mut self.waiting[at];
        if self.random.chance(300) {
            // Of the former waker nothing more is expected.
            one.woken = Arc::default();
        }
        one.woken.0.store(false, Ordering::Relaxed);
        let is_first = !one.has_looked;
        let has_budget = has_budget_remaining() || !(is_first && one.kind.takes_budget());
        let waker = Waker::from(Arc::clone(&one.woken));
        let mut cx = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| one.future.as_mut().poll(&mut cx)));
        let outcome = match polled {
            Err(_) => Outcome::Panicked,
            Ok(Poll::Pending) => Outcome::Pending,
            Ok(Poll::Ready(Output::Sent(ok))) => Outcome::Sent(ok),
            Ok(Poll::Ready(Output::Closed)) => Outcome::Closed,
            Ok(Poll::Ready(Output::Got(batches))) => {
                let items = batches.iter().map(item_of).collect();
                self.held.extend(batches);
                Outcome::Got(items)
            }
        };
        if !has_budget {
            assert_eq!(outcome, Outcome::Pending, "without budget");
            // The runtime wakes it after the next yield.
            self.reached.out_of_budget += 1;
            return;
        }
        one.has_looked = true;
        let (mut queues, mut kind) = (self.queues.clone(), one.kind.clone());
        let expected = kind.look(&mut queues, is_first);
        let counts = self.monitors.iter().map(|one| Counts::of(&one.stats()));
        let same_counts = self.queues.iter().map(Queue::counts).eq(counts);
        if outcome == Outcome::Pending && !is_first && same_counts {
            // It was not notified, and has not looked.
            self.reached.waited_in_vain += 1;
            return;
        }
        assert_eq!(outcome, expected, "{:?}", one.kind);
        self.queues = queues;
        if outcome == Outcome::Pending {
            self.reached.waited += 1;
            self.reached.partly_sent += u64::from(kind.batches() < one.kind.batches());
            one.kind = kind;
            return;
        }
        match outcome {
            Outcome::Panicked => self.reached.panicked += 1,
            Outcome::Closed => self.reached.closed += 1,
            Outcome::Got(items) if items.is_empty() => self.reached.ended += 1,
            _ => {}
        }
        let done = self.waiting.remove(at);
        done.owned.drop_in(&mut self.queues);
        drop(done.future);
    }

    /// Runs all that is woken, until nothing is: nobody who still waits could go on then.
    async fn quiesce(&mut self) {
        loop {
            if !has_budget_remaining() {
                tokio::task::yield_now().await;
            }
            let woken = |one: &Waiting| one.woken.0.load(Ordering::Relaxed);
            let Some(at) = self.waiting.iter().position(woken) else {
                break;
            };
            self.poll(at);
        }
        for one in &self.waiting {
            let could = one
                .kind
                .clone()
                .look(&mut self.queues.clone(), !one.has_looked);
            assert_eq!(could, Outcome::Pending, "not woken: {:?}", one.kind);
        }
    }
}
