//! What breaks, or broke, other implementations of the protocol: each is refused, counted, and harmless.

use crate::common::pair::{CONV, Pair, datagram, header, push, segments_of, transmit};
use slab_net::Packet;
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header, segments};
use slab_net::rudp::{CloseReason, Rejection, SessionConfig, Time};
use std::time::Duration;

#[test]
fn malformed_datagrams_are_refused() {
    let valid = datagram(push(b"x"), b"x");
    Pair::assert_refused(&valid[..20], Rejection::TooShort);
    Pair::assert_refused(&[&valid[..], &[0]].concat(), Rejection::TrailingBytes);
    Pair::assert_refused(&valid[..24], Rejection::LengthBeyondDatagram);
    let huge = Header {
        len: u32::MAX,
        ..header(Command::Push)
    };
    Pair::assert_refused(&datagram(huge, b"x"), Rejection::LengthBeyondDatagram);
    let mut unknown = valid.clone();
    unknown[4] = 80;
    Pair::assert_refused(&unknown, Rejection::UnknownCommand);
}

/// A good segment in front of a bad one is not accepted either.
#[test]
fn a_datagram_with_one_bad_segment_is_refused_as_a_whole() {
    let good = datagram(push(b"good"), b"good");
    let bad = datagram(
        Header {
            una: 100,
            ..header(Command::AskWindow)
        },
        b"",
    );
    Pair::assert_refused(&[good, bad].concat(), Rejection::UnaBeyondSent);
}

/// Nor is a refused datagram a sign of life: otherwise anybody could keep a session whose peer is gone.
#[test]
fn refused_datagrams_do_not_keep_a_session_alive() {
    let mut pair = Pair::new();
    pair.client.send_slice(b"hello").unwrap();
    pair.settle();
    let silent_since = pair.now;
    let forged = Header {
        una: 100,
        ..header(Command::TellWindow)
    };
    let forged = datagram(forged, b"");
    while pair.client.ended().is_none() {
        assert!(pair.now.since(silent_since) < Duration::from_secs(61));
        pair.now = pair.now + Duration::from_secs(1);
        let refused = pair.client_receives(&forged);
        assert_eq!(refused, Err(Rejection::UnaBeyondSent));
        transmit(&mut pair.client, pair.now);
    }
    assert_eq!(pair.client.ended(), Some(CloseReason::TimedOut));
    assert!(pair.client.stats().probes >= 4, "it asked for one");
}

/// This loses data in the crate `kcp`, which frees what was never acknowledged.
#[test]
fn una_beyond_what_was_sent_is_refused() {
    for una in [3, 100, 0x7fff_ffff, 0x8000_0000, 0xffff_0000] {
        let forged = Header {
            una,
            ..header(Command::TellWindow)
        };
        Pair::assert_refused(&datagram(forged, b""), Rejection::UnaBeyondSent);
    }
}

/// This panics the crate `kcp`.
#[test]
fn far_sequence_numbers_are_refused() {
    for sn in [0x8000_0000, 0x7fff_ffff, 0x8000_0001, 70_000] {
        let forged = Header { sn, ..push(b"x") };
        Pair::assert_refused(&datagram(forged, b"x"), Rejection::SequenceFarOutside);
    }
}

/// This panics the crate `kcp`, and blocks a reader of kcp-go for ever.
#[test]
fn impossible_fragment_numbers_are_refused() {
    // Between ends of this library, `frg` 255 marks the last segment, which has to carry the token.
    let forged = |frg| {
        let first = Header {
            frg,
            una: 0,
            ..push(b"x")
        };
        datagram(first, b"x")
    };
    Pair::assert_refused(&forged(255), Rejection::ForgedEnd);
    // No more than the receive window has room for.
    let mut pair = Pair::with_config(SessionConfig::fast().window(32, 128));
    for (frg, answer) in [(128, Err(Rejection::TooManyFragments)), (127, Ok(()))] {
        assert_eq!(pair.server_receives(&forged(frg)), answer);
    }
}

