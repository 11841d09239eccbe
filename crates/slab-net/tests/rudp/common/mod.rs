//! What the tests of RUDP share.

#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod arbitrary_peer;
pub(crate) mod counting;
#[cfg(feature = "fec")]
pub(crate) mod fec;
pub(crate) mod line;
pub(crate) mod lossy;
pub(crate) mod pair;
pub(crate) mod proxy;
pub(crate) mod random;
pub(crate) mod sockets;
pub(crate) mod world;

pub(crate) use random::Random;
