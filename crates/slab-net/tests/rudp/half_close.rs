//! One direction that ends before the other: the mark of its end, and a close that follows.

use crate::common::line::{Line, ONE_WAY, STEP, from_a_forged_address};
use crate::common::pair::{bare_header, datagram, transmit};
use slab_net::rudp::wire::{Command, Header, segments};
use slab_net::rudp::{
    CloseReason, MemoryBudget, Rejection, SendError, Session, SessionConfig, Side, Time,
};
use slab_net::{Packet, PacketPool};
use std::time::Duration;

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

/// What a peer that has finished can no longer send needs no memory, although this end may go on for long.
#[test]
fn who_has_read_to_the_end_keeps_no_window() {
    for read_before_the_end in [true, false] {
        let mut line = Line::new();
        let mut rest = 400;
        line.run(Duration::from_secs(2), |ends| {
            while rest > 0 && ends[0].send_slice(&[7; 2000]).is_ok() {
                rest -= 1;
            }
            while ends[1].recv().is_some() {}
        });
        line.ends[0].send_slice(&[7; 2000]).unwrap();
        let read_all = |line: &mut Line| {
            line.run(ONE_WAY * 6, |ends| while ends[1].recv().is_some() {});
        };
        if read_before_the_end {
            read_all(&mut line);
        }
        line.ends[0].finish(line.now);
        line.run(ONE_WAY * 6, |_| {});
        assert!(line.ends[0].is_sent() && line.ends[1].is_read_closed());
        let before = line.budget.reserved();
        read_all(&mut line);
        assert!(!line.ends[1].has_message());
        assert_eq!(line.budget.reserved() < before, !read_before_the_end);

        // The other direction goes on, and nobody is asked for a window that is of no use.
        let probes = line.ends[0].stats().probes;
        for _ in 0..2 {
            line.ends[1].send_slice(&[8; 60_000]).unwrap();
            line.run(ONE_WAY * 6, |_| {});
            assert_eq!(line.ends[0].recv().unwrap(), [8; 60_000][..]);
        }
        assert_eq!(line.ends[0].stats().probes, probes);
        line.run(Duration::from_secs(60), |_| {});
        line.ends[1].send_slice(b"bye").unwrap();
        line.ends[1].finish(line.now);
        line.run(ONE_WAY * 6, |_| {});
        assert_eq!(line.ends[0].recv().unwrap(), b"bye"[..]);
        assert!(line.ends[0].is_read_closed() && line.ends[1].is_sent());
        assert!(line.ends.iter().all(|end| end.ended().is_none()));
        assert_eq!(line.budget.reserved(), 0);
    }
}

/// An end that has finished and delivered everything asks for no window, even if the last one that it was told was just
/// large enough, and came before it heard that its address is proved.
#[test]
fn who_has_finished_does_not_go_on_asking_for_room() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let mut line = Line::opened(&pool, &SessionConfig::fast());
    // With the mark of the end, as much as the first window.
    line.ends[0].send_slice(&[7; 31 * 1376]).unwrap();
    line.ends[0].finish(line.now);
    line.run(Duration::from_secs(1), |_| {});
    assert!(line.ends[0].is_sent() && line.ends[1].is_read_closed());
    assert_eq!(line.ends[1].recv().unwrap().len(), 31 * 1376);
    line.run(Duration::from_secs(1), |_| {});
    let asked = line.ends[0].stats().probes;
    line.run(Duration::from_secs(14), |_| {});
    assert_eq!(line.ends[0].stats().probes, asked);
}

