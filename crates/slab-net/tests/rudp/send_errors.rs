//! What a call to the kernel does not take costs what it was to send, if the call fails, and nothing behind it (and
//! nothing at all, if an earlier datagram was at fault); if the socket has no room, it goes out once there is, also if
//! there is no descriptor to wait with. This program has a `sendmmsg` and a `sendto` of its own, which do as they are told.

use crate::common::pair::{bare_header, datagram};
use crate::common::sockets::{TIMEOUT, accept, any, bytes, pool, recv, wait_until};
use crate::udp_common::{fail_syscall, skipped};
use libc::{c_int, c_uint, c_void, mmsghdr, sockaddr, socklen_t, ssize_t};
use slab_core::Chunk;
use slab_net::PacketPool;
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header};
use slab_net::rudp::{CloseReason, Connection, Endpoint, EndpointConfig, SessionConfig};
use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use tokio::time::timeout;

const MTU: usize = 1400;
const MINUTE: Duration = Duration::from_secs(60);

thread_local! {
    /// The socket whose calls these are.
    static SOCKET: Cell<c_int> = const { Cell::new(-1) };
    /// What the next calls do: take so many messages, or fail with an error, which is negative. Later ones take all.
    static NEXT: RefCell<VecDeque<c_int>> = const { RefCell::new(VecDeque::new()) };
    /// The bytes that all calls were to send.
    static OFFERED: Cell<usize> = const { Cell::new(0) };
    /// Those of them that calls which failed were to send.
    static LOST: Cell<usize> = const { Cell::new(0) };
    /// The messages that `sendmmsg` has taken.
    static TAKEN: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    /// The pool of which the first call that fails takes all memory, and what it has taken.
    static TO_EXHAUST: RefCell<Option<PacketPool>> = const { RefCell::new(None) };
    static EXHAUSTED: RefCell<Vec<Chunk>> = const { RefCell::new(Vec::new()) };
}

/// Takes all memory of the pool that is to be exhausted, if one is.
fn exhaust() {
    let Some(pool) = TO_EXHAUST.take() else {
        return;
    };
    let slab = pool.slab();
    let take_all = |&bytes: &usize| std::iter::from_fn(move || slab.try_alloc(bytes).ok());
    let sizes = slab.size_classes().sizes().iter().rev();
    EXHAUSTED.set(sizes.flat_map(take_all).collect());
}

/// What this call does; an error is set already.
fn next(fd: c_int) -> c_int {
    if fd != SOCKET.get() {
        return c_int::MAX;
    }
    let next = NEXT
        .with_borrow_mut(VecDeque::pop_front)
        .unwrap_or(c_int::MAX);
    if next < 0 {
        exhaust();
        // SAFETY: no conditions.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: it points to this thread's variable.
        unsafe { errno.write(-next) };
    }
    next
}

/// # Safety
/// As of the system's.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(fd: c_int, at: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    let messages = unsafe { std::slice::from_raw_parts(at, count as usize) };
    let next = next(fd);
    let mut offered = Vec::new();
    for message in messages {
        let header = &message.msg_hdr;
        // SAFETY: as above, for the pieces that this header lists.
        let pieces = unsafe { std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen) };
        let pieces = pieces.iter().map(|piece| {
            // SAFETY: as above, for the bytes of this piece.
            unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) }
        });
        offered.push(pieces.collect::<Vec<_>>().concat());
    }
    let bytes: usize = offered.iter().map(Vec::len).sum();
    OFFERED.set(OFFERED.get() + bytes);
    if next < 0 {
        LOST.set(LOST.get() + bytes);
        return -1;
    }
    let count = count.min(next as c_uint);
    // SAFETY: the caller's promise.
    let sent = unsafe { libc::syscall(libc::SYS_sendmmsg, fd, at, count, flags) as c_int };
    offered.truncate(sent.max(0) as usize);
    TAKEN.with_borrow_mut(|taken| taken.append(&mut offered));
    sent
}

/// # Safety
/// As of the system's.
#[unsafe(no_mangle)]
unsafe extern "C" fn sendto(
    fd: c_int,
    at: *const c_void,
    len: usize,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    OFFERED.set(OFFERED.get() + len);
    if next(fd) < 0 {
        return -1;
    }
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_sendto, fd, at, len, flags, to, to_len) as ssize_t }
}

