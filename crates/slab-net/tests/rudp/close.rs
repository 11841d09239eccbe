//! How sessions end: by closing, by giving up, and in time.

use crate::common::line::{Line, ONE_WAY, STEP, from_a_forged_address};
use crate::common::pair::{bare_header, datagram};
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header};
use slab_net::rudp::{CloseReason, MemoryBudget, Rejection, Session, SessionConfig, Side, Time};
use slab_net::{Packet, PacketPool};
use std::time::Duration;

/// An end that closes no longer receives, and so does not know how far the other end is.
#[test]
fn closing_while_the_peer_sends_takes_only_a_few_round_trips() {
    for closing in 0..2 {
        let mut line = Line::new();
        let send = |ends: &mut [Session; 2]| {
            let _ = ends[1 - closing].send_slice(&[7; 3000]);
        };
        line.run(ONE_WAY * 6, send);
        assert!(!line.ends[1 - closing].is_sent(), "there is data under way");
        let now = line.now;
        line.ends[closing].close(now);
        line.run(ONE_WAY * 6, send);
        let ended = line.ends.each_ref().map(Session::ended);
        assert_eq!(ended[closing], Some(CloseReason::Closed));
        assert_eq!(ended[1 - closing], Some(CloseReason::ClosedByPeer));
        for end in &line.ends {
            assert_eq!(end.stats().rejected_for(Rejection::ForgedClose), 0);
        }
    }
}

/// Neither end takes what the other still has to send, so nobody needs to wait for the linger time.
fn simultaneous_close_with_unsent_data() -> Line {
    let mut line = Line::new();
    let send = |ends: &mut [Session; 2]| {
        for end in ends {
            let _ = end.send_slice(&[7; 30_000]);
        }
    };
    line.run(ONE_WAY * 6, send);
    let now = line.now;
    for end in &mut line.ends {
        assert!(!end.is_sent(), "there is data under way");
        end.close(now);
    }
    line
}

#[test]
fn a_simultaneous_close_with_unsent_data_ends_in_a_few_round_trips() {
    let mut line = simultaneous_close_with_unsent_data();
    line.run(ONE_WAY * 6, |_| {});
    for end in &line.ends {
        assert_eq!(end.ended(), Some(CloseReason::ClosedByPeer));
        assert_eq!(end.stats().rejected_datagrams(), 0);
    }
    // The answers come to an end.
    let sent = line.ends.each_ref().map(|end| end.stats().sent_datagrams);
    line.run(ONE_WAY * 10, |_| {});
    let later = line.ends.each_ref().map(|end| end.stats().sent_datagrams);
    assert_eq!(sent, later);
}

#[test]
fn a_simultaneous_close_survives_the_loss_of_its_notices() {
    let mut line = simultaneous_close_with_unsent_data();
    line.run(2 * STEP, |_| {});
    line.in_transit = Default::default();
    line.run(Duration::from_secs(2), |_| {});
    for end in &line.ends {
        assert_eq!(end.ended(), Some(CloseReason::ClosedByPeer));
    }
}

/// Once an end has ended and its application has let go of it, nobody answers there any more.
#[test]
fn two_ends_that_close_at_once_need_only_one_of_their_notices() {
    let mut line = Line::new();
    let now = line.now;
    for end in &mut line.ends {
        end.close(now);
    }
    line.run(2 * STEP, |_| {});
    let lost = line.in_transit[0].drain(..).count();
    assert_eq!((lost, line.in_transit[1].len()), (1, 1));
    for _ in 0..100 {
        if line.ends[1].ended().is_some() {
            line.in_transit[1].clear();
        }
        line.run(STEP, |_| {});
    }
    for end in &line.ends {
        assert_eq!(end.ended(), Some(CloseReason::Closed));
    }
}

