//! How sessions end: by closing, by giving up, and in time.

use slab_net::rudp::wire::{Command, HEADER_BYTES, Header, segments};
use slab_net::rudp::{
    CloseReason, MemoryBudget, Rejection, SendError, Session, SessionConfig, Side, Time,
};
use slab_net::{Packet, PacketPool};
use std::collections::VecDeque;
use std::time::Duration;

const ONE_WAY: Duration = Duration::from_millis(10);
const STEP: Duration = Duration::from_millis(1);

/// Two ends, and what is on its way to each.
struct Line {
    now: Time,
    ends: [Session; 2],
    in_transit: [VecDeque<(Time, Packet)>; 2],
}

impl Line {
    fn new() -> Self {
        Self::with_pool(&PacketPool::builder().max_memory(16 << 20).build().unwrap())
    }

    fn with_pool(pool: &PacketPool) -> Self {
        let budget = MemoryBudget::new(16 << 20);
        let config = SessionConfig::fast();
        let open = |side| {
            let random = 0x1234_5678_9abc_def0;
            Session::open(3, &config, side, pool, &budget, random, Time::ZERO).unwrap()
        };
        let mut line = Self {
            now: Time::ZERO,
            ends: [open(Side::Client), open(Side::Server)],
            in_transit: Default::default(),
        };
        line.ends[0].send_slice(b"hello").unwrap();
        line.run(ONE_WAY * 10, |_| {});
        assert_eq!(line.ends[1].recv().unwrap(), b"hello"[..]);
        assert!(line.ends.iter().all(Session::is_peer_ours));
        line
    }

    fn run(&mut self, time: Duration, mut each: impl FnMut(&mut [Session; 2])) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.now + STEP;
            let now = self.now;
            each(&mut self.ends);
            for end in 0..2 {
                let arrived =
                    |way: &VecDeque<(Time, Packet)>| way.front().is_some_and(|w| w.0 <= now);
                while arrived(&self.in_transit[end]) {
                    let (_, datagram) = self.in_transit[end].pop_front().unwrap();
                    let _ = self.ends[end].handle_datagram(now, datagram);
                }
                let session = &mut self.ends[end];
                if session.poll_timeout().is_some_and(|at| at <= now) {
                    session.handle_timeout(now);
                }
                let mut scratch = [0; 4096];
                while let Some(out) = session.poll_transmit(now, &mut scratch, 1) {
                    let datagram = Packet::from(out.contents().to_vec());
                    self.in_transit[1 - end].push_back((now + ONE_WAY, datagram));
                }
            }
        }
    }
}

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

/// The end that is still open is not closed by this: it learns of the close once it has everything.
#[test]
fn an_end_that_closed_still_delivers_what_it_has_queued() {
    let mut line = Line::new();
    line.run(ONE_WAY * 6, |ends| {
        let _ = ends[1].send_slice(&[7; 3000]);
    });
    for _ in 0..20 {
        line.ends[0].send_slice(&[8; 3000]).unwrap();
    }
    let now = line.now;
    line.ends[0].close(now);
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

/// Each end in turn, also if the segment that says so is lost at first.
#[test]
fn a_finished_end_still_receives_and_its_peer_sees_the_end() {
    for (finishing, lost) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut line = Line::new();
        line.ends[finishing].send_slice(&[7; 3000]).unwrap();
        line.ends[finishing].finish(line.now);
        assert_eq!(
            line.ends[finishing].send_slice(b"more"),
            Err(SendError::Closed(CloseReason::Closed))
        );
        if lost {
            line.run(ONE_WAY / 2, |_| {});
            line.in_transit = Default::default();
        }
        line.run(Duration::from_secs(1), |_| {});
        let [finished, other] = [finishing, 1 - finishing];
        assert!(line.ends[finished].is_sent());
        assert!(!line.ends[finished].is_read_closed());
        assert!(line.ends[other].is_read_closed() && line.ends[other].has_bytes());
        assert_eq!(line.ends[other].recv().unwrap(), [7; 3000][..]);
        assert!(line.ends[other].recv().is_none() && !line.ends[other].has_bytes());

        // Then the other end, after more than fits a window.
        let mut sent = 0;
        let mut got = 0;
        line.run(Duration::from_secs(2), |ends| {
            while sent < 400 && ends[other].send_slice(&[sent as u8; 2000]).is_ok() {
                sent += 1;
            }
            while let Some(message) = ends[finished].recv() {
                assert_eq!(message, [got as u8; 2000][..]);
                got += 1;
            }
        });
        assert_eq!(got, 400);
        line.ends[other].finish(line.now);
        line.run(ONE_WAY * 6, |_| {});
        assert!(line.ends.iter().all(|end| end.is_read_closed()
            && end.is_sent()
            && end.ended().is_none()
            && end.stats().rejected_datagrams() == 0));

        line.ends[other].close(line.now);
        line.run(ONE_WAY * 6, |_| {});
        let ended = line.ends.each_ref().map(Session::ended);
        assert_eq!(ended[other], Some(CloseReason::Closed));
        assert_eq!(ended[finished], Some(CloseReason::ClosedByPeer));
    }
}