/// A client that began anew cannot be told from one that repeats itself, if the server has said nothing. It must not
/// take a server that has read to the former one's end for one whose reader is slow.
#[test]
fn who_begins_anew_after_its_end_gives_up() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let config = SessionConfig::fast().dead_link(4);
    let mut line = Line::with_config(&pool, &config);
    line.ends[0].finish(line.now);
    line.run(Duration::from_secs(1), |_| {});
    assert!(line.ends[1].is_read_closed());
    let anew = Session::open(
        3,
        &config,
        Side::Client,
        &pool,
        &line.budget,
        7 << 32,
        line.now,
    );
    line.ends[0] = anew.unwrap();
    line.ends[0].send_slice(&[7; 10_000]).unwrap();
    line.run(Duration::from_secs(20), |_| {});
    assert_eq!(line.ends[0].ended(), Some(CloseReason::DeadLink));
    assert!(!line.ends[1].has_message());
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
        // Long before the linger time of ten seconds is over.
        assert!(now < Time::ZERO + Duration::from_secs(3));
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
        // What is told of the window first is lost.
        let lost = usize::from(seen == [Command::AskWindow, Command::Push]);
        for answer in answers.into_iter().skip(lost) {
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
            frg: 255,
            wnd: 32,
            ts: 9,
            sn,
            len: payload.len() as u32,
            ..bare_header(3, Command::Push)
        };
        Packet::from(datagram(header, payload))
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
    let mut line = Line::opened(&pool, &SessionConfig::fast());
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

/// The peer's own WINS shows that the forged one was not the peer's. If that does not come in answer to our question,
/// which was lost, it proves nothing yet: the peer is asked again at once.
#[test]
fn who_seemed_to_be_another_implementation_and_no_longer_does_is_asked_again() {
    for closes in [false, true] {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let budget = MemoryBudget::new(16 << 20);
        let config = SessionConfig::fast();
        let client = Session::open(
            3,
            &config,
            Side::Client,
            &pool,
            &budget,
            5 << 32,
            Time::ZERO,
        );
        let (mut client, now, mut scratch) = (client.unwrap(), Time::ZERO, [0; 2048]);
        let mut asks = |client: &mut Session| {
            let outgoing = client.poll_transmit(now, &mut scratch, 1)?;
            let mut headers = segments(outgoing.contents()).map(|segment| segment.unwrap().0);
            Some(headers.any(|header| header.cmd == Command::AskWindow))
        };
        assert_eq!(asks(&mut client), Some(true));
        let forged = from_a_forged_address(Command::TellWindow, 0, 0xbad);
        client.handle_datagram(now, forged).unwrap();
        assert_eq!(asks(&mut client), None);
        if !closes {
            client.finish(now);
        }
        assert_eq!(asks(&mut client), None);
        let told = |ts| {
            // As this library marks it.
            let (frg, bare) = (1, bare_header(3, Command::TellWindow));
            Packet::from(datagram(Header { frg, ts, ..bare }, b""))
        };
        client.handle_datagram(now, told(0)).unwrap();
        if closes {
            client.close(now);
        }
        assert_eq!(asks(&mut client), Some(true));
        // Once it has answered, it asks by itself until it is told our window.
        client.handle_datagram(now, told(5)).unwrap();
        assert_eq!(asks(&mut client), Some(false));
        client.handle_datagram(now, told(5)).unwrap();
        assert_eq!(asks(&mut client), None);
    }
}

/// A message has arrived and is not read; its sender may have finished.
fn line_with_unread_message(finished: bool) -> Line {
    let mut line = Line::new();
    line.ends[0].send_slice(&[7; 3000]).unwrap();
    if finished {
        line.ends[0].finish(line.now);
    }
    line.run(ONE_WAY * 6, |_| {});
    assert!(line.ends[0].is_sent());
    line
}