/// As both ends of a connection do in HTTP: each shuts its stream down, and drops it.
#[test]
fn two_ends_that_finish_and_close_at_once_need_no_second_answer() {
    for delay in 0..=2 * ONE_WAY.as_millis() as u32 {
        let mut line = Line::new();
        let now = line.now;
        line.ends[0].finish(now);
        line.run(STEP * delay, |_| {});
        let now = line.now;
        line.ends[0].close(now);
        for _ in 0..100 {
            for (end, to_it) in line.ends.iter().zip(&mut line.in_transit) {
                if end.ended().is_some() {
                    to_it.clear();
                }
            }
            let has_read_all = line.ends[1].is_read_closed();
            let now = line.now;
            if has_read_all {
                line.ends[1].finish(now);
            }
            // The mark of the end is under way before the end closes.
            line.run(STEP, |_| {});
            let now = line.now;
            if has_read_all {
                line.ends[1].close(now);
            }
        }
        let [client, server] = line.ends.each_ref().map(Session::ended);
        assert_eq!(client, Some(CloseReason::Closed), "{delay} ms");
        assert!(server.is_some(), "{delay} ms");
    }
}

/// The network may repeat a notice, and so does its sender if the answer takes long.
#[test]
fn ends_that_have_ended_do_not_answer_each_other_for_ever() {
    for both in [false, true] {
        let mut line = Line::new();
        let now = line.now;
        line.ends[0].close(now);
        if both {
            line.ends[1].close(now);
        }
        line.run(2 * STEP, |_| {});
        for way in &mut line.in_transit {
            let notice = way.front().cloned();
            way.extend(notice.map(|(at, notice)| (at + 5 * STEP, notice)));
        }
        line.run(ONE_WAY * 6, |_| {});
        assert!(line.ends.iter().all(|end| end.ended().is_some()));
        let sent = line.ends.each_ref().map(|end| end.stats().sent_datagrams);
        line.run(ONE_WAY * 10, |_| {});
        let later = line.ends.each_ref().map(|end| end.stats().sent_datagrams);
        assert_eq!(sent, later);
    }
}

/// Only the mark of the end was still under way, which says nothing that the peer's close does not. The peer repeats
/// its notice if the answer takes long.
#[test]
fn a_close_that_is_said_twice_does_not_make_what_was_delivered_undelivered() {
    let mut line = Line::new();
    line.ends[1].send_slice(b"all").unwrap();
    line.run(ONE_WAY * 6, |_| {});
    let now = line.now;
    line.ends[0].close(now);
    line.ends[1].finish(now);
    line.run(2 * STEP, |_| {});
    let (at, notice) = line.in_transit[1].front().cloned().expect("a notice");
    assert_eq!(Header::decode(&notice).unwrap().cmd, Command::Close);
    line.in_transit[1].push_back((at + 5 * STEP, notice));
    line.run(ONE_WAY * 6, |_| {});
    assert_eq!(line.ends[1].ended(), Some(CloseReason::ClosedByPeer));
    assert!(line.ends[1].is_sent());
}

/// The end that is still open is not closed by this: it learns of the close once it has everything.
#[test]
fn an_end_that_closed_still_delivers_what_it_has_queued() {
    let mut line = Line::new();
    line.run(ONE_WAY * 6, |ends| {
        let _ = ends[1].send_slice(&[7; 3000]);
    });
    let unread = line.ends[0].held_bytes();
    for _ in 0..20 {
        line.ends[0].send_slice(&[8; 3000]).unwrap();
    }
    let (now, held) = (line.now, line.ends[0].held_bytes());
    line.ends[0].close(now);
    assert!(unread > 0);
    assert_eq!(
        line.ends[0].held_bytes(),
        held - unread,
        "nobody will read it"
    );
    let mut got = 0;
    line.run(ONE_WAY * 20, |ends| {
        let _ = ends[1].send_slice(&[7; 3000]);
        while ends[1].recv().is_some() {
            got += 1;
        }
    });
    assert_eq!(got, 20);
    let ended = line.ends.each_ref().map(Session::ended);
    assert_eq!(
        ended,
        [Some(CloseReason::Closed), Some(CloseReason::ClosedByPeer)]
    );
    assert!(
        line.ends
            .iter()
            .all(|end| end.stats().rejected_datagrams() == 0)
    );
}

