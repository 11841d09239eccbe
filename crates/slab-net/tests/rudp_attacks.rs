//! What breaks, or broke, other implementations of the protocol: each is refused, counted, and harmless.

mod rudp_common;

use rudp_common::pair::{CONV, Pair, datagram, header, push, segments_of, transmit};
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
        let packet = pair.pool.try_copy_from_slice(&forged).unwrap();
        let refused = pair.client.handle_datagram(pair.now, packet);
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
        let packet = pair.pool.try_copy_from_slice(&forged(frg)).unwrap();
        assert_eq!(pair.server.handle_datagram(pair.now, packet), answer);
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

/// 25 bytes make kcp-go send 158 KB to the address that they claim to come from.
#[test]
fn a_forged_address_gets_at_most_three_times_what_it_sent() {
    let mut pair = Pair::new();
    let first = Header {
        sn: 0,
        una: 0,
        wnd: u16::MAX,
        ..push(b"x")
    };
    let opening = datagram(first, b"x");
    let packet = pair.pool.try_copy_from_slice(&opening).unwrap();
    pair.server.handle_datagram(pair.now, packet).unwrap();
    let mut out = 0;
    let mut queued = 0;
    while pair.server.ended().is_none() && pair.now < Time::from_micros(200_000_000) {
        while queued < 200 && pair.server.send_slice(&[7; 1000]).is_ok() {
            queued += 1;
        }
        out += transmit(&mut pair.server, pair.now)
            .iter()
            .map(Vec::len)
            .sum::<usize>();
        pair.now = pair.now + Duration::from_millis(10);
    }
    assert!(queued > 30, "there was a lot to send");
    assert!(out > 0 && out <= 3 * opening.len(), "{out} bytes went out");
    assert!(!pair.server.is_validated());
    assert_eq!(pair.server.ended(), Some(CloseReason::TimedOut));
    assert_eq!(pair.pool.slab().stats().in_use(), 0);
}

#[test]
fn the_amplification_limit_always_holds_and_ends_with_the_first_echo() {
    let mut pair = Pair::new();
    // 100 bytes came in; more than three times that are to be sent.
    pair.client.send_slice(&[1; 100]).unwrap();
    let datagrams = transmit(&mut pair.client, pair.now);
    let received: usize = datagrams.iter().map(Vec::len).sum();
    for datagram in &datagrams {
        let packet = pair.pool.try_copy_from_slice(datagram).unwrap();
        pair.server.handle_datagram(pair.now, packet).unwrap();
    }
    for _ in 0..30 {
        pair.server.send_slice(&[2; 90]).unwrap();
    }
    let sent = transmit(&mut pair.server, pair.now);
    let bytes: usize = sent.iter().map(Vec::len).sum();
    assert!(bytes > received && bytes <= 3 * received);
    assert!(!pair.server.is_validated());
    for datagram in sent {
        let packet = pair.pool.try_copy_from_slice(&datagram).unwrap();
        pair.client.handle_datagram(pair.now, packet).unwrap();
    }
    pair.settle();
    assert!(pair.server.is_validated());
    let received = std::iter::from_fn(|| pair.client.recv()).count();
    assert_eq!(received, 30);
}

/// An attacker who sends acknowledgements blindly has to hit one number in 2^31, however long the server has been
/// sending the segment again.
#[test]
fn an_ack_between_two_transmission_times_proves_no_address() {
    let mut pair = Pair::new();
    pair.client.send_slice(&[1; 500]).unwrap();
    for datagram in transmit(&mut pair.client, pair.now) {
        let packet = pair.pool.try_copy_from_slice(&datagram).unwrap();
        pair.server.handle_datagram(pair.now, packet).unwrap();
    }
    assert_eq!(pair.server.recv().unwrap(), [1; 500][..]);
    pair.server.send_slice(b"answer").unwrap();
    let mut times = Vec::new();
    while pair.now < Time::from_micros(1_000_000) {
        for datagram in transmit(&mut pair.server, pair.now) {
            let parsed = segments(&datagram).map(|segment| segment.unwrap().0);
            times.extend(parsed.filter_map(|header| {
                (header.cmd == Command::Push && header.sn == 0).then_some(header.ts)
            }));
        }
        pair.now = pair.now + Duration::from_millis(10);
    }
    let (first, last) = (times[0], *times.last().unwrap());
    let apart = last.wrapping_sub(first);
    assert!(apart > 100_000, "it was sent again: {times:?}");
    let guess = Header {
        sn: 0,
        una: 0,
        ts: first.wrapping_add(apart / 2 + 1),
        ..header(Command::Ack)
    };
    assert!(!times.contains(&guess.ts));
    let packet = pair.pool.try_copy_from_slice(&datagram(guess, b""));
    let taken = pair.server.handle_datagram(pair.now, packet.unwrap());
    assert_eq!(taken, Ok(()), "as far as is known it could be an echo");
    assert!(!pair.server.is_validated());
}