/// The peer was told that everything had arrived: its silence does not take that back.
#[test]
fn received_data_can_be_read_after_a_finished_peer_times_out() {
    for finished in [true, false] {
        let mut line = line_with_unread_message(finished);
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

/// Nor does a reset: the peer may have restarted since, or not want what it is sent.
#[test]
fn received_data_can_be_read_after_a_finished_peer_resets() {
    for finished in [true, false] {
        let mut line = line_with_unread_message(finished);
        line.ends[0].abort();
        line.run(ONE_WAY * 6, |_| {});
        let server = &mut line.ends[1];
        assert_eq!(server.ended(), Some(CloseReason::Reset));
        assert_eq!(server.recv().is_some(), finished);
        assert!(server.recv().is_none() && server.is_read_closed());
        assert_eq!(server.reserved_bytes(), 0);
    }
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

/// An end that has closed takes nothing any more. Its peer, which reads slowly, must not find it dead for that, whether
/// it sends messages or only the mark of its end.
#[test]
fn a_slow_reader_of_an_end_that_lingers_reads_everything() {
    let minutes = |n: u64| Duration::from_secs(60 * n);
    let config = SessionConfig::fast().linger(minutes(60)).dead_link(3);
    for (finishes, closes) in [(false, false), (true, false), (false, true)] {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let mut line = Line::with_config(&pool, &config);
        // More than the window takes.
        let sent = 300;
        for message in 0..sent {
            line.ends[0].send_slice(&[message as u8; 1000]).unwrap();
        }
        line.run(Duration::from_secs(1), |_| {});
        line.ends[1].send_slice(b"is lost").unwrap();
        if finishes {
            line.ends[1].finish(line.now);
        }
        line.ends[0].close(line.now);
        line.run(minutes(2), |_| {});
        assert_eq!(line.ends[1].ended(), None);
        let why = match finishes {
            true => CloseReason::Closed,
            false => CloseReason::ClosedByPeer,
        };
        let refused = line.ends[1].send_slice(b"nobody would read it");
        assert_eq!(refused, Err(SendError::Closed(why)));

        let (mut read, now) = (0, line.now);
        if closes {
            line.ends[1].close(now);
        }
        line.run(Duration::from_secs(2), |ends| {
            while let Some(message) = ends[1].recv() {
                assert_eq!(message, [read as u8; 1000][..]);
                read += 1;
            }
        });
        let ended = line.ends.each_ref().map(|end| end.ended().unwrap());
        if closes {
            assert_eq!(ended, [CloseReason::ClosedByPeer; 2]);
        } else {
            assert_eq!(ended, [CloseReason::Closed, CloseReason::ClosedByPeer]);
            assert_eq!(read, sent);
        }
        drop(line);
        assert_eq!(pool.slab().stats().in_use(), 0);
    }
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

/// As in a process that was stopped: the answer that settles what the peer runs is behind another datagram.
#[test]
fn a_finish_becomes_a_close_only_after_all_that_came_was_looked_at() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(16 << 20);
    let config = SessionConfig::fast();
    let open =
        |side, random| Session::open(3, &config, side, &pool, &budget, random, Time::ZERO).unwrap();
    let (mut client, mut server) = (open(Side::Client, 5 << 32), open(Side::Server, 6 << 32));
    client.send_slice(&[7; 200]).unwrap();
    client.finish(Time::ZERO);
    for datagram in transmit(&mut client, Time::ZERO) {
        let datagram = Packet::from(datagram);
        server.handle_datagram(Time::ZERO, datagram).unwrap();
    }
    let answers = transmit(&mut server, Time::ZERO)
        .into_iter()
        .map(Packet::from);
    let now = Time::ZERO + Duration::from_secs(20);
    let other = from_a_forged_address(Command::Push, 0, 1);
    for datagram in core::iter::once(other).chain(answers) {
        client.handle_datagram(now, datagram).unwrap();
    }
    client.handle_timeout(now);
    assert!(client.is_peer_ours() && !client.is_read_closed());
    assert_eq!(client.ended(), None);
}

/// With a peer that never answers, finishing is closing after the linger time, and what was sent is given up after
/// another.
#[test]
fn finishing_waits_for_the_peer_as_long_as_the_linger_time() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(16 << 20);
    let linger = Duration::from_secs(3);
    let config = SessionConfig::fast().linger(linger);
    let mut now = Time::ZERO + Duration::from_secs(1);
    let mut client = Session::open(3, &config, Side::Client, &pool, &budget, 5, now).unwrap();
    client.send_slice(b"hello").unwrap();
    client.finish(now);
    let finished = now;
    let (mut scratch, mut closed) = ([0; 4096], None);
    while let Some(at) = client.poll_timeout() {
        now = now.max(at);
        client.handle_timeout(now);
        while client.poll_transmit(now, &mut scratch, 1).is_some() {}
        if client.is_read_closed() {
            closed.get_or_insert(now);
        }
    }
    assert_eq!(closed.unwrap().since(finished), linger);
    assert_eq!(client.ended(), Some(CloseReason::LingerExpired));
    assert_eq!(now.since(finished), 2 * linger);
}