/// An application that waits for the rest learns that it will not come.
#[test]
fn a_peer_is_reset_when_the_linger_time_expires() {
    let mut line = Line::new();
    while line.ends[0].send_slice(&[7; 3000]).is_ok() {}
    line.run(ONE_WAY * 6, |_| {});
    line.ends[0].close(line.now);
    // The application does not read.
    line.run(Duration::from_secs(11), |_| {});
    let ended = line.ends.each_ref().map(Session::ended);
    assert_eq!(
        ended,
        [Some(CloseReason::LingerExpired), Some(CloseReason::Reset)]
    );
}

#[test]
fn an_abort_resets_the_peer_also_with_data_in_flight() {
    for aborting in 0..2 {
        let mut line = Line::new();
        line.run(ONE_WAY * 6, |ends| {
            let _ = ends[0].send_slice(&[7; 3000]);
            let _ = ends[1].send_slice(&[7; 3000]);
        });
        line.ends[aborting].abort();
        assert_eq!(line.ends[aborting].ended(), Some(CloseReason::Aborted));
        line.run(ONE_WAY + 2 * STEP, |_| {});
        assert_eq!(line.ends[1 - aborting].ended(), Some(CloseReason::Reset));
        // Nobody answers a reset.
        let sent = line.ends.each_ref().map(|end| end.stats().sent_datagrams);
        line.run(ONE_WAY * 10, |_| {});
        assert_eq!(
            line.ends.each_ref().map(|end| end.stats().sent_datagrams),
            sent
        );
    }
}

/// A server that rejects a client by its first message. The answer is shorter than the question, whoever sent that.
#[test]
fn an_abort_before_the_peer_has_proved_its_address_is_told_at_once() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let (budget, config) = (MemoryBudget::new(8 << 20), SessionConfig::fast());
    let [mut client, mut server] = [Side::Client, Side::Server].map(|side| {
        let random = 7 << 32;
        Session::open(3, &config, side, &pool, &budget, random, Time::ZERO).unwrap()
    });
    client.send_slice(b"hello").unwrap();
    let mut scratch = [0; 4096];
    let now = Time::ZERO;
    let hello = client.poll_transmit(now, &mut scratch, 1).unwrap();
    let hello = Packet::from(hello.contents().to_vec());
    let asked = hello.len();
    server.handle_datagram(now, hello).unwrap();
    assert_eq!(server.recv().unwrap(), b"hello"[..]);
    server.abort();
    let told = server.poll_transmit(now, &mut scratch, 1).unwrap();
    let told = Packet::from(told.contents().to_vec());
    assert!(told.len() <= asked, "{} for {asked}", told.len());
    assert!(server.poll_transmit(now, &mut scratch, 1).is_none());
    client.handle_datagram(now, told).unwrap();
    assert_eq!(client.ended(), Some(CloseReason::Reset));
}

/// It would go on for as long as it believes in silence, although each of its datagrams arrives.
#[test]
fn a_peer_that_missed_the_reset_is_told_again_when_it_says_something() {
    for aborting in 0..2 {
        let mut line = Line::new();
        line.ends[aborting].abort();
        line.run(2 * STEP, |_| {});
        let lost = line.in_transit[1 - aborting].drain(..).count();
        assert_eq!(lost, 1, "the reset");
        line.run(Duration::from_secs(5), |_| {});
        assert_eq!(line.ends[1 - aborting].ended(), None);
        let sent = line.ends[aborting].stats().sent_datagrams;
        line.ends[1 - aborting]
            .send_slice(b"are you there?")
            .unwrap();
        line.run(ONE_WAY * 3, |_| {});
        assert_eq!(line.ends[1 - aborting].ended(), Some(CloseReason::Reset));
        assert_eq!(line.ends[aborting].stats().sent_datagrams, sent + 1);
    }
}

