//! `batch`: datagrams are read where the kernel put them, until the receiver has to wait.

use super::payload::check;
use super::peers::Quinn;
use super::rig::{BUFFERS, Filler, PageAligned, QUEUED, SUPER_BUFFER, Wire};
use super::rig::{DATAGRAM_BUFFER, our_receiver_with_metadata, pool, runtime, their_socket};
use crate::cpu::ThreadClock;
use crate::measure::Sampler;
use slab_net::udp::PacketBatch;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::task::Poll;
use tokio::io::Interest;
use tokio::net::UdpSocket;

pub(super) fn sampler(peer: &str, wire: Wire) -> Result<Sampler, String> {
    match peer {
        super::OURS => Ok(ours(wire)),
        "quinn-udp-raw" => Ok(quinn_udp(wire)),
        // It has no GRO, so the sender must not use GSO, which the kernel would have to undo first.
        "recvmmsg-raw" => Ok(recvmmsg(Wire::Plain)),
        _ => Err("it has no such case".into()),
    }
}

/// Returns whether the receiver has to wait. A round ends there, as it does in a server, which has to find
/// out that nothing is left and is then woken for the next round.
async fn would_wait<T>(receive: impl Future<Output = T>) -> bool {
    let mut receive = pin!(receive);
    poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx).is_pending())).await
}

fn ours(wire: Wire) -> Sampler {
    let filler = Filler::new(1200, QUEUED);
    let runtime = runtime();
    let mut receiver = {
        let _inside = runtime.enter();
        our_receiver_with_metadata(&pool(), wire)
    };
    let mut batches: Vec<PacketBatch> = Vec::with_capacity(32);
    let address = receiver.local_addr();
    Sampler::timed(move |ops| {
        let rounds = ops.div_ceil(QUEUED as u64);
        let mut total = 0.0;
        for _ in 0..rounds {
            filler.fill(address, wire);
            let clock = ThreadClock::start();
            runtime.block_on(async {
                let mut got = 0;
                while got < QUEUED {
                    receiver.recv_batches(&mut batches).await.expect("loopback");
                    for batch in batches.drain(..) {
                        got += batch.iter().map(|datagram| check(datagram.packet)).count();
                    }
                }
                assert!(would_wait(receiver.recv_batches(&mut batches)).await);
            });
            total += clock.elapsed_ns();
        }
        (total / (rounds * QUEUED as u64) as f64).into()
    })
}

fn quinn_udp(wire: Wire) -> Sampler {
    let filler = Filler::new(1200, QUEUED);
    let runtime = runtime();
    let mut quinn = {
        let _inside = runtime.enter();
        Quinn::open()
    };
    let mut memory = PageAligned::new(BUFFERS * SUPER_BUFFER);
    let address = quinn.address();
    Sampler::timed(move |ops| {
        let rounds = ops.div_ceil(QUEUED as u64);
        let mut total = 0.0;
        for _ in 0..rounds {
            filler.fill(address, wire);
            let clock = ThreadClock::start();
            runtime.block_on(async {
                let mut got = 0;
                while got < QUEUED {
                    let metas = {
                        let mut chunks = memory.chunks_exact_mut(SUPER_BUFFER);
                        let mut buffers: [IoSliceMut<'_>; BUFFERS] = std::array::from_fn(|_| {
                            IoSliceMut::new(chunks.next().expect("as many"))
                        });
                        quinn.receive(&mut buffers).await
                    };
                    for (meta, buffer) in metas.iter().zip(memory.chunks_exact(SUPER_BUFFER)) {
                        got += buffer[..meta.len].chunks(meta.stride).map(check).count();
                    }
                }
                let mut chunks = memory.chunks_exact_mut(SUPER_BUFFER);
                let mut buffers: [IoSliceMut<'_>; BUFFERS] =
                    std::array::from_fn(|_| IoSliceMut::new(chunks.next().expect("as many")));
                assert!(would_wait(quinn.receive(&mut buffers)).await);
            });
            total += clock.elapsed_ns();
        }
        (total / (rounds * QUEUED as u64) as f64).into()
    })
}

/// Datagrams per call of `recvmmsg`.
const MANY: usize = 64;

/// Buffers that `recvmmsg` fills again and again.
struct Buffers {
    bytes: Vec<u8>,
    slices: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the pointers point to the vectors beside them, whose memory does not move.
unsafe impl Send for Buffers {}

impl Buffers {
    fn new() -> Self {
        let mut bytes = vec![0_u8; MANY * DATAGRAM_BUFFER];
        let slice = |buffer: &mut [u8]| libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut slices: Vec<_> = bytes.chunks_exact_mut(DATAGRAM_BUFFER).map(slice).collect();
        let header = |slice: &mut libc::iovec| {
            // SAFETY: zero is a valid value of each field: no name, no control data, no slices.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = slice;
            header.msg_hdr.msg_iovlen = 1;
            header
        };
        let headers = slices.iter_mut().map(header).collect();
        Self {
            bytes,
            slices,
            headers,
        }
    }

    /// Receives what is on the socket, in one call.
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        debug_assert_eq!(self.slices.len(), self.headers.len());
        // SAFETY: each header has one slice, of memory that is valid for writes and that nobody else reads
        // while `self` is borrowed.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.as_mut_ptr(),
                MANY as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    fn datagrams(&self, count: usize) -> impl Iterator<Item = &[u8]> {
        let buffers = self.bytes.chunks_exact(DATAGRAM_BUFFER);
        let filled = self.headers.iter().zip(buffers).take(count);
        filled.map(|(header, buffer)| &buffer[..header.msg_len as usize])
    }
}

fn recvmmsg(wire: Wire) -> Sampler {
    let filler = Filler::new(1200, QUEUED);
    let runtime = runtime();
    let socket = {
        let _inside = runtime.enter();
        their_socket()
    };
    let mut buffers = Buffers::new();
    let address = socket.local_addr().expect("bound");
    Sampler::timed(move |ops| {
        let rounds = ops.div_ceil(QUEUED as u64);
        let mut total = 0.0;
        for _ in 0..rounds {
            filler.fill(address, wire);
            let clock = ThreadClock::start();
            runtime.block_on(async {
                let mut got = 0;
                while got < QUEUED {
                    let read = socket.async_io(Interest::READABLE, || buffers.receive(&socket));
                    let count = read.await.expect("loopback");
                    got += buffers.datagrams(count).map(check).count();
                }
                let read = socket.async_io(Interest::READABLE, || buffers.receive(&socket));
                assert!(would_wait(read).await);
            });
            total += clock.elapsed_ns();
        }
        (total / (rounds * QUEUED as u64) as f64).into()
    })
}