/// Two endpoints, and both ends of a session, whose window is so wide that the client may send this much at once.
async fn two_ends(
    pool: &PacketPool,
    config: EndpointConfig,
    bytes: usize,
) -> (Endpoint, Endpoint, Connection, Connection) {
    let server = Endpoint::bind(any(), pool, config.clone()).unwrap();
    let clients = Endpoint::bind(any(), pool, config).unwrap();
    SOCKET.set(clients.as_fd().as_raw_fd());
    let client = clients.connect(server.local_addr()).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let accepted = accept(&server).await;
    assert_eq!(recv(&accepted).await, b"hello");
    timeout(TIMEOUT, client.ready()).await.unwrap().unwrap();
    let mut rounds = 0..100;
    loop {
        OFFERED.set(0);
        client.send_slice(&vec![7; bytes]).await.unwrap();
        let offered = OFFERED.get();
        assert_eq!(recv(&accepted).await.len(), bytes);
        wait_until(&server, "it is acknowledged", |_| client.is_sent()).await;
        if offered >= bytes {
            break;
        }
        rounds.next().expect("the window grows");
    }
    (server, clients, client, accepted)
}

async fn what_a_failed_call_left_is_sent_at_once(config: EndpointConfig) {
    let pool = pool();
    // More than one call takes.
    let message = bytes(1, 100 * 1300);
    let ends = two_ends(&pool, config, message.len()).await;
    let (server, clients, client, accepted) = ends;
    let mut lost = 0;
    let refused = libc::ECONNREFUSED;
    for errors in [
        vec![libc::EPERM],
        vec![libc::EHOSTUNREACH],
        // Of an earlier datagram: what this call was to send is not lost, unless it fails again.
        vec![refused],
        vec![refused, refused],
    ] {
        // What is offered to the system before anything else runs on this thread.
        OFFERED.set(0);
        LOST.set(0);
        NEXT.set(errors.iter().map(|error| -error).collect());
        client.send_slice(&message).await.unwrap();
        assert!(NEXT.take().is_empty(), "the error was returned");
        let offered = OFFERED.get();
        assert!(offered >= message.len(), "{offered} bytes");
        assert!(recv(&accepted).await == message);
        wait_until(&server, "it is acknowledged", |_| client.is_sent()).await;
        if errors != [refused] {
            lost += (LOST.get() / errors.len()).div_ceil(MTU) as u64;
        }
        assert_eq!(clients.stats().send_errors, lost, "{errors:?}");
    }
    assert!(lost > 3);
}

/// The system tells of it once, and here a send is told, at once or when there is room again. (Nothing comes from the peer.)
async fn a_refusal_that_a_send_is_told_of_ends_a_client_that_has_heard_nothing(
    config: EndpointConfig,
) {
    let pool = pool();
    let silent = tokio::net::UdpSocket::bind(any()).await.unwrap();
    let peer = silent.local_addr().unwrap();
    let (full, refused) = (-libc::EAGAIN, -libc::ECONNREFUSED);
    for next in [vec![refused], vec![full, refused]] {
        let clients = Endpoint::bind(any(), &pool, config.clone()).unwrap();
        SOCKET.set(clients.as_fd().as_raw_fd());
        NEXT.set(next.into());
        let client = clients.connect(peer).unwrap();
        client.send_slice(b"hello").await.unwrap();
        let end = timeout(TIMEOUT, client.recv()).await.unwrap();
        assert_eq!(end, Err(CloseReason::Refused));
        assert!(NEXT.take().is_empty());
    }
}

/// All that was to be sent was, or is counted.
fn lost(clients: &Endpoint) -> u64 {
    let stats = clients.stats();
    let all = stats.total.sent_datagrams + parity(clients);
    assert_eq!(
        clients.socket_monitor().stats().sent_datagrams + stats.send_errors,
        all,
        "{stats:?}"
    );
    stats.send_errors
}

fn parity(_clients: &Endpoint) -> u64 {
    #[cfg(feature = "fec")]
    return _clients.stats().fec.sent_parity;
    #[cfg(not(feature = "fec"))]
    0
}