#[test]
fn segments_longer_than_any_mtu_are_refused() {
    let payload = [0; 9000];
    let forged = datagram(push(&payload), &payload);
    Pair::assert_refused(&forged, Rejection::SegmentTooLong);
}

#[test]
fn segments_of_another_conversation_are_refused() {
    let forged = Header {
        conv: CONV + 1,
        ..push(b"x")
    };
    Pair::assert_refused(&datagram(forged, b"x"), Rejection::OtherConversation);
}

#[test]
fn acks_of_segments_or_times_never_sent_are_refused() {
    let beyond = Header {
        sn: 2,
        ..header(Command::Ack)
    };
    Pair::assert_refused(&datagram(beyond, b""), Rejection::AckBeyondSent);
    // Segment 1 is in flight; an attacker who does not see the traffic has to guess its `ts`.
    for ts in [0, 1, 1000, u32::MAX] {
        let guessed = Header {
            ts,
            ..header(Command::Ack)
        };
        Pair::assert_refused(&datagram(guessed, b""), Rejection::TimeNeverSent);
    }
}

/// 24 bytes close a session of kcp-go. Here only a peer that has seen our token can.
#[test]
fn forged_close_notices_are_refused() {
    for ts in [0, 1, u32::MAX] {
        let forged = Header {
            ts,
            ..header(Command::Close)
        };
        Pair::assert_refused(&datagram(forged, b""), Rejection::ForgedClose);
    }
}

/// An acknowledgement that lacks what its sender said it had comes from a peer that began anew, and ends the
/// session. An attacker who sends such ones blindly has to hit one number in 2^31.
#[test]
fn an_ack_between_two_transmission_times_ends_no_session() {
    let mut pair = Pair::busy();
    let mut times = Vec::new();
    while pair.now < Time::from_micros(1_000_000) {
        for datagram in transmit(&mut pair.client, pair.now) {
            let pushes = segments_of(&datagram).into_iter();
            let again = pushes.filter(|header| header.cmd == Command::Push && header.sn == 1);
            times.extend(again.map(|header| header.ts));
        }
        pair.now = pair.now + Duration::from_millis(10);
    }
    let (first, last) = (times[0], *times.last().unwrap());
    let between = first.wrapping_add(last.wrapping_sub(first) / 2 + 1);
    assert!(!times.contains(&between));
    for (ts, ended) in [(between, None), (last, Some(CloseReason::Reset))] {
        let anew = Header {
            sn: 1,
            una: 0,
            ts,
            ..header(Command::Ack)
        };
        let taken = pair.client_receives(&datagram(anew, b""));
        assert_eq!((taken, pair.client.ended()), (Ok(()), ended));
        assert!(!pair.client.is_sent(), "nor does it acknowledge");
    }
}

/// KCP has no proof of a window. One that somebody else opens is no larger than the session's own, and what the peer
/// has no room for comes again.
#[test]
fn a_forged_window_costs_no_more_than_the_send_window() {
    let mut pair = Pair::with_config(SessionConfig::fast().window(64, 32));
    for message in 0..200 {
        pair.client.send_slice(&[message; 1000]).unwrap();
    }
    pair.settle();
    assert!(!pair.client.is_sent());
    let huge = Header {
        wnd: u16::MAX,
        ..header(Command::TellWindow)
    };
    pair.client_receives(&datagram(huge, b"")).unwrap();
    let burst = transmit(&mut pair.client, pair.now);
    let pushes = burst.iter().flat_map(|datagram| segments_of(datagram));
    let pushes = pushes.filter(|header| header.cmd == Command::Push);
    assert_eq!(pushes.count(), 64);
    let mut read = 0;
    while read < 200 {
        while let Some(message) = pair.server.recv() {
            assert_eq!(message, [read; 1000][..]);
            read += 1;
        }
        pair.now = pair.now + Duration::from_millis(100);
        pair.settle();
    }
}