/// An acknowledgement that lacks what its sender said it had comes from a peer that began anew, and ends the
/// session. An attacker who sends such ones blindly also has to hit one number in 2^31.
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
        let packet = pair.pool.try_copy_from_slice(&datagram(anew, b""));
        let taken = pair.client.handle_datagram(pair.now, packet.unwrap());
        assert_eq!((taken, pair.client.ended()), (Ok(()), ended));
        assert_eq!(
            pair.client.is_sent(),
            ended.is_some(),
            "nor does it acknowledge"
        );
    }
}

/// The echo of the first transmission proves the address, as does that of the last.
#[test]
fn an_ack_with_the_ts_of_a_transmission_proves_the_address() {
    for which in [0, usize::MAX] {
        let mut pair = Pair::new();
        pair.client.send_slice(&[1; 500]).unwrap();
        let opening = transmit(&mut pair.client, pair.now);
        let packet = pair.pool.try_copy_from_slice(&opening[0]).unwrap();
        pair.server.handle_datagram(pair.now, packet).unwrap();
        pair.server.send_slice(b"answer").unwrap();
        let mut times = Vec::new();
        while times.len() < 3 {
            for datagram in transmit(&mut pair.server, pair.now) {
                let headers = segments(&datagram).map(|segment| segment.unwrap().0);
                let pushes = headers.filter(|header| header.cmd == Command::Push && header.sn == 0);
                times.extend(pushes.map(|header| header.ts));
            }
            pair.now = pair.now + Duration::from_millis(10);
        }
        let echo = Header {
            sn: 0,
            una: 0,
            ts: times[which.min(times.len() - 1)],
            ..header(Command::Ack)
        };
        let packet = pair.pool.try_copy_from_slice(&datagram(echo, b""));
        let taken = pair.server.handle_datagram(pair.now, packet.unwrap());
        assert_eq!(taken, Ok(()));
        assert!(pair.server.is_validated());
    }
}

/// A server that only receives proves nothing by data; ends of this library still prove their addresses.
#[test]
fn ends_of_this_library_prove_their_addresses_without_data() {
    let mut pair = Pair::new();
    pair.client.send_slice(b"only this way").unwrap();
    pair.settle();
    assert!(pair.server.is_validated() && pair.server.is_peer_ours());
    assert!(pair.client.is_peer_ours());
}

/// Any other peer does, too: it acknowledges a segment that it must take for an old one, with a `ts` that nobody
/// else has seen.
#[test]
fn any_kcp_implementation_proves_its_address_without_data() {
    for guessed in [1, 0] {
        let mut pair = Pair::new();
        pair.client.send_slice(b"only this way").unwrap();
        let opening = transmit(&mut pair.client, pair.now);
        let pushed = opening.iter().flat_map(|d| segments_of(d));
        let pushed = pushed.filter(|header| header.cmd == Command::Push);
        for header in pushed.collect::<Vec<_>>() {
            let alone = datagram(header, b"only this way");
            let packet = pair.pool.try_copy_from_slice(&alone).unwrap();
            pair.server.handle_datagram(pair.now, packet).unwrap();
        }
        let answer = transmit(&mut pair.server, pair.now);
        assert!(!pair.server.is_validated());
        let asked = answer.iter().flat_map(|d| segments_of(d));
        let challenge = asked.filter(|header| header.cmd == Command::Push);
        let challenge = challenge.collect::<Vec<_>>();
        assert_eq!(challenge.len(), 1, "{challenge:?}");
        assert_eq!((challenge[0].sn, challenge[0].len), (u32::MAX, 0));
        // The challenge goes to every peer; it has no other effect on one of ours.
        for datagram in &answer {
            let packet = pair.pool.try_copy_from_slice(datagram).unwrap();
            pair.client.handle_datagram(pair.now, packet).unwrap();
        }
        assert!(pair.client.recv().is_none());
        let echo = Header {
            sn: u32::MAX,
            ts: challenge[0].ts.wrapping_add(guessed),
            una: 0,
            ..header(Command::Ack)
        };
        let packet = pair.pool.try_copy_from_slice(&datagram(echo, b"")).unwrap();
        pair.server.handle_datagram(pair.now, packet).unwrap();
        assert_eq!(pair.server.is_validated(), guessed == 0);
    }
}

