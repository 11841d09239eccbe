//! Waits for a session: any number of them at once, and any number that are cancelled.

mod rudp_common;

use rudp_common::sockets::{TIMEOUT, any, connected_pair, pool};
use std::future::{Future, poll_fn};
use std::net::UdpSocket;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
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
    // A full segment each, which a stream cannot lengthen.
    let fill = async { while client.send_slice(&[7; 1376]).await.is_ok() {} };
    let full = timeout(Duration::from_millis(200), fill).await;
    assert!(full.is_err(), "the windows are full");
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
    cancel(&task, client.finish());
    cancel(&task, unanswered.ready());
    cancel(&task, unanswered.close());
    assert_eq!(Arc::strong_count(&task), 1);
}