#[test]
fn a_slow_reader_closes_its_window_and_loses_nothing() {
    let mut pair = Pair::busy();
    let mut sent = 1;
    for _ in 0..100 {
        while pair.client.send_slice(&[3; 1000]).is_ok() {
            sent += 1;
        }
        pair.settle();
        for session in [&pair.client, &pair.server] {
            assert!(session.held_bytes() <= session.reserved_bytes());
        }
        pair.now = pair.now + Duration::from_millis(100);
    }
    assert!(pair.client.send_room() == 0, "the sender has to wait");
    let mut received = 0;
    while received < sent {
        while pair.server.recv().is_some() {
            received += 1;
        }
        pair.now = pair.now + Duration::from_millis(100);
        pair.settle();
    }
    assert_eq!(received, sent);
}

/// A message whose fragments do not count down has no end; such fragments are refused.
#[test]
fn fragments_that_do_not_count_down_are_refused() {
    let mut pair = Pair::new();
    for sn in 0..2000 {
        let endless = Header {
            sn,
            una: 0,
            frg: 200,
            ..push(b"x")
        };
        let _ = pair.server_receives(&datagram(endless, b"x"));
    }
    let stats = pair.server.stats();
    assert!(stats.rejected_for(Rejection::TooManyFragments) >= 15);
    assert!(!pair.server.has_message());
}

/// Also in an order in which they have no neighbours yet: as one message they would be longer than any may be.
#[test]
fn fragments_that_do_not_fit_their_neighbours_are_refused_in_any_order() {
    let mut pair = Pair::with_config(SessionConfig::fast().window(32, 32));
    for sn in (0..32).step_by(2) {
        // The second fragment of two comes first; the datagram counts once.
        let endless = [(sn + 1, 20), (sn, 19), (sn, 18)].map(|(sn, frg)| Header {
            sn,
            una: 0,
            frg,
            ..push(b"x")
        });
        let all = endless.map(|header| datagram(header, b"x")).concat();
        let handled = pair.server_receives(&all);
        assert_eq!(handled, Err(Rejection::TooManyFragments));
    }
    let stats = pair.server.stats();
    let refused = stats.rejected_for(Rejection::TooManyFragments);
    assert_eq!((refused, stats.received_datagrams), (16, 0));
    assert!(pair.server.recv().is_none() && pair.server.ended().is_none());
    drop(pair.server);
    drop(pair.client);
    assert_eq!(pair.pool.slab().stats().in_use(), 0);
    assert_eq!(pair.budget.reserved(), 0);
}

/// A window probe of another implementation does not carry our token, and is always answered.
#[test]
fn every_window_probe_is_answered_with_its_ts() {
    let mut pair = Pair::busy();
    let probe = Header {
        ts: 77,
        ..header(Command::AskWindow)
    };
    pair.client_receives(&datagram(probe, b"")).unwrap();
    let answers = transmit(&mut pair.client, pair.now);
    let (answer, _) = segments(&answers[0]).next().unwrap().unwrap();
    assert_eq!((answer.cmd, answer.ts), (Command::TellWindow, 77));
}

#[test]
fn random_bytes_and_random_headers_never_panic_and_never_hold_memory() {
    let mut pair = Pair::busy();
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..random() % 80).map(|_| random() as u8).collect();
        if bytes.len() >= HEADER_BYTES && random() % 4 > 0 {
            // Plausible enough to get far.
            let len = bytes.len() - HEADER_BYTES;
            let forged = Header {
                conv: CONV,
                cmd: [Command::Push, Command::Ack, Command::AskWindow][(random() % 3) as usize],
                frg: (random() % 8) as u8,
                wnd: random() as u16,
                ts: random() as u32,
                sn: (random() % 300) as u32,
                una: (random() % 4) as u32,
                len: len as u32,
            };
            forged.encode(&mut bytes);
        }
        let _ = pair.client.handle_datagram(pair.now, Packet::from(bytes));
        let _ = transmit(&mut pair.client, pair.now);
        assert!(pair.client.held_bytes() <= pair.client.reserved_bytes());
    }
    assert!(pair.client.stats().rejected_datagrams() > 1000);
}
