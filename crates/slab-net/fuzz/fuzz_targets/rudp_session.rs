//! A session with arbitrary input: it never panics, never exceeds its budget, and returns all memory.
//!
//! The input is a list of commands: one byte for the command, followed by its arguments.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slab_net::PacketPool;
use slab_net::rudp::wire::HEADER_BYTES;
use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
use std::sync::OnceLock;
use std::time::Duration;

const CONV: u32 = 5;

fuzz_target!(|input: &[u8]| {
    static POOL: OnceLock<PacketPool> = OnceLock::new();
    let pool = POOL.get_or_init(|| PacketPool::builder().max_memory(16 << 20).build().unwrap());
    let Some((&kind, mut input)) = input.split_first() else {
        return;
    };
    let budget = MemoryBudget::new(4 << 20);
    let side = if kind & 1 == 0 {
        Side::Client
    } else {
        Side::Server
    };
    let config = SessionConfig::fast()
        .mtu(if kind & 2 == 0 { 200 } else { 1400 })
        .stream(kind & 4 == 0);
    let mut now = Time::ZERO;
    // The fuzzer can find out these random numbers, and so get further than an attacker.
    let Ok(mut session) = Session::open(CONV, &config, side, pool, &budget, 1 << 32, now) else {
        return;
    };
    let mut scratch = [0; 4096];
    while let Some((&command, rest)) = input.split_first() {
        input = rest;
        match command % 8 {
            0..=3 => {
                let len = usize::from(command / 8) + HEADER_BYTES;
                let (datagram, rest) = input.split_at(len.min(input.len()));
                input = rest;
                let mut datagram = datagram.to_vec();
                if datagram.len() >= HEADER_BYTES && command % 8 > 0 {
                    // Plausible enough to get far.
                    datagram[..4].copy_from_slice(&CONV.to_le_bytes());
                    datagram[4] = 81 + datagram[4] % 7;
                    let payload = (datagram.len() - HEADER_BYTES) as u32;
                    datagram[20..24].copy_from_slice(&payload.to_le_bytes());
                }
                if let Ok(packet) = pool.try_copy_from_slice(&datagram) {
                    let _ = session.handle_datagram(now, packet);
                }
            }
            4 => {
                let _ = session.send_slice(&[7; 900][..usize::from(command) * 3]);
            }
            5 => while session.recv().is_some() {},
            6 => {
                now = now + Duration::from_millis(u64::from(command) * 4);
                session.handle_timeout(now);
            }
            _ if command > 250 => session.abort(),
            _ if command > 240 => session.close(now),
            _ if command > 230 => session.finish(now),
            _ => drop(session.read()),
        }
        while session.poll_transmit(now, &mut scratch, 8).is_some() {}
        assert!(session.held_bytes() <= session.reserved_bytes());
        assert!(budget.reserved() <= budget.limit());
    }
    drop(session);
    assert_eq!(budget.reserved(), 0);
    assert_eq!(pool.slab().stats().in_use(), 0);
});
