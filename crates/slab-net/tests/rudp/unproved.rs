//! What an address gets before it has proved that its datagrams come from there, and what proves it.

use crate::common::pair::{CONV, Pair, datagram, header, push, segments_of, transmit};
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header, segments};
use slab_net::rudp::{CloseReason, Rejection, Session, SessionConfig, Side, Time};
use std::time::Duration;

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
    pair.server_receives(&opening).unwrap();
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
        pair.server_receives(datagram).unwrap();
    }
    for _ in 0..30 {
        pair.server.send_slice(&[2; 90]).unwrap();
    }
    let sent = transmit(&mut pair.server, pair.now);
    let bytes: usize = sent.iter().map(Vec::len).sum();
    assert!(bytes > received && bytes <= 3 * received);
    assert!(!pair.server.is_validated());
    for datagram in sent {
        pair.client_receives(&datagram).unwrap();
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
        pair.server_receives(&datagram).unwrap();
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
    let taken = pair.server_receives(&datagram(guess, b""));
    assert_eq!(taken, Ok(()), "as far as is known it could be an echo");
    assert!(!pair.server.is_validated());
}

/// The echo of the first transmission proves the address, as does that of the last.
#[test]
fn an_ack_with_the_ts_of_a_transmission_proves_the_address() {
    for which in [0, usize::MAX] {
        let mut pair = Pair::new();
        pair.client.send_slice(&[1; 500]).unwrap();
        let opening = transmit(&mut pair.client, pair.now);
        pair.server_receives(&opening[0]).unwrap();
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
        let taken = pair.server_receives(&datagram(echo, b""));
        assert_eq!(taken, Ok(()));
        assert!(pair.server.is_validated());
    }
}

/// Nobody else has seen the token. Otherwise its datagrams would take memory that is not for unproved addresses.
#[test]
fn a_datagram_or_the_end_with_the_token_proves_the_address() {
    for (cmd, frg) in [(Command::Datagram, 0), (Command::Push, 255)] {
        let mut pair = Pair::new();
        let hello = Header {
            sn: 0,
            una: 0,
            ..push(&[1; 200])
        };
        let taken = pair.server_receives(&datagram(hello, &[1; 200]));
        assert_eq!(taken, Ok(()));
        let answer = transmit(&mut pair.server, pair.now).concat();
        let mut asked = segments_of(&answer).into_iter();
        let asked = asked.find(|header| header.cmd == Command::AskWindow);
        let token = asked.expect("it asks").ts;
        let shown = Header {
            cmd,
            frg,
            ts: token,
            una: 0,
            ..push(&[0; 4])
        };
        assert!(!pair.server.is_validated());
        let packet = datagram(shown, &token.to_le_bytes());
        let taken = pair.server_receives(&packet);
        assert_eq!(taken, Ok(()));
        assert!(pair.server.is_validated(), "{cmd:?}");
        assert!(pair.server.has_datagram() || pair.server.is_read_closed());
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
            pair.server_receives(&alone).unwrap();
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
            pair.client_receives(datagram).unwrap();
        }
        assert!(pair.client.recv().is_none());
        let echo = Header {
            sn: u32::MAX,
            ts: challenge[0].ts.wrapping_add(guessed),
            una: 0,
            ..header(Command::Ack)
        };
        pair.server_receives(&datagram(echo, b"")).unwrap();
        assert_eq!(pair.server.is_validated(), guessed == 0);
    }
}