/// Its machine slept, for example, and its clock with it.
#[test]
fn a_peer_that_was_given_up_for_silence_is_told_when_it_says_something() {
    for closed in [false, true] {
        let mut line = Line::new();
        if closed {
            line.ends[0].close(line.now);
        }
        let [end, peer] = &mut line.ends;
        let mut scratch = [0; 4096];
        let mut now = line.now;
        while end.ended().is_none() {
            while end.poll_transmit(now, &mut scratch, 1).is_some() {}
            now = end.poll_timeout().unwrap_or(now);
            end.handle_timeout(now);
        }
        while end.poll_transmit(now, &mut scratch, 1).is_some() {}
        peer.send_slice(b"good morning").unwrap();
        for _ in 0..2 {
            while let Some(out) = peer.poll_transmit(line.now, &mut scratch, 1) {
                let datagram = Packet::from(out.contents().to_vec());
                end.handle_datagram(now, datagram).unwrap();
            }
            while let Some(out) = end.poll_transmit(now, &mut scratch, 1) {
                let datagram = Packet::from(out.contents().to_vec());
                peer.handle_datagram(line.now, datagram).unwrap();
            }
        }
        let ended = line.ends.each_ref().map(Session::ended);
        let told = match closed {
            false => [CloseReason::TimedOut, CloseReason::Reset],
            true => [CloseReason::Closed, CloseReason::ClosedByPeer],
        };
        assert_eq!(ended, told.map(Some));
    }
}

/// A close that the peer was told of ends as closed, however silent the peer was before.
#[test]
fn a_delivered_close_does_not_time_out() {
    let mut line = Line::new();
    let client = &mut line.ends[0];
    let mut scratch = [0; 4096];
    let silent_for = |now: Time| now.since(line.now);
    let mut now = line.now + Duration::from_secs(59);
    client.close(now);
    while client.ended().is_none() {
        while client.poll_transmit(now, &mut scratch, 1).is_some() {}
        now = client.poll_timeout().unwrap();
        client.handle_timeout(now);
    }
    assert_eq!(client.ended(), Some(CloseReason::Closed));
    assert!(silent_for(now) < Duration::from_secs(65), "for silence");
}

/// Nor does one whose peer cannot be told, and an abort changes nothing.
#[test]
fn a_delivered_close_ends_as_closed_whatever_the_peer_runs() {
    for abort in [false, true] {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let (budget, config) = (MemoryBudget::new(4 << 20), SessionConfig::fast());
        let mut now = Time::ZERO;
        let client = Session::open(3, &config, Side::Client, &pool, &budget, 7 << 32, now);
        let mut client = client.unwrap();
        let of_another_implementation = from_a_forged_address(Command::TellWindow, 0, 0);
        client
            .handle_datagram(now, of_another_implementation)
            .unwrap();

        now = now + Duration::from_millis(59_900);
        client.close(now);
        assert_eq!((client.is_sent(), client.ended()), (true, None));
        if abort {
            client.abort();
        }
        client.handle_timeout(now + Duration::from_millis(100));
        client.handle_timeout(now + Duration::from_secs(1));
        assert_eq!(client.ended(), Some(CloseReason::Closed));
    }
}

/// Whatever comes, and however much: what is sent again comes now and then, and is shorter than what it answers.
#[test]
fn what_an_ended_session_sends_again_is_limited() {
    let mut line = Line::new();
    line.ends[1].send_slice(&[7; 100]).unwrap();
    let mut scratch = [0; 4096];
    let out = line.ends[1].poll_transmit(line.now, &mut scratch, 1);
    let late = out.unwrap().contents().to_vec();
    line.ends[0].abort();
    let out = line.ends[0].poll_transmit(line.now, &mut scratch, 1);
    let reset = out.unwrap().contents().to_vec();
    let answers = |line: &mut Line, datagram: &[u8]| {
        let mut answers = 0;
        for _ in 0..1000 {
            line.now = line.now + STEP;
            let datagram = Packet::from(datagram.to_vec());
            let _ = line.ends[0].handle_datagram(line.now, datagram);
            let mut scratch = [0; 4096];
            while let Some(out) = line.ends[0].poll_transmit(line.now, &mut scratch, 1) {
                assert_eq!(out.contents(), reset);
                answers += 1;
            }
        }
        answers
    };
    assert!((4..=5).contains(&answers(&mut line, &late)));
    // Both may have reset the session at once: neither answers that.
    let mut others = reset.clone();
    others[8..12].copy_from_slice(&0x1234_5678_u32.to_le_bytes());
    assert_eq!(line.ends[0].stats().rejected_datagrams(), 0);
    assert_eq!(answers(&mut line, &others), 0);
    assert_eq!(line.ends[0].stats().rejected_datagrams(), 0);
}

