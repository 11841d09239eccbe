//! Waiting for packet memory at the cap: in order, cancel-safe, with an optional time limit.

use slab_net::{AllocError, Packet, PacketBuf, PacketPool, SizeClasses};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

/// One slab of 16 KiB chunks, all taken.
fn full() -> (PacketPool, Vec<PacketBuf>) {
    let pool = PacketPool::builder()
        .size_classes(SizeClasses::explicit(&[16_384]).unwrap())
        .max_memory(65_536)
        .headroom(100)
        .tailroom(50)
        .build()
        .unwrap();
    let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1000).ok()).collect();
    assert_eq!(all.len(), 4);
    (pool, all)
}

#[tokio::test]
async fn alloc_gets_memory_that_another_task_frees() {
    let (pool, all) = full();
    let packets: Vec<Packet> = all.into_iter().map(PacketBuf::freeze).collect();
    let waiter = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.alloc(1000).await.unwrap() })
    };
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    std::thread::spawn(move || drop(packets)).join().unwrap();
    let buf = waiter.await.unwrap();
    assert_eq!((buf.headroom(), buf.len()), (100, 0));
    drop(buf);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[tokio::test]
async fn waiters_are_served_in_order_of_arrival() {
    let (pool, mut all) = full();
    let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..4 {
        let (pool, done) = (pool.clone(), done.clone());
        tokio::spawn(async move {
            let buf = pool.alloc(1).await.unwrap();
            done.send((n, buf)).unwrap();
        });
        tokio::task::yield_now().await;
    }
    let mut kept = Vec::new();
    for expected in 0..4 {
        drop(all.pop());
        let refused = pool.try_alloc(1).unwrap_err();
        assert!(
            matches!(refused, AllocError::Exhausted { .. }),
            "no overtaking"
        );
        let (n, buf) = order.recv().await.unwrap();
        assert_eq!(n, expected);
        // Kept, so that only memory freed here serves the next waiter.
        kept.push(buf);
    }
}

#[tokio::test]
async fn a_cancelled_wait_loses_no_memory() {
    let (pool, mut all) = full();
    for _ in 0..50 {
        tokio::select! {
            biased;
            buf = pool.alloc(1) => panic!("{buf:?} of a full pool"),
            () = tokio::task::yield_now() => {}
        }
    }
    // Dropped between the grant and the next poll.
    let mut waits = Box::pin(pool.alloc(1));
    assert!(poll_once(waits.as_mut()).is_none());
    drop(all.pop());
    drop(waits);
    all.push(pool.try_alloc(1).unwrap());
    drop(all);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn impossible_sizes_are_refused_without_waiting() {
    let (pool, _all) = full();
    // With headroom and tailroom this is one byte too many.
    let refused = poll_once(Box::pin(pool.alloc(16_385 - 150)).as_mut()).expect("it waits");
    assert!(matches!(refused, Err(AllocError::TooLarge { .. })));
    let refused = pool.try_alloc(16_385 - 150).unwrap_err();
    assert!(matches!(refused, AllocError::TooLarge { .. }));
    let refused = pool.alloc(usize::MAX).await.unwrap_err();
    assert!(matches!(refused, AllocError::TooLarge { .. }));
    let refused = pool
        .alloc_timeout(usize::MAX, Duration::MAX)
        .await
        .unwrap_err();
    assert!(matches!(refused, AllocError::TooLarge { .. }));
}

#[tokio::test]
async fn alloc_timeout_fails_after_its_time_limit() {
    let (pool, mut all) = full();
    let soon = Duration::from_millis(5);
    let counts = || {
        let stats = pool.slab().stats();
        let class = stats.classes()[0];
        (class.waits, class.exhausted)
    };
    assert_eq!(counts(), (0, 1), "by `full`");
    let refused = pool.alloc_timeout(1000, soon).await.unwrap_err();
    assert_eq!(counts(), (1, 2));
    let given_up = tokio::time::timeout(soon, pool.alloc(1000)).await;
    assert!(given_up.is_err());
    assert_eq!(counts(), (2, 2));
    assert_eq!(
        refused,
        AllocError::Exhausted {
            chunk_bytes: 16_384
        }
    );
    let long = Duration::from_secs(600);
    let mut behind = pin!(pool.alloc(1000));
    let (buf, ()) = tokio::join!(pool.alloc_timeout(1000, long), async {
        assert!(poll_once(behind.as_mut()).is_none());
        drop(all.pop());
    });
    drop(buf.unwrap());
    drop(behind.await.unwrap());
    // Without a wait it needs no timer.
    assert!(pool.alloc_timeout(1000, Duration::ZERO).await.is_ok());
}

/// A span, from the first poll that waits on.
#[test]
#[cfg(not(miri))] // `with_default` needs a feature of `tracing` that the peers of sockets turn on.
fn a_wait_is_a_span_with_the_size_class() {
    use std::sync::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::subscriber::{NoSubscriber, with_default};
    use tracing::{Dispatch, Event, Metadata, Subscriber, span};

    /// The size classes of the spans.
    #[derive(Clone, Default)]
    struct Spans(Arc<Mutex<Vec<u64>>>);

    impl Visit for Spans {
        fn record_u64(&mut self, field: &Field, value: u64) {
            assert_eq!(field.name(), "size_class");
            self.0.lock().unwrap().push(value);
        }
        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
    }

    impl Subscriber for Spans {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.name() == "waiting for memory"
        }
        fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
            span.record(&mut self.clone());
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, _: &Event<'_>) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    let classes = SizeClasses::explicit(&[64, 1024, 4096]).unwrap();
    let pool = PacketPool::builder().size_classes(classes);
    let pool = pool.max_memory(65_536).headroom(24).build().unwrap();
    let all: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1).ok()).collect();
    let spans = Spans::default();
    // With one dispatcher alone, a thread without any may disable the span for all (tracing-core).
    let _second = Dispatch::new(NoSubscriber::new());
    with_default(spans.clone(), || {
        for len in [1000, 1001, 4000] {
            assert!(poll_once(Box::pin(pool.alloc(len)).as_mut()).is_none());
        }
        drop(all);
        assert!(poll_once(Box::pin(pool.alloc(1)).as_mut()).is_some());
    });
    assert_eq!(*spans.0.lock().unwrap(), [1024, 4096, 4096]);
}