/// A peer that answers as KCP does, and counts what it would not understand.
#[test]
fn finish_closes_if_the_peer_is_another_implementation() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(16 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut client = Session::open(3, &config, Side::Client, &pool, &budget, 5, now).unwrap();
    client.send_slice(b"hello").unwrap();
    client.finish(now);
    assert!(!client.is_read_closed(), "the peer is not known");
    let mut scratch = [0; 4096];
    let mut seen = Vec::new();
    while client.ended().is_none() {
        assert!(now < Time::ZERO + Duration::from_secs(30));
        now = now + STEP;
        if client.poll_timeout().is_some_and(|at| at <= now) {
            client.handle_timeout(now);
        }
        let mut answers = Vec::new();
        while let Some(out) = client.poll_transmit(now, &mut scratch, 1) {
            for segment in segments(out.contents()) {
                let (header, _) = segment.unwrap();
                seen.push(header.cmd);
                answers.push(match header.cmd {
                    Command::Push => from_a_forged_address(Command::Ack, 1, header.ts),
                    Command::AskWindow => from_a_forged_address(Command::TellWindow, 1, 0),
                    other => panic!("{other:?}"),
                });
            }
        }
        for answer in answers {
            client.handle_datagram(now, answer).unwrap();
        }
    }
    assert_eq!(client.ended(), Some(CloseReason::Closed));
    assert_eq!(seen.iter().filter(|cmd| **cmd == Command::Push).count(), 1);
}

#[test]
fn the_end_mark_is_sent_once_there_is_memory_for_it() {
    let builder = PacketPool::builder().max_memory(1 << 20);
    let pool = builder.max_heap_memory(0).build().unwrap();
    let mut line = Line::with_pool(&pool);
    let others: Vec<_> = core::iter::repeat_with(|| pool.try_alloc(24))
        .map_while(Result::ok)
        .collect();
    line.ends[0].finish(line.now);
    line.run(ONE_WAY * 10, |_| {});
    assert!(!line.ends[1].is_read_closed());
    drop(others);
    line.run(Duration::from_secs(2), |_| {});
    assert!(line.ends[1].is_read_closed());
}

/// Nobody may ever read the datagrams that have taken the last of the budget, and nobody calls again to finish.
#[test]
fn the_end_mark_does_not_wait_for_the_budget() {
    let mut line = Line::new();
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    // Room for the receiver's window, and one datagram beside it.
    let budgets = [1 << 20, 4 * 1536 * 5 / 4 + 100].map(MemoryBudget::new);
    let config = SessionConfig::fast().window(4, 4);
    line.ends = [(Side::Client, &budgets[0]), (Side::Server, &budgets[1])].map(|(side, budget)| {
        Session::open(3, &config, side, &pool, budget, 7 << 32, line.now).unwrap()
    });
    line.ends[0].send_slice(b"hello").unwrap();
    line.run(ONE_WAY * 10, |_| {});
    for _ in 0..2 {
        let datagram = pool.try_copy_from_slice(&[1; 60]).unwrap();
        line.ends[0].send_datagram(datagram).unwrap();
        line.run(ONE_WAY * 10, |_| {});
    }
    assert_eq!(
        line.ends[1].stats().dropped_unreliable,
        1,
        "nothing is left"
    );
    line.ends[1].finish(line.now);
    line.run(ONE_WAY * 10, |_| {});
    assert!(line.ends[0].is_read_closed());
    assert!(line.ends[1].has_datagram() && line.ends[1].is_sent());
}

