//! The task between a socket and a queue, whose reads fail in rows. This program has a `recvmmsg` of its own, which
//! does as it is told.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod udp_common;

use libc::{c_int, c_uint, mmsghdr, timespec};
use slab_net::PacketPool;
use slab_net::pipeline::{Ended, Forwarded, Overflow, forward, queue};
use slab_net::udp::{Coalescing, Transmit, UdpReceiver, UdpSender};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::task::Poll;
use udp_common::network::run_on_own_thread;

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// One error less than ends the task.
const ROW: usize = 63;

thread_local! {
    /// What the next calls do: fail with an error, or nothing unusual if that is 0. Later ones do nothing unusual.
    static NEXT: RefCell<VecDeque<c_int>> = const { RefCell::new(VecDeque::new()) };
}

/// # Safety
/// As of the system's.
#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    at: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let error = NEXT.with_borrow_mut(VecDeque::pop_front).unwrap_or(0);
    if error != 0 {
        // SAFETY: no conditions.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: it points to this thread's variable.
        unsafe { errno.write(error) };
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_recvmmsg, fd, at, count, flags, timeout) as c_int }
}

fn row() -> impl Iterator<Item = c_int> {
    std::iter::repeat_n(libc::EIO, ROW)
}

/// A receiver of single datagrams, two per call at first.
fn bind(pool: &PacketPool) -> UdpReceiver {
    UdpReceiver::builder(pool)
        .coalescing(Coalescing::Off { max_datagram: 100 })
        .bind(ANY)
        .unwrap()
}

/// Runs the task with a socket that has so many datagrams, and calls that do this. It is told to stop when at most
/// `left` of these calls are left. Returns its report, and how many datagrams were delivered.
async fn forward_until(
    datagrams: usize,
    calls: impl Iterator<Item = c_int>,
    left: usize,
) -> (Forwarded, u64) {
    let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
    let receiver = bind(&pool);
    let client = UdpSender::bind(ANY).unwrap();
    for _ in 0..datagrams {
        let one = Transmit::new(b"x", receiver.local_addr());
        client.send(&one).await.unwrap();
    }
    let (sender, batches) = queue(64.try_into().unwrap(), Overflow::DropNewest);
    NEXT.set(calls.collect());
    let stop = poll_fn(|_| match NEXT.with_borrow(VecDeque::len) <= left {
        true => Poll::Ready(()),
        false => Poll::Pending,
    });
    let report = forward(receiver, sender, stop).await;
    (report, batches.monitor().stats().datagrams)
}

#[tokio::test]
async fn only_a_row_of_errors_ends_forward() {
    let calls = row().chain([libc::EIO]);
    let (report, _) = forward_until(1, calls, 0).await;
    let failed = Ended::Failed(io::Error::from_raw_os_error(libc::EIO).kind());
    assert_eq!((report.ended, report.receive_errors), (failed, 64));
    // Two datagrams, as there are two buffers, between two rows.
    let calls = row().chain([0]).chain(row());
    let (report, got) = forward_until(2, calls, 0).await;
    assert_eq!((report.ended, report.receive_errors), (Ended::Stopped, 126));
    assert_eq!(got, 2);
}

/// Such as those of one datagram now and then that is at fault, however long no other comes.
#[tokio::test]
async fn a_pause_between_errors_ends_their_row() {
    let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
    let receiver = bind(&pool);
    let to = receiver.local_addr();
    let (sender, batches) = queue(64.try_into().unwrap(), Overflow::DropNewest);
    let forwarding = tokio::spawn(forward(receiver, sender, pending()));
    tokio::task::yield_now().await;
    let client = UdpSender::bind(ANY).unwrap();
    for n in 0..2 {
        // The datagram stays in the socket while the calls fail: what comes next wakes the task again.
        let calls = row().chain([libc::EAGAIN]);
        NEXT.set(calls.collect());
        client.send(&Transmit::new(b"x", to)).await.unwrap();
        while NEXT.with_borrow(|next| !next.is_empty()) {
            assert!(!forwarding.is_finished(), "row {n}");
            tokio::task::yield_now().await;
        }
    }
    client.send(&Transmit::new(b"x", to)).await.unwrap();
    for _ in 0..3 {
        assert_eq!(batches.recv().await.unwrap().contents(), b"x");
    }
    drop(batches);
    let report = forwarding.await.unwrap();
    assert_eq!(report.ended, Ended::QueueClosed);
    assert_eq!(report.receive_errors, 2 * ROW as u64);
}

/// What the socket has is delivered, although the errors before were nearly too many.
#[tokio::test]
async fn stopping_begins_the_row_of_errors_anew() {
    let calls = row().chain([libc::EIO]);
    let (report, got) = forward_until(2, calls, 1).await;
    assert_eq!((report.ended, report.receive_errors), (Ended::Stopped, 64));
    assert_eq!(got, 2);
}

#[tokio::test]
async fn what_is_delivered_while_stopping_begins_the_row_of_errors_anew() {
    // After two datagrams there are four buffers, after an error two.
    let calls = row().chain([0]).chain(row()).chain([0]);
    let (report, got) = forward_until(4, calls, usize::MAX).await;
    assert_eq!((report.ended, report.receive_errors), (Ended::Stopped, 126));
    assert_eq!(got, 4);
}

/// Where the socket cannot be stopped, so that datagrams go on coming, delivering them ends nevertheless. What was read
/// by then, and is not delivered, is counted when the socket is closed.
#[test]
fn the_report_counts_what_was_read_and_not_delivered() {
    async fn test() {
        let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
        let receiver = bind(&pool);
        let to = receiver.local_addr();
        let (sender, batches) = queue(1.try_into().unwrap(), Overflow::Wait);
        let client = UdpSender::bind(ANY).unwrap();
        let one = Transmit::new(b"x", to);
        for _ in 0..100 {
            client.send(&one).await.unwrap();
        }
        let monitor = batches.monitor();
        // For each that is delivered another comes.
        let consume = tokio::spawn(async move {
            while batches.recv().await.is_some() {
                client.send(&one).await.unwrap();
            }
        });
        let report = forward(receiver, sender, async {}).await;
        consume.await.unwrap();
        let (socket, queue) = (report.socket, monitor.stats());
        assert!(queue.delivered >= 4096);
        assert!(socket.dropped_closed > 0, "{socket:?}");
        assert_eq!(
            socket.received_datagrams,
            queue.delivered + socket.dropped_closed
        );
    }
    run_on_own_thread(refuse_filters, test);
}

/// With one, the socket would be stopped.
fn refuse_filters() -> io::Result<()> {
    udp_common::fail_syscall_if(
        libc::SYS_setsockopt,
        Some(libc::SO_ATTACH_FILTER as u32),
        libc::EPERM,
    )
}
