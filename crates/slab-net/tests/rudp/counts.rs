//! What a session counts is what it sends and receives.

use crate::common::pair::{Pair, datagram, push, segments_of, transmit};
use slab_net::Packet;
use slab_net::rudp::wire::{Command, Header};
use slab_net::rudp::{Session, Time};
use std::time::Duration;

/// What one end has sent.
#[derive(Debug, Default, PartialEq)]
struct Sent {
    datagrams: u64,
    bytes: u64,
    pushes: u64,
    acks: u64,
    questions: u64,
    unreliable: u64,
}

impl Sent {
    fn add(&mut self, datagram: &[u8]) {
        self.datagrams += 1;
        self.bytes += datagram.len() as u64;
        for header in segments_of(datagram) {
            match header.cmd {
                Command::Push => self.pushes += 1,
                Command::Ack => self.acks += 1,
                Command::AskWindow => self.questions += 1,
                Command::Datagram => self.unreliable += 1,
                _ => {}
            }
        }
    }

    fn counted_by(session: &Session) -> Self {
        let stats = session.stats();
        Self {
            datagrams: stats.sent_datagrams,
            bytes: stats.sent_bytes,
            pushes: stats.sent_segments,
            acks: stats.sent_acks,
            questions: stats.probes,
            unreliable: stats.sent_unreliable,
        }
    }
}

/// Both ways, with segments in and out of order, some sent again, and questions when nothing else is sent.
#[test]
fn what_is_sent_and_received_is_counted_once() {
    let mut pair = Pair::new();
    let mut sent = [Sent::default(), Sent::default()];
    let mut received = [Sent::default(), Sent::default()];
    let mut number = 0_u32;
    while pair.now < Time::from_micros(60_000_000) {
        if pair.now < Time::from_micros(1_000_000) {
            let _ = pair.client.send_slice(&[1; 3000]);
            let _ = pair.server.send_slice(&[2; 100]);
            let _ = pair.client.send_datagram(Packet::from_static(b"datagram"));
        }
        pair.now = pair.now + Duration::from_millis(10);
        let ends = [&mut pair.client, &mut pair.server].map(|end| transmit(end, pair.now));
        for (from, datagrams) in ends.iter().enumerate() {
            for datagram in datagrams {
                sent[from].add(datagram);
                number += 1;
                if number.is_multiple_of(7) {
                    continue; // It is lost.
                }
                let packet = pair.pool.try_copy_from_slice(datagram).unwrap();
                let to = match from {
                    0 => &mut pair.server,
                    _ => &mut pair.client,
                };
                to.handle_datagram(pair.now, packet).unwrap();
                received[1 - from].add(datagram);
            }
        }
        for end in [&mut pair.client, &mut pair.server] {
            while end.recv().is_some() || end.recv_datagram().is_some() {}
        }
    }
    let counted = [&pair.client, &pair.server].map(Sent::counted_by);
    assert_eq!(counted, sent);
    for (end, received) in [&pair.client, &pair.server].into_iter().zip(received) {
        let stats = end.stats();
        let counted = (
            stats.received_datagrams,
            stats.received_bytes,
            stats.received_segments,
        );
        let arrived = (received.datagrams, received.bytes, received.pushes);
        assert_eq!(counted, arrived);
        assert_eq!(stats.received_unreliable, received.unreliable);
    }
    let some = |sent: &Sent| sent.acks > 10 && sent.pushes > 100 && sent.questions > 2;
    assert!(sent.iter().all(some) && sent[0].unreliable > 10, "{sent:?}");
    assert!(pair.client.stats().retransmits_fast > 0);
}

/// A segment in a buffer that takes more than the reserve of the first window.
#[test]
fn segments_that_are_copied_are_counted_once() {
    let mut pair = Pair::new();
    for sn in 0..3_u32 {
        let payload = [sn as u8; 100];
        let header = Header {
            sn,
            una: 0,
            ..push(&payload)
        };
        let segment = datagram(header, &payload);
        let mut buffer = pair.pool.try_alloc(60_000).unwrap();
        buffer.extend_from_slice(&segment);
        buffer.resize(60_000, 0);
        let received = match sn {
            // One alone in a buffer of its own size is not copied.
            0 => pair.pool.try_copy_from_slice(&segment).unwrap(),
            _ => buffer.freeze().slice(..segment.len()),
        };
        pair.server.handle_datagram(pair.now, received).unwrap();
        assert_eq!(pair.server.stats().copied_segments, u64::from(sn));
        assert_eq!(pair.server.recv().unwrap(), payload[..]);
    }
}
