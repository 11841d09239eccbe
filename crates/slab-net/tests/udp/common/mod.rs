//! Helpers of several tests with real sockets.
#![allow(dead_code, reason = "each test uses a part of it")]

#[cfg(target_os = "linux")]
pub(crate) mod network;
#[cfg(target_os = "linux")]
pub(crate) mod tap;
pub(crate) mod warnings;

#[cfg(target_os = "linux")]
use libc::c_int;
use slab_net::PacketPool;
use slab_net::udp::{Coalescing, UdpReceiver};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::{net::UdpSocket, os::fd::AsRawFd};
use tokio::runtime::{Builder, Runtime};

pub(crate) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Limits only how long a broken test takes to fail.
pub(crate) const HANG: Duration = Duration::from_secs(20);

pub(crate) fn pool() -> PacketPool {
    PacketPool::builder().max_memory(16 << 20).build().unwrap()
}

/// A runtime of one thread.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A receiver for which the system queues much.
pub(crate) fn bind(pool: &PacketPool, coalescing: Coalescing) -> UdpReceiver {
    UdpReceiver::builder(pool)
        .coalescing(coalescing)
        .receive_buffer_bytes(1 << 20)
        .bind(LOOPBACK)
        .unwrap()
}

/// Prints that there is nothing to test here; an error if `SLAB_NET_NO_SKIP` is set. CI sets it on systems
/// that support everything, so that no test is skipped there silently.
pub(crate) fn skipped(what: &str, why: &io::Error) {
    assert!(
        std::env::var_os("SLAB_NET_NO_SKIP").is_none(),
        "{what}: {why}"
    );
    // Not `eprintln!`, whose output the test harness captures.
    let _ = writeln!(io::stderr(), "skipped: {what}: {why}");
}

/// Keeps a port of this address from other tests and takes nothing that comes there: the system answers that nobody
/// receives, as the socket is connected to somebody else.
#[cfg(target_os = "linux")]
pub(crate) fn occupied(at: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    vacate(&socket);
    socket
}

/// Has a socket that received take nothing more, as [`occupied`].
#[cfg(target_os = "linux")]
pub(crate) fn vacate(socket: &UdpSocket) {
    const DISCARD: u16 = 9;
    let nobody = SocketAddr::new(socket.local_addr().unwrap().ip(), DISCARD);
    socket.connect(nobody).unwrap();
}

/// Sets an option of one number, as a program may before it gives its socket away.
#[cfg(target_os = "linux")]
pub(crate) fn set_option(socket: &UdpSocket, level: c_int, option: c_int, value: c_int) {
    let (at, len) = ((&raw const value).cast(), size_of_val(&value) as _);
    // SAFETY: an open socket, and a number of the length that is passed.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, at, len) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// Bytes that depend on their position and on the datagram, so that any mix-up shows.
pub(crate) fn payload(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Receives datagrams until there are so many, and returns their payloads.
pub(crate) async fn receive(receiver: &mut UdpReceiver, count: usize) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    while payloads.len() < count {
        let batch = receiver.recv_batch().await.unwrap();
        payloads.extend(batch.iter().map(|datagram| datagram.packet.to_vec()));
    }
    payloads
}

/// Allocates all memory of the pool, down to its smallest class.
pub(crate) fn exhaust(pool: &PacketPool) -> Vec<slab_core::Chunk> {
    let mut chunks = Vec::new();
    for &size in pool.slab().size_classes().sizes().iter().rev() {
        while let Ok(chunk) = pool.slab().try_alloc(size) {
            chunks.push(chunk);
        }
    }
    chunks
}

/// Asserts that a task whose calls fail at once, each time, keeps its thread from no other.
pub(crate) async fn assert_errors_let_others_run(mut fail: impl AsyncFnMut()) {
    let other = tokio::spawn(async {});
    for _ in 0..1000 {
        fail().await;
    }
    assert!(other.is_finished());
}

/// Makes a system call fail with this error, for this thread and for good.
#[cfg(target_os = "linux")]
pub(crate) fn fail_syscall(call: libc::c_long, code: i32) -> io::Result<()> {
    fail_syscall_if(call, None, code)
}

/// Makes all calls that send datagrams fail with this error, for this thread and for good.
#[cfg(target_os = "linux")]
pub(crate) fn fail_sends(code: i32) -> io::Result<()> {
    fail_syscall(libc::SYS_sendmmsg, code)?;
    fail_syscall(libc::SYS_sendto, code)
}

/// Like [`fail_syscall`], but only if the call's third argument is this number.
#[cfg(target_os = "linux")]
pub(crate) fn fail_syscall_if(call: libc::c_long, third: Option<u32>, code: i32) -> io::Result<()> {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let error = libc::SECCOMP_RET_ERRNO | code as u32;
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    // The lower half of a 64-bit field of `seccomp_data`.
    let at = std::mem::offset_of!(libc::seccomp_data, args) + 2 * 8;
    let at = at + if cfg!(target_endian = "big") { 4 } else { 0 };
    // No number is below 0.
    let compare = third.map_or(libc::BPF_JGE, |_| libc::BPF_JEQ);
    let compare = libc::BPF_JMP | compare | libc::BPF_K;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut program = [
        // The number of the call, which comes first.
        step(load, 0, 0, 0),
        step(equal, 0, 3, call as u32),
        step(load, 0, 0, at as u32),
        step(compare, 0, 1, third.unwrap_or(0)),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, error),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: takes only numbers.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: the program has the length that is passed, and the kernel copies it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const program,
        )
    };
    checked(result as i32)
}

#[cfg(target_os = "linux")]
pub(crate) fn checked(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the process open this many files, if the system permits it.
#[cfg(target_os = "linux")]
pub(crate) fn raise_open_files_limit(count: u64) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes to the structure that is passed.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur >= count as libc::rlim_t {
        return Ok(());
    }
    limit.rlim_cur = count as libc::rlim_t;
    limit.rlim_max = limit.rlim_max.max(limit.rlim_cur);
    // SAFETY: reads the structure that is passed.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })
}