/// The mark is accepted only from a peer that knows our token, and nothing is accepted behind it.
#[test]
fn an_end_mark_cannot_be_forged_and_nothing_follows_it() {
    let mark = |sn, payload: &[u8]| {
        let header = Header {
            conv: 3,
            cmd: Command::Push,
            frg: 255,
            wnd: 32,
            ts: 9,
            sn,
            una: 0,
            len: payload.len() as u32,
        };
        let mut datagram = vec![0; HEADER_BYTES];
        header.encode(&mut datagram);
        datagram.extend_from_slice(payload);
        Packet::from(datagram)
    };
    // The upper half of the random number that `Line` gives both ends.
    let token = 0x1234_5678_u32.to_le_bytes();
    let mut line = Line::new();
    let server = &mut line.ends[1];
    for forged in [b"".as_slice(), b"x", &[0; 4], &[token, token].concat()] {
        let refused = server.handle_datagram(line.now, mark(1, forged));
        assert_eq!(refused, Err(Rejection::ForgedEnd));
    }
    assert!(!server.is_read_closed());
    server.handle_datagram(line.now, mark(1, &token)).unwrap();
    assert!(server.is_read_closed());
    for sn in [1, 2, 3] {
        server.handle_datagram(line.now, mark(sn, &token)).unwrap();
    }
    let stats = server.stats();
    assert_eq!((stats.duplicates, stats.dropped_beyond_window), (1, 2));
    assert!(server.recv().is_none() && server.read().is_none());
}

/// A question in the peer's name carries another token than the peer's own.
#[test]
fn a_forged_wask_delays_the_end_by_only_a_few_time_outs() {
    for with_data in [false, true] {
        let mut line = Line::new();
        let forged = from_a_forged_address(Command::AskWindow, 0, 0xbad);
        line.ends[1].handle_datagram(line.now, forged).unwrap();
        if with_data {
            line.ends[1].send_slice(b"answer").unwrap();
        }
        line.ends[1].finish(line.now);
        line.run(Duration::from_secs(2), |_| {});
        assert!(line.ends[0].is_read_closed());
        assert_eq!(line.ends[0].recv().is_some(), with_data);
        assert!(line.ends[1].is_sent());
        assert!(line.ends[0].stats().rejected_for(Rejection::ForgedEnd) > 0);
        // The same goes for closing.
        let forged = from_a_forged_address(Command::AskWindow, 0, 0xbad);
        line.ends[1].handle_datagram(line.now, forged).unwrap();
        line.ends[1].close(line.now);
        line.run(Duration::from_secs(2), |_| {});
        let ended = line.ends.each_ref().map(Session::ended);
        assert_eq!(
            ended,
            [Some(CloseReason::ClosedByPeer), Some(CloseReason::Closed)]
        );
    }
}

/// A forged answer, like that of an implementation that would not understand, comes before the peer's.
#[test]
fn a_forged_wins_does_not_turn_a_finish_into_a_close() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(16 << 20);
    let config = SessionConfig::fast();
    let open = |side| Session::open(3, &config, side, &pool, &budget, 5 << 32, Time::ZERO).unwrap();
    let mut line = Line {
        now: Time::ZERO,
        ends: [open(Side::Client), open(Side::Server)],
        in_transit: Default::default(),
    };
    line.ends[0].send_slice(b"hello").unwrap();
    line.ends[0].finish(line.now);
    let forged = from_a_forged_address(Command::TellWindow, 0, 0xbad);
    line.ends[0].handle_datagram(line.now, forged).unwrap();
    let mut answered = false;
    line.run(Duration::from_secs(1), |ends| {
        if !answered && ends[1].recv().is_some() {
            answered = true;
            ends[1].send_slice(b"welcome").unwrap();
        }
    });
    assert!(line.ends[1].is_read_closed());
    assert_eq!(line.ends[0].recv().unwrap(), b"welcome"[..]);
    assert_eq!(
        line.ends.each_ref().map(Session::ended),
        [None, None],
        "neither is closed"
    );
}