/// A peer of another implementation that has said little, and has been acknowledged, says nothing more by itself.
/// The allowance is not spent on the first question for the proof, whose answer may be lost.
#[test]
fn a_peer_that_sent_little_is_challenged_more_than_once() {
    let mut pair = Pair::new();
    let first = Header {
        sn: 0,
        una: 0,
        ..push(b"?")
    };
    let packet = pair.pool.try_copy_from_slice(&datagram(first, b"?"));
    pair.server
        .handle_datagram(pair.now, packet.unwrap())
        .unwrap();
    let asked = |pair: &mut Pair, cmd| {
        let sent = transmit(&mut pair.server, pair.now);
        let headers = sent.iter().flat_map(|datagram| segments_of(datagram));
        headers.into_iter().rfind(|header| header.cmd == cmd)
    };
    assert!(asked(&mut pair, Command::Push).is_some());
    pair.now = pair.now + Duration::from_secs(1);
    let challenge = asked(&mut pair, Command::Push).expect("it is asked again");
    let echo = Header {
        sn: challenge.sn,
        ts: challenge.ts,
        una: 0,
        ..header(Command::Ack)
    };
    let packet = pair.pool.try_copy_from_slice(&datagram(echo, b""));
    pair.server
        .handle_datagram(pair.now, packet.unwrap())
        .unwrap();
    assert!(pair.server.is_validated());
    // Now the allowance is enough to ask for the window, too.
    assert!(asked(&mut pair, Command::AskWindow).is_some());
}

/// An acknowledgement that may not be sent before the address is proved is not due either: otherwise the driver
/// would do nothing else until the session is given up.
#[test]
fn an_ack_that_may_not_be_sent_yet_sets_no_timer() {
    let mut pair = Pair::new();
    let forged = |sn, una| {
        let header = Header {
            sn,
            una,
            ..push(b"")
        };
        datagram(header, b"")
    };
    let take = |pair: &mut Pair, bytes: &[u8]| {
        let packet = pair.pool.try_copy_from_slice(bytes).unwrap();
        pair.server.handle_datagram(pair.now, packet).unwrap();
        transmit(&mut pair.server, pair.now)
    };
    let opening: Vec<u8> = (0..17).flat_map(|sn| forged(sn, 0)).collect();
    let out: usize = take(&mut pair, &opening).iter().map(Vec::len).sum();
    // The application answers at once, with all that may be sent.
    assert!(pair.server.recv().is_some());
    let answer = vec![1; 3 * opening.len() - out - HEADER_BYTES];
    pair.server.send_slice(&answer).unwrap();
    assert_eq!(transmit(&mut pair.server, pair.now).len(), 1);

    // Then the peer is to be asked again. It sends something else, which is to be acknowledged with the next
    // answer, but the application reads on instead of answering.
    pair.now = pair.server.poll_timeout().unwrap();
    assert!(transmit(&mut pair.server, pair.now).is_empty());
    take(&mut pair, &forged(17, 1));
    while pair.server.recv().is_some() {}
    transmit(&mut pair.server, pair.now);
    pair.now = pair.now + Duration::from_millis(20);
    transmit(&mut pair.server, pair.now);
    assert!(!pair.server.is_validated());
    assert!(pair.server.poll_timeout().unwrap() > pair.now);

    // The acknowledgement goes with the allowance that the next datagram brings.
    let answer = take(&mut pair, &forged(18, 1));
    let acked = answer.iter().flat_map(|datagram| segments_of(datagram));
    assert!(acked.into_iter().any(|header| header.una == 19));
}

