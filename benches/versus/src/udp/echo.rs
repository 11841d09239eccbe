//! `echo`: datagrams go back to their sender; counts the server's CPU time.

use super::rig::{DATAGRAM_BUFFER, QUEUED, Wire, our_receiver, runtime, their_socket};
use crate::cpu::ThreadClock;
use crate::measure::Sampler;
use slab_net::udp::{PacketBatch, Transmit, UdpReceiver};
use std::net::SocketAddr;
use tokio::runtime::Runtime;

pub(super) fn sampler(peer: &str, bytes: usize) -> Result<Sampler, String> {
    match peer {
        super::OURS => Ok(ours(bytes)),
        "tokio" => Ok(tokio(bytes)),
        _ => Err("it has no such case".into()),
    }
}

/// Sends to the server and receives the echoes.
struct Client {
    runtime: Runtime,
    receiver: UdpReceiver,
    payload: Vec<u8>,
    bytes: usize,
    /// With GSO only to a server with GRO: reading what the kernel had to cut takes a little longer.
    wire: Wire,
}

impl Client {
    fn new(bytes: usize, wire: Wire) -> Self {
        let runtime = runtime();
        let receiver = {
            let _inside = runtime.enter();
            our_receiver(Wire::Coalesced)
        };
        Self {
            runtime,
            receiver,
            payload: vec![7; QUEUED * bytes],
            bytes,
            wire,
        }
    }

    fn fill(&self, server: SocketAddr) {
        let per_send = match self.wire {
            Wire::Coalesced => self.payload.len(),
            Wire::Plain | Wire::PlainIntoGro => self.bytes,
        };
        for part in self.payload.chunks(per_send) {
            let transmit = Transmit::new(part, server).segment_size(self.bytes);
            let sent = self
                .runtime
                .block_on(self.receiver.sender().send(&transmit));
            assert_eq!(sent.expect("loopback takes it"), part.len() / self.bytes);
        }
    }

    fn drain(&mut self) {
        let Self {
            runtime, receiver, ..
        } = self;
        runtime.block_on(async {
            let mut got = 0;
            while got < QUEUED {
                got += receiver.recv_batch().await.expect("loopback").datagrams();
            }
        });
    }
}

fn ours(bytes: usize) -> Sampler {
    let mut client = Client::new(bytes, Wire::Coalesced);
    let runtime = runtime();
    let mut receiver = {
        let _inside = runtime.enter();
        our_receiver(Wire::Coalesced)
    };
    let sender = receiver.sender();
    let address = receiver.local_addr();
    let mut batches: Vec<PacketBatch> = Vec::with_capacity(32);
    Sampler::timed(move |ops| {
        let rounds = ops.div_ceil(QUEUED as u64);
        let mut total = 0.0;
        for _ in 0..rounds {
            client.fill(address);
            let clock = ThreadClock::start();
            runtime.block_on(async {
                let mut echoed = 0;
                while echoed < QUEUED {
                    receiver.recv_batches(&mut batches).await.expect("loopback");
                    for batch in batches.drain(..) {
                        echoed += sender.send(&batch.reply()).await.expect("loopback");
                    }
                }
            });
            total += clock.elapsed_ns();
            client.drain();
        }
        (total / (rounds * QUEUED as u64) as f64).into()
    })
}

fn tokio(bytes: usize) -> Sampler {
    let mut client = Client::new(bytes, Wire::Plain);
    let runtime = runtime();
    let socket = {
        let _inside = runtime.enter();
        their_socket()
    };
    let address = socket.local_addr().expect("bound");
    let mut buffer = vec![0; DATAGRAM_BUFFER];
    Sampler::timed(move |ops| {
        let rounds = ops.div_ceil(QUEUED as u64);
        let mut total = 0.0;
        for _ in 0..rounds {
            client.fill(address);
            let clock = ThreadClock::start();
            runtime.block_on(async {
                for _ in 0..QUEUED {
                    let (len, from) = socket.recv_from(&mut buffer).await.expect("loopback");
                    socket
                        .send_to(&buffer[..len], from)
                        .await
                        .expect("loopback");
                }
            });
            total += clock.elapsed_ns();
            client.drain();
        }
        (total / (rounds * QUEUED as u64) as f64).into()
    })
}
