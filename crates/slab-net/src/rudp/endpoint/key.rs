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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{BuildHasher, RandomState};

    /// Otherwise many sessions would share a place in the table.
    #[test]
    fn each_part_of_a_key_changes_its_hash() {
        let keys = [
            ("192.0.2.7:1", 1),
            ("192.0.2.8:1", 1),
            ("192.0.2.7:2", 1),
            ("192.0.2.7:1", 2),
            ("[2001:db8::7]:1", 1),
            ("[2001:db8::8]:1", 1),
            ("[2001:db8::7]:2", 1),
            ("[2001:db8::7]:1", 2),
            ("[fe80::7%1]:1", 1),
            ("[fe80::7%2]:1", 1),
        ];
        let state = RandomState::new();
        let hashes = keys.map(|(peer, conv)| state.hash_one(Key(peer.parse().unwrap(), conv)));
        assert_eq!(HashSet::from(hashes).len(), keys.len());
    }
}