/// A peer that has restarted, with a session of the same conversation, would acknowledge what comes early in it and
/// wait for ever for what came before: nobody would read it, and nobody would know.
#[test]
fn a_restarted_peer_is_not_mistaken_for_the_one_before() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let mut line = Line::with_pool(&pool);
    line.restart_server(&pool, SessionConfig::fast());
    line.ends[0].send_slice(b"and more").unwrap();
    line.run(ONE_WAY * 10, |_| {});
    assert!(!line.ends[1].has_message());
    assert_eq!(line.ends[0].ended(), Some(CloseReason::Reset));
}

/// It lacks what only the one before had acknowledged, though everything is acknowledged by one of the two.
#[test]
fn what_a_peer_had_before_it_restarted_does_not_count_as_delivered() {
    for end in [Session::close, Session::finish] {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let mut line = Line::unused(&pool);
        for message in [[1; 1376], [2; 1376]] {
            line.ends[0].send_slice(&message).unwrap();
        }
        line.run(STEP, |_| {});
        line.in_transit[1].pop_front().expect("the first is lost");
        line.run(ONE_WAY * 2 + STEP, |_| {});
        line.in_transit[1].clear();
        line.restart_server(&pool, SessionConfig::fast());
        end(&mut line.ends[0], line.now);
        line.run(ONE_WAY * 20, |_| {});
        assert_eq!(line.ends[1].recv().unwrap(), [1; 1376][..]);
        assert!(!line.ends[1].has_message());
        assert_eq!(line.ends[0].ended(), Some(CloseReason::Reset));
        assert!(!line.ends[0].is_sent());
    }
}

/// As above, and the window of the one that began anew ends with what only the one before has.
#[test]
fn no_end_waits_for_room_behind_what_its_peer_has_lost() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let mut line = Line::unused(&pool);
    for message in 0..5 {
        line.ends[0].send_slice(&[message; 1376]).unwrap();
    }
    line.run(STEP, |_| {});
    line.in_transit[1].pop_front().expect("the first is lost");
    line.run(ONE_WAY * 2 + STEP, |_| {});
    line.in_transit = Default::default();
    line.restart_server(&pool, SessionConfig::fast().window(32, 2));
    // More than the window takes, as far as the peer has said.
    while line.ends[0].send_slice(&[7; 1376]).is_ok() {}
    line.run(ONE_WAY * 100, |_| {});
    assert_eq!(line.ends[0].ended(), Some(CloseReason::Reset));
}

/// A server that requires cookies, and has begun anew, asks for one again. It is there, but not for this session.
#[test]
fn who_does_not_know_the_session_does_not_keep_it_alive() {
    let mut line = Line::new();
    let idle = Duration::from_secs(60);
    line.ends[1].abort();
    line.run(STEP, |_| {});
    line.in_transit = Default::default();
    let last_heard = line.now;
    while line.ends[0].ended().is_none() {
        line.run(STEP, |_| {});
        for (at, datagram) in std::mem::take(&mut line.in_transit[1]) {
            let asked = Header::decode(&datagram).unwrap();
            assert_eq!(asked.cmd, Command::AskWindow);
            let mut cookie = from_a_forged_address(Command::Cookie, 0, asked.ts).to_vec();
            cookie[20..HEADER_BYTES].copy_from_slice(&8_u32.to_le_bytes());
            cookie.extend_from_slice(&7_u64.to_le_bytes());
            line.in_transit[0].push_back((at + ONE_WAY, Packet::from(cookie)));
        }
        assert!(line.now.since(last_heard) < idle * 2, "it lives for ever");
    }
    assert_eq!(line.ends[0].ended(), Some(CloseReason::TimedOut));
    let stats = line.ends[0].stats();
    assert!(
        stats.rejected_datagrams() == 0 && stats.probes > 2,
        "{stats:?}"
    );
}

