//! `in-place`: datagrams are looked at where the kernel put them, until the receiver has to wait.

use super::peers::{Quinn, check};
use super::rig::{BUFFERS, Filler, QUEUED, SUPER_BUFFER, Wire, our_receiver, runtime};
use crate::cpu::ThreadClock;
use crate::measure::Sampler;
use slab_net::udp::PacketBatch;
use std::future::poll_fn;
use std::io::IoSliceMut;
use std::pin::pin;
use std::task::Poll;

pub(super) fn sampler(peer: &str, wire: Wire) -> Result<Sampler, String> {
    match peer {
        super::OURS => Ok(ours(wire)),
        "quinn-udp" => Ok(quinn_udp(wire)),
        _ => Err("it has no such case".into()),
    }
}

/// Does this have to wait? A round ends there, as it does in a server: it takes finding out that
/// nothing is left, and being woken for the next.
async fn waits<T>(receive: impl Future<Output = T>) -> bool {
    let mut receive = pin!(receive);
    poll_fn(|cx| Poll::Ready(receive.as_mut().poll(cx).is_pending())).await
}

fn ours(wire: Wire) -> Sampler {
    let filler = Filler::new(1200, QUEUED);
    let runtime = runtime();
    let mut receiver = {
        let _inside = runtime.enter();
        our_receiver(wire)
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
                assert!(waits(receiver.recv_batches(&mut batches)).await);
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
    let mut memory = vec![0; BUFFERS * SUPER_BUFFER];
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
                assert!(waits(quinn.receive(&mut buffers)).await);
            });
            total += clock.elapsed_ns();
        }
        (total / (rounds * QUEUED as u64) as f64).into()
    })
}