/// Waits until no timer is left that would do what a wake-up should have done.
async fn rest(clients: &Endpoint) {
    let mut before = None;
    while before.replace(clients.stats().wakeups) != Some(clients.stats().wakeups) {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// Without segmentation by the kernel, which takes all segments of a message or none. If shards of several lengths are
/// to be sent, some are lost.
async fn what_a_full_socket_did_not_take_is_sent_once_it_has_room(
    config: EndpointConfig,
    some_are_lost: bool,
) {
    let pool = pool();
    // If nothing else takes a part of the MTU, the last segment is as long as the others.
    let message = bytes(2, 10 * (MTU - HEADER_BYTES));
    let config = config.offload(false);
    let ends = two_ends(&pool, config, message.len()).await;
    let (server, clients, client, accepted) = ends;
    let full = -libc::EAGAIN;
    for (next, blocks) in [
        (vec![full], true),
        (vec![full, 3, full, 4, full], true),
        (vec![3, full, 2, full], true),
        // What waited meets an error.
        (vec![full, -libc::EPERM], true),
        (vec![3, -libc::EPERM], false),
    ] {
        let is_error = next.contains(&-libc::EPERM);
        if is_error {
            rest(&clients).await;
        }
        let before = (lost(&clients), clients.stats().send_blocked);
        TAKEN.take();
        NEXT.set(next.into());
        client.send_slice(&message).await.unwrap();
        assert!(recv(&accepted).await == message);
        wait_until(&server, "it is acknowledged", |_| client.is_sent()).await;
        assert!(NEXT.take().is_empty());
        let lost = lost(&clients) - before.0;
        assert_eq!(lost > 0, is_error || some_are_lost, "{lost}");
        let blocked = clients.stats().send_blocked - before.1;
        assert_eq!(blocked, u64::from(blocks));
        // None twice, and none joined.
        let taken = TAKEN.take();
        let lengths = taken.iter().map(Vec::len);
        assert!(lengths.clone().all(|len| 0 < len && len <= MTU + 8));
        assert_eq!(taken.iter().collect::<HashSet<_>>().len(), taken.len());
    }
}

/// Nor has the pool memory to keep it in. The socket may have taken some before.
async fn what_there_is_no_room_for_is_counted(config: EndpointConfig) {
    let pool = pool();
    let message = bytes(3, 4 * 1300);
    let config = config.offload(false);
    let ends = two_ends(&pool, config, message.len()).await;
    let (server, clients, client, accepted) = ends;
    for taken in [0, 1, 3] {
        let before = lost(&clients);
        let full = -libc::EAGAIN;
        NEXT.set(if taken == 0 {
            [full].into()
        } else {
            [taken, full].into()
        });
        TO_EXHAUST.set(Some(pool.clone()));
        client.send_slice(&message).await.unwrap();
        assert!(NEXT.take().is_empty());
        assert!(!EXHAUSTED.take().is_empty());
        assert_eq!(lost(&clients) - before, 4 - taken as u64);
        assert_eq!(clients.stats().send_blocked, 0);
        assert!(recv(&accepted).await == message);
        wait_until(&server, "it is acknowledged", |_| client.is_sent()).await;
    }
}

/// What was lost so is asked for again after a pause. In between, what else there is to send waits: it would be lost, too.
async fn where_there_is_no_room_one_burst_is_lost(config: EndpointConfig) {
    const BURST: u64 = 64;
    let pool = pool();
    let message = bytes(4, 3 * BURST as usize * (MTU - HEADER_BYTES));
    let config = config.offload(false);
    let ends = two_ends(&pool, config, message.len()).await;
    let (server, clients, client, accepted) = ends;
    let before = lost(&clients);
    // More than the calls for one burst.
    NEXT.set([-libc::EAGAIN; 3].into());
    TO_EXHAUST.set(Some(pool.clone()));
    client.send_slice(&message).await.unwrap();
    assert!((1..=BURST).contains(&(lost(&clients) - before)));
    let is_free = || NEXT.with_borrow(VecDeque::is_empty);
    assert!(!is_free());
    wait_until(&server, "it tries again", |_| is_free()).await;
    assert!(!EXHAUSTED.take().is_empty());
    assert!(recv(&accepted).await == message);
}

/// Then it tries again, each time after a pause. Ends what this thread can do with descriptors.
async fn without_a_descriptor_to_wait_with_it_tries_again(config: EndpointConfig) {
    const TRIES: usize = 5;
    let pool = pool();
    let message = bytes(5, 4 * 1300);
    let ends = two_ends(&pool, config, message.len()).await;
    let (server, clients, client, accepted) = ends;
    rest(&clients).await;
    if let Err(why) = fail_syscall(libc::SYS_fcntl, libc::EMFILE) {
        return skipped("this thread's system cannot be changed", &why);
    }
    let before = clients.stats();
    NEXT.set([-libc::EAGAIN; TRIES].into());
    // From here on the clock stands still, but for pauses in which there is nothing to do.
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    client.send_slice(&message).await.unwrap();
    assert!(recv(&accepted).await == message);
    assert!(NEXT.take().is_empty());
    // The first call is that of `send_slice`, the second that of the task it wakes. Before each other one was a pause.
    let pauses = Duration::from_millis(10) * (TRIES as u32 - 1);
    assert!(begun.elapsed() >= pauses);
    tokio::time::resume();
    let after = clients.stats();
    assert_eq!(after.send_errors, before.send_errors);
    assert_eq!(after.send_blocked - before.send_blocked, 1);
    wait_until(&server, "it is acknowledged", |_| client.is_sent()).await;
}

fn config() -> EndpointConfig {
    EndpointConfig::new(
        SessionConfig::fast()
            .window(256, 256)
            .mtu(MTU)
            .keepalive(MINUTE)
            .idle_timeout(2 * MINUTE),
    )
}

#[tokio::test]
async fn plain() {
    a_refusal_that_a_send_is_told_of_ends_a_client_that_has_heard_nothing(config()).await;
    what_a_failed_call_left_is_sent_at_once(config()).await;
    what_a_full_socket_did_not_take_is_sent_once_it_has_room(config(), false).await;
    what_there_is_no_room_for_is_counted(config()).await;
    where_there_is_no_room_one_burst_is_lost(config()).await;
    without_a_descriptor_to_wait_with_it_tries_again(config()).await;
}

#[cfg(feature = "aes-gcm")]
#[tokio::test]
async fn encrypted() {
    let config = config().aes_gcm(slab_net::rudp::crypto::AesGcm::new(&[7; 32]).unwrap());
    a_refusal_that_a_send_is_told_of_ends_a_client_that_has_heard_nothing(config.clone()).await;
    what_a_failed_call_left_is_sent_at_once(config.clone()).await;
    what_a_full_socket_did_not_take_is_sent_once_it_has_room(config.clone(), false).await;
    what_there_is_no_room_for_is_counted(config.clone()).await;
    where_there_is_no_room_one_burst_is_lost(config.clone()).await;
    without_a_descriptor_to_wait_with_it_tries_again(config).await;
}

#[cfg(feature = "fec")]
#[tokio::test]
async fn with_parity() {
    let shards = slab_net::rudp::fec::FecShards::new(1, 1).unwrap();
    // The parity of the last datagram, which is shorter than the others, is longer than it, or begins another run.
    what_a_full_socket_did_not_take_is_sent_once_it_has_room(config().fec(shards), true).await;
}

/// Whether the system refuses it or the socket has no room. A stranger's question is answered, as its session is not
/// known.
#[tokio::test]
async fn answers_without_a_session_that_are_not_sent_are_counted() {
    let pool = pool();
    let endpoint = Endpoint::bind(any(), &pool, config()).unwrap();
    SOCKET.set(endpoint.as_fd().as_raw_fd());
    let stranger = tokio::net::UdpSocket::bind(any()).await.unwrap();
    let question = Header {
        frg: 1,
        wnd: 32,
        ts: 5,
        // It goes on with a session.
        sn: 3,
        una: 3,
        ..bare_header(7, Command::AskWindow)
    };
    let question = datagram(question, b"");
    NEXT.set([-libc::EPERM, -libc::EAGAIN].into());
    for asked in 1..=3 {
        let to = endpoint.local_addr();
        stranger.send_to(&question, to).await.unwrap();
        wait_until(&endpoint, "it was asked", |endpoint| {
            endpoint.stats().unknown_session == asked
        })
        .await;
    }
    let mut answer = [0; 100];
    let came = timeout(TIMEOUT, stranger.recv(&mut answer)).await;
    assert_eq!(came.unwrap().unwrap(), HEADER_BYTES);
    assert!(stranger.try_recv(&mut answer).is_err());
    let stats = endpoint.stats();
    assert_eq!((stats.unsent_answers, stats.send_errors), (2, 0));
}
