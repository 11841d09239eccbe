//! `recv`, `xcore`: one task receives and another consumes, in the same runtime or on another CPU.

use super::Unit;
use super::link::Link;
use super::peers::{From, Peer, Visit, visit};
use super::rig::{Filler, QUEUED, QUEUED_FOR_TWO, Wire, runtime};
use crate::cpu::{ThreadClock, pin, process_cpu_ns};
use crate::measure::Sampler;
use std::sync::mpsc as blocking;

pub(super) fn sampler(
    peer: &str,
    wire: Wire,
    unit: Unit,
    bytes: usize,
    other_cpu: Option<usize>,
) -> Result<Sampler, String> {
    let open = Open {
        wire,
        bytes,
        other_cpu,
    };
    visit(peer, unit, open)
}

struct Open {
    wire: Wire,
    /// The length of a datagram.
    bytes: usize,
    other_cpu: Option<usize>,
}

impl Visit for Open {
    type Out = Sampler;

    fn visit<P: Peer>(self) -> Sampler {
        let wire = match P::GRO {
            true => self.wire,
            false => Wire::Plain,
        };
        match self.other_cpu {
            None => same_core::<P>(wire, self.bytes),
            Some(cpu) => two_cores::<P>(wire, self.bytes, cpu),
        }
    }
}

fn same_core<P: Peer>(wire: Wire, bytes: usize) -> Sampler {
    let filler = Filler::new(bytes, QUEUED);
    let runtime = runtime();
    let (to, mut from) = P::Link::open();
    let mut peer = {
        let _inside = runtime.enter();
        P::open(wire)
    };
    let address = peer.address();
    runtime.spawn(async move {
        loop {
            peer.pump(&to).await;
        }
    });
    Sampler::timed(move |ops| {
        let rounds = ops.div_ceil(QUEUED as u64);
        let mut total = 0.0;
        for _ in 0..rounds {
            filler.fill(address, wire);
            let clock = ThreadClock::start();
            assert!(runtime.block_on(consume::<P>(&mut from, QUEUED)));
            total += clock.elapsed_ns();
        }
        (total / (rounds * QUEUED as u64) as f64).into()
    })
}

fn two_cores<P: Peer>(wire: Wire, bytes: usize, cpu: usize) -> Sampler {
    let filler = Filler::new(bytes, QUEUED_FOR_TWO);
    let runtime = runtime();
    let (to, mut from) = P::Link::open();
    let mut peer = {
        let _inside = runtime.enter();
        P::open(wire)
    };
    let address = peer.address();
    let (round_done, rounds_done) = blocking::channel();
    std::thread::spawn(move || {
        pin(cpu);
        super::rig::runtime().block_on(async {
            // The task ends when the sampler, and with it the other end, is dropped.
            while consume::<P>(&mut from, QUEUED_FOR_TWO).await && round_done.send(()).is_ok() {}
        });
    });
    Sampler::timed(move |ops| {
        let rounds = ops.div_ceil(QUEUED_FOR_TWO as u64);
        let mut total = 0.0;
        for _ in 0..rounds {
            filler.fill(address, wire);
            // The CPU time of both threads: nothing else runs in this process.
            let before = process_cpu_ns();
            runtime.block_on(async {
                let mut read = 0;
                while read < QUEUED_FOR_TWO {
                    read += peer.pump(&to).await;
                }
            });
            rounds_done.recv().expect("the consumer stays");
            total += process_cpu_ns() - before;
        }
        (total / (rounds * QUEUED_FOR_TWO as u64) as f64).into()
    })
}

/// Consumes one round's datagrams, or fewer if the receiver is gone.
async fn consume<P: Peer>(from: &mut From<P>, datagrams: usize) -> bool {
    let mut got = 0;
    while got < datagrams {
        match P::Link::consume(from).await {
            0 => return false,
            count => got += count,
        }
    }
    assert_eq!(got, datagrams);
    true
}
