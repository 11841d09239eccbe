//! A path that takes off the datagrams what only this library sends, so that each end takes the other for one of
//! another implementation.

use super::World;
use slab_net::rudp::wire::{Command, HEADER_BYTES, segments};

impl World {
    /// As [`new`](Self::new), over such a path. There is no half-close then.
    pub(crate) fn foreign(seed: u64) -> Self {
        let mut world = Self::create(seed, false, true, None);
        for end in &mut world.ends {
            end.plan.finishes = false;
        }
        world
    }
}

/// The datagram as another implementation would have sent it, if it would have.
pub(super) fn strip(datagram: &[u8]) -> Option<Vec<u8>> {
    let mut stripped = Vec::new();
    for segment in segments(datagram) {
        let (mut header, payload) = segment.expect("what a session sends is valid");
        match header.cmd {
            Command::Push | Command::Ack => {}
            Command::AskWindow | Command::TellWindow => {
                (header.frg, header.ts, header.sn) = (0, 0, 0);
            }
            _ => continue,
        }
        let at = stripped.len();
        stripped.resize(at + HEADER_BYTES, 0);
        header.encode(&mut stripped[at..]);
        stripped.extend_from_slice(&datagram[payload]);
    }
    (!stripped.is_empty()).then_some(stripped)
}