/// Before its address is proved, a peer is promised only the smallest window, whatever it sends.
#[test]
fn an_unproved_address_reserves_only_the_smallest_window() {
    let mut pair = Pair::new();
    let reserved = pair.server.reserved_bytes();
    for sn in 0..10_000 {
        let forged = Header {
            sn,
            una: 0,
            ..push(b"x")
        };
        let packet = pair
            .pool
            .try_copy_from_slice(&datagram(forged, b"x"))
            .unwrap();
        let _ = pair.server.handle_datagram(pair.now, packet);
        assert_eq!(pair.server.recv().unwrap(), b"x"[..]);
        transmit(&mut pair.server, pair.now);
    }
    assert_eq!(pair.server.reserved_bytes(), reserved);
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

/// Nor does it get more with a message that fills the window, long or endless: that waits for the proof, but not
/// for ever, whatever else comes from the address.
#[test]
fn a_long_message_of_an_unproved_address_does_not_grow_its_window() {
    for frg in [|sn: u32| 254 - sn as u8, |_| 1] {
        let mut pair = Pair::with_config(SessionConfig::fast().window(1024, 1024));
        let reserved = pair.server.reserved_bytes();
        let mut until = None;
        for n in 0..20_000 {
            let forged = Header {
                sn: n % 250,
                una: 0,
                frg: frg(n % 250),
                ..push(b"x")
            };
            let forged = datagram(forged, b"x");
            let packet = pair.pool.try_copy_from_slice(&forged).unwrap();
            pair.now = pair.now + Duration::from_millis(1);
            let _ = pair.server.handle_datagram(pair.now, packet);
            transmit(&mut pair.server, pair.now);
            let reserves = pair.server.reserved_bytes();
            if until.is_none() && pair.server.ended().is_none() {
                assert_eq!(reserves, reserved);
            } else {
                until.get_or_insert(pair.now);
                assert_eq!(reserves, 0);
            }
        }
        let stats = pair.server.stats();
        if frg(0) == frg(1) {
            assert_eq!((until, pair.server.ended()), (None, None));
            assert!(stats.rejected_for(Rejection::TooManyFragments) > 1000);
        } else {
            assert_eq!(pair.server.ended(), Some(CloseReason::MessageTooLong));
            let until = until.unwrap().since(Time::ZERO).as_millis();
            assert!((10_000..10_100).contains(&until), "after {until} ms");
            assert!(stats.dropped_beyond_window > 5000);
        }
    }
}

#[test]
fn a_message_beyond_the_first_window_arrives_once_address_is_proved() {
    let mut pair = Pair::new();
    let probes = transmit(&mut pair.client, pair.now);
    assert_eq!(probes.len(), 1, "its question, which is lost");
    let message: Vec<u8> = (0..44_000_u32).map(|n| n as u8).collect();
    let segments = message.chunks(1000);
    let last = segments.len() as u8 - 1;
    let mut first_32 = Vec::new();
    for (sn, payload) in segments.clone().enumerate().take(32) {
        let header = Header {
            sn: sn as u32,
            una: 0,
            frg: last - sn as u8,
            ..push(payload)
        };
        first_32.push(datagram(header, payload));
    }
    for datagram in &first_32 {
        let packet = pair.pool.try_copy_from_slice(datagram).unwrap();
        pair.server.handle_datagram(pair.now, packet).unwrap();
    }
    let told = transmit(&mut pair.server, pair.now);
    let of_all = || told.iter().flat_map(|d| segments_of(d));
    assert!(!pair.server.is_validated());
    assert!(
        of_all().any(|header| header.una == 32 && header.wnd == 0),
        "it is closed"
    );
    let asked = of_all().find(|header| header.cmd == Command::AskWindow);
    let answer = Header {
        ts: asked.unwrap().ts,
        una: 0,
        frg: 1,
        ..header(Command::TellWindow)
    };
    let packet = pair
        .pool
        .try_copy_from_slice(&datagram(answer, b""))
        .unwrap();
    pair.server.handle_datagram(pair.now, packet).unwrap();
    assert!(pair.server.is_validated());
    let told = transmit(&mut pair.server, pair.now);
    assert!(
        told.iter()
            .flat_map(|d| segments_of(d))
            .any(|header| header.wnd >= 12),
        "at once"
    );
    for (sn, payload) in segments.enumerate().skip(32) {
        let header = Header {
            sn: sn as u32,
            una: 0,
            frg: last - sn as u8,
            ..push(payload)
        };
        let packet = pair
            .pool
            .try_copy_from_slice(&datagram(header, payload))
            .unwrap();
        pair.server.handle_datagram(pair.now, packet).unwrap();
    }
    assert_eq!(pair.server.recv().unwrap(), message[..]);
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
        let packet = pair
            .pool
            .try_copy_from_slice(&datagram(endless, b"x"))
            .unwrap();
        let _ = pair.server.handle_datagram(pair.now, packet);
    }
    let stats = pair.server.stats();
    assert!(stats.rejected_for(Rejection::TooManyFragments) >= 15);
    assert!(!pair.server.has_message());
}

/// A peer whose message can never be complete, because its fragments came in an order that hid this, is given up,
/// and its memory comes back.
#[test]
fn a_message_that_can_never_be_complete_ends_the_session() {
    let mut pair = Pair::with_config(SessionConfig::fast().window(32, 32));
    for sn in (0..32).step_by(2) {
        // The second fragment of two comes first.
        let endless = [(sn + 1, 20), (sn, 19)].map(|(sn, frg)| Header {
            sn,
            una: 0,
            frg,
            ..push(b"x")
        });
        let both = endless.map(|header| datagram(header, b"x")).concat();
        let packet = pair.pool.try_copy_from_slice(&both).unwrap();
        let _ = pair.server.handle_datagram(pair.now, packet);
    }
    assert_eq!(pair.server.ended(), Some(CloseReason::MessageTooLong));
    assert_eq!(
        (
            pair.pool.slab().stats().in_use(),
            pair.budget.reserved() > 0
        ),
        (0, true)
    );
    drop(pair.server);
    drop(pair.client);
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
    let packet = pair
        .pool
        .try_copy_from_slice(&datagram(probe, b""))
        .unwrap();
    pair.client.handle_datagram(pair.now, packet).unwrap();
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
