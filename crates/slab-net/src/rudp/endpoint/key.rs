//! [`Key`]: by what a session is looked up.

use core::hash::{Hash, Hasher};
use std::net::SocketAddr;

/// A session's peer, whose address is canonical, and its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(pub(super) SocketAddr, pub(super) u32);

impl Hash for Key {
    /// All parts at once: one by one, as by `derive`, they take nearly twice as long, and that for each datagram.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self(peer, conv) = self;
        let numbers = u128::from(peer.port()) << 32 | u128::from(*conv);
        match peer {
            SocketAddr::V4(v4) => state.write_u128(numbers << 32 | u128::from(v4.ip().to_bits())),
            SocketAddr::V6(v6) => {
                state.write_u128(v6.ip().to_bits());
                state.write_u128(numbers << 32 | u128::from(v6.scope_id()));
            }
        }
    }
}
