//! What the two sides send, and what they expect to read.

use super::World;
use crate::common::random::{byte, message};
use slab_net::rudp::SendError;
use std::time::Duration;

/// What one side does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) messages: u32,
    pub(crate) longest: u64,
    /// Calls `finish` once it has sent everything.
    pub(crate) finishes: bool,
    /// Reads only once in this many milliseconds.
    pub(crate) reads_every: u64,
}

impl World {
    pub(super) fn read(&mut self, end: usize) {
        let (seed, now) = (self.seed, self.now);
        let me = &mut self.ends[end];
        if now < me.next_read {
            return;
        }
        if me.plan.reads_every > 0 {
            me.next_read = now + Duration::from_millis(me.plan.reads_every);
        }
        let (from, longest) = (1 - end, me.plan.longest);
        while let Some(datagram) = me.session.recv_datagram() {
            let whole = datagram.iter().all(|&b| b == from as u8);
            assert!(whole || self.path.corrupt > 0, "seed {seed}: a datagram");
            me.datagrams += 1;
        }
        if self.path.corrupt > 0 {
            while me.session.read().is_some() {}
        } else if let Some((_, received)) = &mut me.stream {
            while let Some(bytes) = me.session.read() {
                for &b in bytes.iter() {
                    assert_eq!(b, byte(from, 0, *received as usize), "seed {seed}");
                    *received += 1;
                }
                me.received = *received as u32;
            }
        } else {
            while let Some(got) = me.session.recv() {
                let expected = message(seed, from, me.received, longest);
                assert!(
                    got == expected[..],
                    "seed {seed}: message {} of {from}",
                    me.received
                );
                me.received += 1;
            }
        }
        self.note(u64::from(self.ends[end].received));
    }

    pub(super) fn write(&mut self, end: usize) {
        self.write_rest(end);
        let now = self.clock(end);
        let me = &mut self.ends[end];
        let sent = match me.stream {
            Some((sent, _)) => sent == u64::from(me.plan.messages) * 500,
            None => me.sent == me.plan.messages,
        };
        if sent && me.plan.finishes {
            me.session.finish(now);
        }
    }

    fn write_rest(&mut self, end: usize) {
        let seed = self.seed;
        let pool = self.pool.clone();
        if self.datagrams
            && self.random.chance(100)
            && let Ok(datagram) = pool.try_copy_from_slice(&[end as u8; 50])
        {
            // The peer is known by now, or the datagram is given back.
            let _ = self.ends[end].session.send_datagram(datagram);
        }
        let me = &mut self.ends[end];
        if let Some((sent, _)) = &mut me.stream {
            let total = u64::from(me.plan.messages) * 500;
            while *sent < total {
                let len = (total - *sent).min(3000) as usize;
                let bytes: Vec<u8> = (0..len).map(|n| byte(end, 0, *sent as usize + n)).collect();
                match me.session.write(&bytes) {
                    Ok(taken) => *sent += taken as u64,
                    Err(SendError::Blocked | SendError::NoMemory | SendError::Closed(_)) => break,
                    Err(error) => panic!("seed {seed}: {error}"),
                }
            }
            return;
        }
        while me.sent < me.plan.messages {
            let bytes = message(seed, end, me.sent, me.plan.longest);
            let sent = if me.sent.is_multiple_of(2) {
                me.session.send_slice(&bytes)
            } else {
                match pool.try_copy_from_slice(&bytes) {
                    Ok(packet) => me.session.send(packet).map_err(|unsent| {
                        assert!(unsent.packet == bytes[..]);
                        unsent.error
                    }),
                    Err(_) => Err(SendError::NoMemory),
                }
            };
            match sent {
                Ok(()) => me.sent += 1,
                Err(SendError::Blocked | SendError::NoMemory | SendError::Closed(_)) => break,
                // The peer's window is not yet known to be large enough, or a corrupted one is.
                Err(SendError::TooLong { .. }) => break,
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
}
