//! Waits for a session, any number of them at once and any number cancelled; and foreign code in what is sent.

use crate::common::pair::{bare_header, datagram};
use crate::common::sockets::{TIMEOUT, accept, any, connected_pair, fast, pool, recv, wait_until};
use slab_net::rudp::wire::{Command, Header, segments};
use slab_net::rudp::{Connection, Endpoint, SendError};
use slab_net::{Packet, PacketPool};
use std::future::{Future, poll_fn};
use std::net::{SocketAddr, UdpSocket};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// However many wait, each is polled when it begins to and when something comes for it.
#[tokio::test]
async fn many_tasks_that_wait_use_no_time() {
    const TASKS: usize = 1000;
    let pool = pool();
    let (server, client, accepted) = connected_pair(&pool).await;
    let polls = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (server, accepted, polls) = (server.clone(), accepted.clone(), Arc::clone(&polls));
            tokio::spawn(async move {
                let mut waiting: Pin<Box<dyn Future<Output = ()> + Send>> = match task % 2 {
                    0 => Box::pin(async move { drop(accepted.recv().await.unwrap().unwrap()) }),
                    _ => Box::pin(async move { drop(server.accept().await) }),
                };
                poll_fn(|cx| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    waiting.as_mut().poll(cx)
                })
                .await;
            })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(polls.load(Ordering::Relaxed), TASKS);
    // Nobody is forgotten.
    for _ in 0..TASKS / 2 {
        timeout(TIMEOUT, client.send_slice(b"x"))
            .await
            .unwrap()
            .unwrap();
    }
    for task in tasks.into_iter().step_by(2) {
        timeout(TIMEOUT, task).await.unwrap().unwrap();
    }
}

/// A task polled by no runtime, as long as this.
fn block_on<T>(what: impl Future<Output = T>) -> T {
    struct Thread(std::thread::Thread);

    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    let mut what = pin!(what);
    loop {
        if let Poll::Ready(done) = what.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park_timeout(TIMEOUT);
    }
}

/// Behind as many as may wait for the pool, a reader that lacks memory to join a message in looks again, now and then;
/// also where no runtime is, whose timers it could use.
#[test]
fn a_reader_looks_again_if_too_many_wait_for_memory() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let strict = PacketPool::builder().max_memory(8 << 20).max_heap_memory(0);
    let strict = strict.build().unwrap();
    let (client, accepted) = runtime.block_on(async {
        let server = Endpoint::bind(any(), &strict, fast()).unwrap();
        let client = Connection::connect(server.local_addr(), &pool(), fast()).unwrap();
        client.send_slice(&[7; 60_000]).await.unwrap();
        let accepted = accept(&server).await;
        wait_until(&server, "acknowledged", |_| client.is_sent()).await;
        (client, accepted)
    });
    let held: Vec<_> = std::iter::from_fn(|| strict.try_alloc(60_000).ok()).collect();
    let mut waiting: Vec<_> = (0..1 << 16).map(|_| strict.slab().alloc(60_000)).collect();
    for wait in &mut waiting {
        let polled = Pin::new(wait).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    let refused = || {
        strict
            .slab()
            .stats()
            .classes()
            .iter()
            .map(|class| class.waiters_refused)
            .sum::<u64>()
    };
    std::thread::scope(|scope| {
        let received = scope.spawn(|| block_on(accepted.recv()));
        // It looks more than once, and not all the time.
        while refused() < 3 && !received.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (before, since) = (refused(), Instant::now());
        std::thread::sleep(Duration::from_millis(100));
        let (looked, pauses) = (refused() - before, since.elapsed().as_millis() / 10);
        assert!(
            u128::from(looked) <= pauses + 1,
            "{looked} times in {pauses} pauses"
        );
        drop((waiting, held));
        let received = received.join().unwrap().unwrap().unwrap();
        assert_eq!(received, [7; 60_000][..]);
    });
    drop((client, accepted));
}