#[test]
fn a_reset_without_the_token_is_refused() {
    let mut line = Line::new();
    for ts in [0, 1, 0x8000_0000] {
        let header = Header {
            frg: 1,
            wnd: 32,
            ts,
            ..bare_header(3, Command::Close)
        };
        let forged = datagram(header, b"");
        let refused = line.ends[0].handle_datagram(line.now, forged.into());
        assert_eq!(refused, Err(Rejection::ForgedClose));
    }
    assert_eq!(line.ends[0].ended(), None);
}

/// A question every nine seconds is a sign of life, but no proof of an address.
#[test]
fn a_half_open_session_times_out_although_its_peer_sends_wasks() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(16 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut server = Session::open(3, &config, Side::Server, &pool, &budget, 5, now).unwrap();
    let push = from_a_forged_address(Command::Push, 0, 1);
    server.handle_datagram(now, push).unwrap();
    server.send_slice(b"answer").unwrap();
    let mut scratch = [0; 4096];
    for second in 0..30_u32 {
        if server.poll_timeout().is_some_and(|at| at <= now) {
            server.handle_timeout(now);
        }
        if second % 9 == 0 {
            let ask = from_a_forged_address(Command::AskWindow, 0, 77);
            let _ = server.handle_datagram(now, ask);
        }
        while server.poll_transmit(now, &mut scratch, 1).is_some() {}
        now = now + Duration::from_secs(1);
    }
    assert_eq!(server.ended(), Some(CloseReason::TimedOut));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// A peer that only sends is heard for as long as it does, whether it gives the proof that it is asked for or not.
#[test]
fn an_unproved_peer_that_is_sent_nothing_may_go_on_sending() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(16 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut server = Session::open(3, &config, Side::Server, &pool, &budget, 5, now).unwrap();
    let mut scratch = [0; 4096];
    for second in 0..60_u32 {
        if server.poll_timeout().is_some_and(|at| at <= now) {
            server.handle_timeout(now);
        }
        if second % 9 == 0 {
            let ask = from_a_forged_address(Command::AskWindow, 0, 0);
            server.handle_datagram(now, ask).unwrap();
        }
        while server.poll_transmit(now, &mut scratch, 1).is_some() {}
        now = now + Duration::from_secs(1);
    }
    assert_eq!((server.ended(), server.is_validated()), (None, false));
}

/// `close` has said that all was delivered. The peer has acknowledged everything, but does not know of the close.
#[test]
fn an_abort_after_a_delivered_close_discards_nothing_at_the_peer() {
    let mut line = Line::new();
    line.ends[0].send_slice(b"all of it").unwrap();
    line.ends[0].close(line.now);
    while !line.ends[0].is_sent() {
        line.run(STEP, |_| {});
    }
    // The close notice is lost.
    line.in_transit = Default::default();
    line.ends[0].abort();
    line.run(ONE_WAY * 6, |_| {});
    let ended = line.ends.each_ref().map(Session::ended);
    assert_eq!(
        ended,
        [Some(CloseReason::Closed), Some(CloseReason::ClosedByPeer)]
    );
    assert_eq!(line.ends[1].recv().unwrap(), b"all of it"[..]);
}

/// Even if the application keeps the session, for example while it copies elsewhere.
#[test]
fn the_window_is_released_once_the_peer_closed_and_all_is_read() {
    let mut line = Line::new();
    let reserved = line.ends[1].reserved_bytes();
    for n in 0..3 {
        line.ends[0].send_slice(&[n; 3000]).unwrap();
    }
    line.ends[0].close(line.now);
    line.run(ONE_WAY * 6, |_| {});
    assert_eq!(line.ends[1].ended(), Some(CloseReason::ClosedByPeer));
    for n in 0..3 {
        assert!(line.ends[1].reserved_bytes() >= reserved);
        assert_eq!(line.ends[1].recv().unwrap(), [n; 3000][..]);
    }
    assert_eq!(line.ends[1].reserved_bytes(), 0);
    assert!(line.ends[1].recv().is_none() && line.ends[1].is_read_closed());
}