/// The peer was told that everything had arrived: its silence does not take that back.
#[test]
fn received_data_can_be_read_after_a_finished_peer_times_out() {
    for finished in [true, false] {
        let mut line = Line::new();
        line.ends[0].send_slice(&[7; 3000]).unwrap();
        if finished {
            line.ends[0].finish(line.now);
        }
        line.run(ONE_WAY * 6, |_| {});
        assert!(line.ends[0].is_sent());
        let server = &mut line.ends[1];
        while server.ended().is_none() {
            line.now = line.now + Duration::from_secs(1);
            server.handle_timeout(line.now);
            while server.poll_transmit(line.now, &mut [0; 4096], 1).is_some() {}
        }
        assert_eq!(server.ended(), Some(CloseReason::TimedOut));
        assert_eq!(server.recv().is_some(), finished);
        assert!(server.recv().is_none() && server.is_read_closed());
    }
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

/// There may be no room for the mark of the end, and the close says the same.
#[test]
fn a_close_after_a_finish_needs_no_room_for_the_mark_of_the_end() {
    let mut line = Line::new();
    let (mut sent, quiet) = (0, ONE_WAY * 6);
    while line.ends[0].is_sent() {
        line.ends[0].send_slice(&[sent]).unwrap();
        sent += 1;
        line.run(quiet, |_| {});
    }
    // Room for the one that is left, and none behind it.
    assert_eq!(line.ends[1].recv().unwrap(), [0][..]);
    line.run(Duration::from_secs(2), |_| {});
    assert!(line.ends[0].is_sent());

    line.ends[0].finish(line.now);
    line.run(quiet, |_| {});
    assert!(!line.ends[0].is_sent());
    line.ends[0].close(line.now);
    line.run(quiet, |_| {});
    let ended = line.ends.each_ref().map(Session::ended);
    assert_eq!(
        ended,
        [Some(CloseReason::Closed), Some(CloseReason::ClosedByPeer)]
    );
    let unread = std::iter::from_fn(|| line.ends[1].recv());
    assert!(unread.map(|message| message[0]).eq(1..sent));
}

/// A session whose peer answers nothing but acknowledgements is closed when the linger time is over.
#[test]
fn finish_closes_after_the_linger_time_if_the_peer_is_unknown() {
    const LINGER: Duration = Duration::from_secs(5);
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(16 << 20);
    let config = SessionConfig::fast().linger(LINGER);
    let mut now = Time::ZERO;
    let mut client = Session::open(3, &config, Side::Client, &pool, &budget, 5, now).unwrap();
    client.finish(now);
    let mut scratch = [0; 4096];
    while client.ended().is_none() {
        assert!(now < Time::ZERO + LINGER * 3);
        now = now + STEP;
        if client.poll_timeout().is_some_and(|at| at <= now) {
            client.handle_timeout(now);
        }
        while client.poll_transmit(now, &mut scratch, 1).is_some() {}
        let sign_of_life = from_a_forged_address(Command::Push, 0, 1);
        client.handle_datagram(now, sign_of_life).unwrap();
    }
    assert_eq!(client.ended(), Some(CloseReason::Closed));
    assert!(now > Time::ZERO + LINGER);
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
    let (config, budget) = (SessionConfig::fast(), MemoryBudget::new(16 << 20));
    let anew = Session::open(3, &config, Side::Server, &pool, &budget, 7 << 32, line.now);
    line.ends[1] = anew.unwrap();
    line.ends[0].send_slice(b"and more").unwrap();
    line.run(ONE_WAY * 10, |_| {});
    assert!(!line.ends[1].has_message());
    assert_eq!(line.ends[0].ended(), Some(CloseReason::Reset));
}

#[test]
fn a_reset_without_the_token_is_refused() {
    let mut line = Line::new();
    let mut forged = vec![0; HEADER_BYTES];
    for ts in [0, 1, 0x8000_0000] {
        let header = Header {
            conv: 3,
            cmd: Command::Close,
            frg: 1,
            wnd: 32,
            ts,
            sn: 0,
            una: 0,
            len: 0,
        };
        header.encode(&mut forged);
        let refused = line.ends[0].handle_datagram(line.now, Packet::from(forged.clone()));
        assert_eq!(refused, Err(Rejection::ForgedClose));
    }
    assert_eq!(line.ends[0].ended(), None);
}

fn from_a_forged_address(cmd: Command, una: u32, ts: u32) -> Packet {
    let mut datagram = vec![0; HEADER_BYTES];
    let header = Header {
        conv: 3,
        cmd,
        frg: 0,
        wnd: 128,
        ts,
        sn: 0,
        una,
        len: 0,
    };
    header.encode(&mut datagram);
    Packet::from(datagram)
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
