//! Two ends without a path between them, and forged datagrams.

use slab_net::PacketPool;
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header, segments};
use slab_net::rudp::{MemoryBudget, Rejection, Session, SessionConfig, SessionStats, Side, Time};
use std::time::Duration;

pub(crate) const CONV: u32 = 9;

pub(crate) struct Pair {
    pub(crate) pool: PacketPool,
    pub(crate) budget: MemoryBudget,
    pub(crate) now: Time,
    pub(crate) client: Session,
    pub(crate) server: Session,
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with_config(SessionConfig::fast())
    }

    pub(crate) fn with_config(config: SessionConfig) -> Self {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let budget = MemoryBudget::new(16 << 20);
        let open = |side, random| {
            Session::open(CONV, &config, side, &pool, &budget, random, Time::ZERO).unwrap()
        };
        let client = open(Side::Client, 0x1234_5678_9abc_def0);
        let server = open(Side::Server, 0x0fed_cba9_8765_4321);
        Self {
            pool,
            budget,
            now: Time::ZERO,
            client,
            server,
        }
    }

    /// Lets both talk until they are silent, a millisecond each way.
    pub(crate) fn settle(&mut self) {
        loop {
            self.now = self.now + Duration::from_millis(1);
            let to_server = transmit(&mut self.client, self.now);
            let to_client = transmit(&mut self.server, self.now);
            if to_server.is_empty() && to_client.is_empty() {
                // Acknowledgements may be delayed.
                self.now = self.now + Duration::from_millis(20);
                let late = [&mut self.client, &mut self.server]
                    .map(|end| end.poll_timeout().is_some_and(|at| at <= self.now));
                if late == [false, false] {
                    return;
                }
            }
            for datagram in to_server {
                self.server_receives(&datagram).unwrap();
            }
            for datagram in to_client {
                self.client_receives(&datagram).unwrap();
            }
        }
    }

    pub(crate) fn client_receives(&mut self, datagram: &[u8]) -> Result<(), Rejection> {
        let packet = self.pool.try_copy_from_slice(datagram).unwrap();
        self.client.handle_datagram(self.now, packet)
    }

    pub(crate) fn server_receives(&mut self, datagram: &[u8]) -> Result<(), Rejection> {
        let packet = self.pool.try_copy_from_slice(datagram).unwrap();
        self.server.handle_datagram(self.now, packet)
    }

    /// Creates a pair that has exchanged a message each way, with one of the client's in flight.
    pub(crate) fn busy() -> Self {
        let mut pair = Self::new();
        pair.client.send_slice(b"question").unwrap();
        pair.settle();
        assert_eq!(pair.server.recv().unwrap(), b"question"[..]);
        pair.server.send_slice(b"answer").unwrap();
        pair.settle();
        assert_eq!(pair.client.recv().unwrap(), b"answer"[..]);
        pair.client.send_slice(b"on its way").unwrap();
        assert_eq!(transmit(&mut pair.client, pair.now).len(), 1);
        pair
    }

    /// Checks that the client refuses this, for this reason, and goes on as if nothing had happened.
    pub(crate) fn assert_refused(datagram: &[u8], reason: Rejection) {
        let mut pair = Self::busy();
        let before = pair.client.stats();
        let refused = pair.client_receives(datagram);
        assert_eq!(refused, Err(reason), "{reason}");
        let after = pair.client.stats();
        assert_eq!(after.rejected_for(reason), 1);
        assert_eq!(after.rejected_datagrams(), before.rejected_datagrams() + 1);
        // All counters but the reasons, which come last.
        let others = |stats: SessionStats| {
            format!("{stats:?}")
                .split_once("rejected")
                .unwrap()
                .0
                .to_owned()
        };
        assert_eq!(others(after), others(before));
        assert!(transmit(&mut pair.client, pair.now).is_empty());
        assert_eq!(pair.client.ended(), None);
        pair.assert_still_works();
    }

    pub(crate) fn assert_still_works(mut self) {
        self.now = self.now + Duration::from_millis(500);
        self.client.handle_timeout(self.now);
        self.server.handle_timeout(self.now);
        self.settle();
        assert_eq!(self.server.recv().unwrap(), b"on its way"[..]);
        self.server.send_slice(b"still here").unwrap();
        self.settle();
        assert_eq!(self.client.recv().unwrap(), b"still here"[..]);
        drop((self.client, self.server));
        assert_eq!(self.pool.slab().stats().in_use(), 0);
        assert_eq!(self.budget.reserved(), 0);
    }
}

pub(crate) fn transmit(session: &mut Session, now: Time) -> Vec<Vec<u8>> {
    if session.poll_timeout().is_some_and(|at| at <= now) {
        session.handle_timeout(now);
    }
    let (mut scratch, mut datagrams) = ([0; 4096], Vec::new());
    while let Some(outgoing) = session.poll_transmit(now, &mut scratch, 64) {
        let chunks = outgoing.contents().chunks(outgoing.segment_size());
        datagrams.extend(chunks.map(<[u8]>::to_vec));
    }
    datagrams
}

/// A header in which all is zero but for the window.
pub(crate) fn bare_header(conv: u32, cmd: Command) -> Header {
    Header {
        conv,
        cmd,
        frg: 0,
        wnd: 128,
        ts: 0,
        sn: 0,
        una: 0,
        len: 0,
    }
}

pub(crate) fn header(cmd: Command) -> Header {
    Header {
        sn: 1,
        una: 1,
        ..bare_header(CONV, cmd)
    }
}

pub(crate) fn datagram(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    header.encode(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn push(payload: &[u8]) -> Header {
    Header {
        len: payload.len() as u32,
        ..header(Command::Push)
    }
}

/// The headers in a datagram.
pub(crate) fn segments_of(datagram: &[u8]) -> Vec<Header> {
    segments(datagram)
        .map(|segment| segment.unwrap().0)
        .collect()
}