#[test]
fn documented_panics() {
    let (pool, mut all) = full();
    // Waiting alone needs no runtime; a time limit needs a timer, but only if it waits.
    all.pop();
    let timed = poll_once(Box::pin(pool.alloc_timeout(1, Duration::ZERO)).as_mut());
    all.push(timed.expect("there is memory").unwrap());
    assert!(poll_once(Box::pin(pool.alloc(1)).as_mut()).is_none());
    let timed = || poll_once(Box::pin(pool.alloc_timeout(1, Duration::ZERO)).as_mut()).is_none();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(timed));
    assert!(outcome.is_err());
}

/// The chunk that a growing buffer moves out of is freed, which wakes whoever waits for it.
#[test]
fn a_buffer_keeps_its_contents_if_a_waker_panics_while_it_grows() {
    struct PanickingWaker;

    impl Wake for PanickingWaker {
        fn wake(self: Arc<Self>) {
            panic!("by a waker");
        }
    }

    let grow: [fn(&mut PacketBuf); 3] = [
        |buf| buf.reserve(20_000),
        |buf| buf.prepend(&[7; 20_000]),
        |buf| buf.prepend_header(20_000).fill(7),
    ];
    for grow in grow {
        let (pool, mut all) = full();
        let mut buf = all.pop().unwrap();
        buf.extend_from_slice(b"contents");
        let waker = Waker::from(Arc::new(PanickingWaker));
        let mut waits = pin!(pool.alloc(1000));
        let poll = waits.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(poll.is_pending());
        assert!(catch_unwind(AssertUnwindSafe(|| grow(&mut buf))).is_err());
        assert_eq!(buf, "contents");
        assert_eq!(buf.class(), None, "it has moved to the heap");
        assert!(poll_once(waits).expect("it got the chunk").is_ok());
    }
}

#[test]
fn alloc_futures_are_send() {
    fn check<T: Send>(_: T) {}
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    check(pool.alloc(1));
    check(pool.alloc_timeout(1, Duration::ZERO));
}