/// A client and its peer's socket, which has heard the client's question for the window: the token in that, and where
/// to send.
async fn asked(pool: &PacketPool) -> (Connection, tokio::net::UdpSocket, u32, SocketAddr) {
    let peer = tokio::net::UdpSocket::bind(any()).await.unwrap();
    let client = Connection::connect(peer.local_addr().unwrap(), pool, fast()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let mut datagram = [0; 2000];
    let (len, from) = peer.recv_from(&mut datagram).await.unwrap();
    let mut headers = segments(&datagram[..len]).map(|segment| segment.unwrap().0);
    let asked = headers.find(|header| header.cmd == Command::AskWindow);
    (client, peer, asked.unwrap().ts, from)
}

/// A peer of this library tells its window, and the most that it can ever be.
fn told(conv: u32, frg: u8, ts: u32, [wnd, most]: [u16; 2]) -> Vec<u8> {
    let header = Header {
        frg,
        wnd,
        ts,
        sn: most.into(),
        ..bare_header(conv, Command::TellWindow)
    };
    datagram(header, b"")
}

/// The first question may be lost, and a reader of this library make room meanwhile: the window that it tells unasked
/// is the first one, and not all that it may have.
#[tokio::test]
async fn a_long_message_waits_for_the_answer_though_a_window_was_told_unasked() {
    let (client, peer, token, from) = asked(&pool()).await;
    let unasked = told(client.conv(), 2, 0, [32, 128]);
    peer.send_to(&unasked, from).await.unwrap();
    while client.stats().received_datagrams == 0 {
        tokio::task::yield_now().await;
    }
    let message = vec![7; 100_000];
    let mut sending = pin!(client.send_slice(&message));
    let first = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
    assert_eq!(first, Poll::Pending);
    let answer = told(client.conv(), 3, token, [32, 128]);
    peer.send_to(&answer, from).await.unwrap();
    assert_eq!(timeout(TIMEOUT, sending).await.unwrap(), Ok(()));
}

/// A message that its reader can never take would stay in front of all others for ever.
#[tokio::test]
async fn a_message_beyond_a_window_that_was_full_when_it_was_told_is_refused() {
    let (client, peer, token, from) = asked(&pool()).await;
    let full = told(client.conv(), 3, token, [0, 4]);
    peer.send_to(&full, from).await.unwrap();
    while client.stats().received_datagrams == 0 {
        tokio::task::yield_now().await;
    }
    let message = |len| Packet::from(vec![7; len]);
    let refused = client.try_send(message(4 * 1376 + 1)).unwrap_err();
    let [segments, max] = [5, 4];
    assert_eq!(refused.error, SendError::TooLong { segments, max });
    client.try_send(message(4 * 1376)).unwrap();
}

struct Task;

impl Wake for Task {
    fn wake(self: Arc<Self>) {}
}

/// Polls for something that does not come, and gives up.
fn cancel<T>(task: &Arc<Task>, waiting: impl Future<Output = T>) {
    let waker = Waker::from(Arc::clone(task));
    let polled = pin!(waiting).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
}

/// What waits and is dropped, as with a timeout, keeps nothing of its task until something comes.
#[tokio::test]
async fn cancelled_waits_leave_no_waker() {
    let pool = pool();
    let (server, client, _accepted) = connected_pair(&pool).await;
    // A full segment each, which a stream cannot lengthen, until the windows are full.
    while let Ok(sent) = timeout(Duration::from_millis(200), client.send_slice(&[7; 1376])).await {
        sent.unwrap();
    }
    let nobody = UdpSocket::bind(any()).unwrap();
    let unanswered = server.connect(nobody.local_addr().unwrap()).unwrap();
    unanswered.send_slice(b"x").await.unwrap();
    let task = Arc::new(Task);

    let mut stream = client.clone().into_stream();
    for _ in 0..10 {
        cancel(&task, stream.read_u8());
        cancel(&task, stream.read_packet());
        cancel(&task, stream.write_u8(7));
    }
    assert_eq!(
        Arc::strong_count(&task),
        3,
        "the last read and the last write"
    );
    drop(stream);
    assert_eq!(Arc::strong_count(&task), 1);

    let mut segments = Vec::new();
    cancel(&task, server.accept());
    cancel(&task, client.recv());
    cancel(&task, client.recv_segments(&mut segments));
    cancel(&task, client.recv_datagram());
    cancel(&task, client.send(vec![7; 30_000]));
    cancel(&task, client.send_slice(&[7; 30_000]));
    cancel(&task, client.closed());
    cancel(&task, client.finish());
    cancel(&task, unanswered.ready());
    cancel(&task, unanswered.close());
    assert_eq!(Arc::strong_count(&task), 1);
}

/// What is sent, and whose bytes.
struct Message {
    of: Connection,
    used: Arc<AtomicUsize>,
}

impl Message {
    /// Another thread would wait for ever for a lock that this one holds.
    fn use_the_session(&self) {
        let (done, (of, used)) = (mpsc::channel(), (self.of.clone(), Arc::clone(&self.used)));
        std::thread::spawn(move || {
            let _ = of.stats();
            used.fetch_add(1, Ordering::Relaxed);
            let _ = done.0.send(());
        });
        let _ = done.1.recv_timeout(Duration::from_secs(5));
    }
}

impl From<Message> for Packet {
    fn from(message: Message) -> Self {
        message.use_the_session();
        Self::from_owner(message)
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        b"message"
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.use_the_session();
    }
}

/// When it becomes a packet, and when that is dropped.
#[tokio::test]
async fn a_message_may_use_the_session_that_it_is_sent_by() {
    let pool = pool();
    let (_server, client, accepted) = connected_pair(&pool).await;
    timeout(TIMEOUT, client.ready()).await.unwrap().unwrap();
    let used = Arc::default();
    let message = || Message {
        of: client.clone(),
        used: Arc::clone(&used),
    };
    client.send(message()).await.unwrap();
    assert_eq!(used.load(Ordering::Relaxed), 2);
    client.try_send(message()).unwrap();
    assert_eq!(used.load(Ordering::Relaxed), 4);
    client.send_datagram(message()).unwrap();
    assert_eq!(used.load(Ordering::Relaxed), 6);
    for _ in 0..2 {
        assert_eq!(recv(&accepted).await, b"message");
    }
    let datagram = timeout(TIMEOUT, accepted.recv_datagram()).await.unwrap();
    assert_eq!(datagram.unwrap().unwrap(), b"message"[..]);
}