/// KCP puts a WINS behind its acknowledgements in the header of the last one, with that one's `sn` and `ts`. If that
/// was of the challenge, the WINS carries our token.
#[test]
fn the_answers_of_another_implementation_do_not_pass_for_ours() {
    let mut pair = Pair::new();
    let hello = Header {
        sn: 0,
        una: 0,
        ..push(&[1; 100])
    };
    let taken = pair.server_receives(&datagram(hello, &[1; 100]));
    assert_eq!(taken, Ok(()));
    let sent = transmit(&mut pair.server, pair.now).concat();
    let mut flushed = Header {
        una: 0,
        ..header(Command::Ack)
    };
    let (mut answer, mut asked) = (Vec::new(), false);
    for header in segments_of(&sent) {
        asked |= header.cmd == Command::AskWindow;
        if header.cmd == Command::Push {
            (flushed.sn, flushed.ts) = (header.sn, header.ts);
            answer.extend(datagram(flushed, b""));
        }
    }
    assert!(asked && !answer.is_empty());
    flushed.cmd = Command::TellWindow;
    answer.extend(datagram(flushed, b""));
    assert_eq!(pair.server_receives(&answer), Ok(()));
    assert!(pair.server.is_validated());
    assert!(!pair.server.is_peer_ours());
    // Nor does it get what only an end of this library understands, once it has asked for our window.
    flushed.cmd = Command::AskWindow;
    let taken = pair.server_receives(&datagram(flushed, b""));
    assert_eq!(taken, Ok(()));
    pair.server.finish(pair.now);
    let sent = transmit(&mut pair.server, pair.now).concat();
    let sent = segments_of(&sent);
    assert!(
        sent.iter().all(|header| header.cmd != Command::Push),
        "{sent:?}"
    );
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
    pair.server_receives(&datagram(first, b"?")).unwrap();
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
    pair.server_receives(&datagram(echo, b"")).unwrap();
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
        pair.server_receives(bytes).unwrap();
        transmit(&mut pair.server, pair.now)
    };
    let opening: Vec<u8> = (0..17).flat_map(|sn| forged(sn, 0)).collect();
    let out: usize = take(&mut pair, &opening).iter().map(Vec::len).sum();
    // The application answers at once, with all that may be sent.
    assert!(pair.server.recv().is_some());
    let answer = vec![1; 3 * opening.len() - out - HEADER_BYTES];
    pair.server.send_slice(&answer).unwrap();
    assert_eq!(transmit(&mut pair.server, pair.now).len(), 1);

    // Then the peer is to be asked again, which may not be sent, so there is no timer for it. It sends something else,
    // which is to be acknowledged with the next answer, but the application reads on instead of answering.
    // It is given up after ten seconds.
    assert!(pair.server.poll_timeout().unwrap() > pair.now + Duration::from_secs(9));
    pair.now = pair.now + Duration::from_secs(1);
    pair.server.handle_timeout(pair.now);
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
        let _ = pair.server_receives(&datagram(forged, b"x"));
        assert_eq!(pair.server.recv().unwrap(), b"x"[..]);
        transmit(&mut pair.server, pair.now);
    }
    assert_eq!(pair.server.reserved_bytes(), reserved);
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
            pair.now = pair.now + Duration::from_millis(1);
            let _ = pair.server_receives(&forged);
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
        pair.server_receives(datagram).unwrap();
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
    pair.server_receives(&datagram(answer, b"")).unwrap();
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
        pair.server_receives(&datagram(header, payload)).unwrap();
    }
    assert_eq!(pair.server.recv().unwrap(), message[..]);
}

/// Somebody greeted each of them in the name of the other, and the first answer of one is lost, which would have said
/// that it is a server.
#[test]
fn two_servers_that_talk_to_each_other_notice_it() {
    let mut pair = Pair::new();
    let open = |random| {
        let (config, now) = (SessionConfig::fast(), Time::ZERO);
        let (pool, budget) = (&pair.pool, &pair.budget);
        Session::open(CONV, &config, Side::Server, pool, budget, random, now).unwrap()
    };
    let mut ends = [open(1 << 32), open(2 << 32)];
    let greeting = Header {
        sn: 0,
        una: 0,
        ..header(Command::AskWindow)
    };
    for _ in 0..6 {
        let packet = pair.pool.try_copy_from_slice(&datagram(greeting, b""));
        let taken = ends[0].handle_datagram(pair.now, packet.unwrap());
        assert_eq!(taken, Ok(()));
    }
    // The answer opens no session there; what the application sends does.
    assert!(!transmit(&mut ends[0], pair.now).is_empty());
    ends[0].send_slice(b"welcome").unwrap();
    let (mut echoed, mut lost) = (0, false);
    while pair.now < Time::from_micros(5_000_000) {
        for from in 0..2 {
            while let Some(message) = ends[from].recv() {
                echoed += 1;
                let _ = ends[from].send(message);
            }
            for datagram in transmit(&mut ends[from], pair.now) {
                let loses = from == 1 && !core::mem::replace(&mut lost, true);
                let packet = pair.pool.try_copy_from_slice(&datagram).unwrap();
                if !loses && let Err(why) = ends[1 - from].handle_datagram(pair.now, packet) {
                    panic!("{why}");
                }
            }
        }
        pair.now = pair.now + Duration::from_millis(10);
    }
    assert!(echoed < 100, "{echoed} messages, and {ends:?}");
    let ended = ends.each_ref().map(Session::ended);
    assert!(ended.contains(&Some(CloseReason::Reset)), "{ended:?}");
}

/// Where the idle time-out is shorter than what else a peer with an unproved address is given, it holds for such peers,
/// too.
#[test]
fn a_silent_peer_with_an_unproved_address_is_given_up_after_the_shorter_of_two_times() {
    let [short, long] = [5, 20].map(Duration::from_secs);
    for (unproved, idle, answered) in [
        (long, short, false),
        (short, long, false),
        (long, short, true),
    ] {
        let config = SessionConfig::fast().keepalive(Duration::from_secs(1));
        let config = config.idle_timeout(idle).unproved_timeout(unproved);
        let mut pair = Pair::with_config(config);
        let opening = datagram(
            Header {
                sn: 0,
                una: 0,
                ..header(Command::AskWindow)
            },
            b"",
        );
        pair.server_receives(&opening).unwrap();
        // Otherwise nothing waits for an acknowledgement.
        if answered {
            pair.server.send_slice(b"answer").unwrap();
        }
        let begun = pair.now;
        while let Some(at) = pair.server.poll_timeout() {
            assert!(pair.now <= at);
            pair.now = at;
            transmit(&mut pair.server, pair.now);
        }
        assert!(!pair.server.is_validated());
        assert_eq!(pair.server.ended(), Some(CloseReason::TimedOut));
        assert_eq!(pair.now.since(begun), short);
    }
}
