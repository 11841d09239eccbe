//! What windows promise: what is assumed and told, small and closed ones, and the memory that a window grew by and
//! that is asked back, in virtual time.

use crate::common::lossy::{Conditions, Lossy};
use crate::common::pair::{Pair, bare_header, datagram, segments_of, transmit};
use slab_net::PacketPool;
use slab_net::rudp::wire::{Command, HEADER_BYTES, Header, segments};
use slab_net::rudp::{Congestion, MemoryBudget, SendError, Session, SessionConfig, Side, Time};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// A peer that only tells its window.
struct WindowPeer {
    pool: PacketPool,
    session: Session,
    now: Time,
}

impl WindowPeer {
    fn new() -> Self {
        Self::of(SessionConfig::fast())
    }

    fn of(config: SessionConfig) -> Self {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let budget = MemoryBudget::new(16 << 20);
        let open = Session::open(7, &config, Side::Client, &pool, &budget, 1, Time::ZERO);
        Self {
            session: open.unwrap(),
            pool,
            now: Time::ZERO,
        }
    }

    fn tells(&mut self, wnd: u16) {
        self.acknowledges(0, wnd);
    }

    fn acknowledges(&mut self, una: u32, wnd: u16) {
        let bare = bare_header(7, Command::TellWindow);
        self.hears(&datagram(Header { wnd, una, ..bare }, b""));
    }

    fn hears(&mut self, datagram: &[u8]) {
        let datagram = self.pool.try_copy_from_slice(datagram).unwrap();
        self.session.handle_datagram(self.now, datagram).unwrap();
    }

    /// The commands that it is sent.
    fn drain_commands(&mut self) -> Vec<Command> {
        let (mut scratch, mut heard) = ([0; 4096], Vec::new());
        while let Some(out) = self.session.poll_transmit(self.now, &mut scratch, 1) {
            heard.extend(segments(out.contents()).map(|segment| segment.unwrap().0.cmd));
        }
        heard
    }

    /// The most segments that a message may have.
    fn longest(&mut self) -> usize {
        let endless = vec![1; 250 * (1400 - HEADER_BYTES)];
        match self.session.send_slice(&endless) {
            Err(SendError::TooLong { segments: 250, max }) => max,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_peer_window_of_32_segments_is_assumed_until_it_is_told() {
    let mut peer = WindowPeer::new();
    for _ in 0..100 {
        peer.session.send_slice(&[1; 1000]).unwrap();
    }
    let pushed = peer
        .drain_commands()
        .into_iter()
        .filter(|&cmd| cmd == Command::Push);
    assert_eq!(pushed.count(), 32);
    assert_eq!(peer.longest(), 32);
    // The largest window told counts. An empty window says nothing about that.
    for (told, longest) in [(0, 32), (200, 200), (100, 200)] {
        peer.tells(told);
        assert_eq!(peer.longest(), longest);
    }
    let mut small = WindowPeer::new();
    small.tells(8);
    assert_eq!(small.longest(), 8);
}

/// Its reader may be late: then the window that it tells is what is left of it. But a message that is longer than a small
/// window could never be read.
#[test]
fn what_a_peer_has_received_may_be_missing_in_the_first_window_that_it_tells() {
    let told = [(30, 2, 32), (30, 10, 32), (30, 100, 100), (1, 31, 32)];
    let is_small = [(1, 1, 1), (8, 8, 8), (3, 2, 2), (21, 10, 10)];
    for (una, wnd, longest) in told.into_iter().chain(is_small) {
        let mut peer = WindowPeer::new();
        for _ in 0..una {
            peer.session.send_slice(&[1; 1000]).unwrap();
        }
        peer.drain_commands();
        peer.acknowledges(una, wnd);
        assert_eq!(peer.longest(), longest);
    }
}

/// Whether the segment waits to be sent for the first time, or was sent before the window was known to be closed.
#[test]
fn a_closed_window_is_probed_with_growing_intervals() {
    for sent_before in [false, true] {
        let mut peer = WindowPeer::new();
        if !sent_before {
            peer.tells(0);
        }
        peer.session.send_slice(b"waits").unwrap();
        if sent_before {
            assert!(peer.drain_commands().contains(&Command::Push));
            peer.tells(0);
        }
        let mut asked = 0;
        while peer.now < Time::ZERO + Duration::from_secs(100) {
            let heard = peer.drain_commands();
            assert!(!heard.contains(&Command::Push));
            if heard.contains(&Command::AskWindow) {
                asked += 1;
                peer.tells(0);
            }
            peer.now = peer.session.poll_timeout().unwrap();
            peer.session.handle_timeout(peer.now);
        }
        assert!((10..25).contains(&asked), "{asked} times");
        peer.tells(1);
        assert!(peer.drain_commands().contains(&Command::Push));
    }
}

/// A client that has 40 messages for a server with a window of so many segments, which it does not know yet.
fn with_small_window(window: u32) -> (PacketPool, Session, Session) {
    let config = SessionConfig::fast();
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let budget = MemoryBudget::new(8 << 20);
    let open = |side, config: &SessionConfig| {
        Session::open(7, config, side, &pool, &budget, 5 << 32, Time::ZERO).unwrap()
    };
    let mut client = open(Side::Client, &config);
    let server = open(Side::Server, &config.window(32, window));
    for n in 0..40 {
        client.send_slice(&[n; 100]).unwrap();
    }
    (pool, client, server)
}

/// Until a peer tells its window, 32 segments are assumed to fit. If fewer do, the rest was dropped there, and
/// waits for room instead of being sent again in vain.
#[test]
fn what_is_beyond_a_smaller_window_than_assumed_is_not_sent_again_before_there_is_room() {
    for window in [1, 4] {
        let (pool, mut client, mut server) = with_small_window(window);
        let (mut now, mut read) = (Time::ZERO, Vec::new());
        // The first segment beyond the window that the client has been told, and how many it sent beyond that.
        let (mut edge, mut beyond) = (None, 0);
        while read.len() < 40 {
            let next = [&client, &server].map(Session::poll_timeout);
            let next = next.into_iter().flatten().min().unwrap();
            now = (now + 5 * MS).max(next.min(now + 50 * MS));
            assert!(now < Time::ZERO + Duration::from_secs(60), "{read:?}");
            for datagram in transmit(&mut client, now) {
                let pushed = segments_of(&datagram);
                let pushed = pushed.iter().filter(|header| header.cmd == Command::Push);
                beyond += pushed
                    .filter(|push| edge.is_some_and(|edge| push.sn >= edge))
                    .count();
                let datagram = pool.try_copy_from_slice(&datagram).unwrap();
                server.handle_datagram(now, datagram).unwrap();
            }
            while let Some(message) = server.recv() {
                read.push(message[0]);
            }
            now = now + 5 * MS;
            for datagram in transmit(&mut server, now) {
                let told = segments_of(&datagram);
                let told = told.iter().map(|header| header.una + u32::from(header.wnd));
                edge = edge.max(told.max());
                let datagram = pool.try_copy_from_slice(&datagram).unwrap();
                client.handle_datagram(now, datagram).unwrap();
            }
        }
        assert_eq!(read, Vec::from_iter(0..40));
        assert!(
            server.stats().dropped_beyond_window > 0,
            "sent before it was told"
        );
        assert_eq!(beyond, 0, "window {window}");
    }
}

/// Nor has the path lost it, whether its loss is found by an acknowledgement or a time-out.
#[test]
fn a_window_that_was_closed_does_not_shrink_the_congestion_window() {
    for congestion in [Congestion::Reno, Congestion::Cubic] {
        let mut peer = WindowPeer::of(SessionConfig::default().congestion(congestion));
        for _ in 0..100 {
            peer.session.send_slice(&[1; 1000]).unwrap();
        }
        let pushes = |peer: &mut WindowPeer| {
            let commands = peer.drain_commands().into_iter();
            commands.filter(|&cmd| cmd == Command::Push).count()
        };
        assert_eq!(pushes(&mut peer), 10);
        peer.tells(0);
        peer.now = peer.now + Duration::from_secs(1);
        peer.session.handle_timeout(peer.now);
        assert_eq!(pushes(&mut peer), 0);
        peer.tells(200);
        assert_eq!(pushes(&mut peer), 10, "again");
        peer.acknowledges(10, 200);
        assert_eq!(pushes(&mut peer), 20, "slow start goes on");
    }
}

/// What such a peer dropped does not count as a sign that it is dead: it has only no room.
#[test]
fn a_reader_that_is_slow_behind_a_small_window_ends_no_session() {
    let (pool, mut client, mut server) = with_small_window(4);
    let mut now = Time::ZERO;
    let mut run = |until: Time, read: &mut Vec<u8>, reads: bool| {
        while now < until {
            let next = [&client, &server].map(Session::poll_timeout);
            let next = next.into_iter().flatten().fold(now + 50 * MS, Time::min);
            now = next.max(now + 5 * MS);
            for datagram in transmit(&mut client, now) {
                let datagram = pool.try_copy_from_slice(&datagram).unwrap();
                server.handle_datagram(now, datagram).unwrap();
            }
            while reads && let Some(message) = server.recv() {
                read.push(message[0]);
            }
            now = now + 5 * MS;
            for datagram in transmit(&mut server, now) {
                let datagram = pool.try_copy_from_slice(&datagram).unwrap();
                client.handle_datagram(now, datagram).unwrap();
            }
        }
        assert_eq!((client.ended(), server.ended()), (None, None));
    };
    let (hour, mut read) = (Duration::from_secs(3600), Vec::new());
    run(Time::ZERO + hour, &mut read, false);
    run(Time::ZERO + hour + 10 * 1000 * MS, &mut read, true);
    assert_eq!(read, Vec::from_iter(0..40));
}

/// Acknowledgements tell it anyway.
#[test]
fn a_window_is_told_again_only_when_half_of_it_has_become_free() {
    let mut pair = Pair::new();
    let mut told = Vec::new();
    for n in 0..1000 {
        pair.client.send_slice(b"one at a time").unwrap();
        for datagram in transmit(&mut pair.client, pair.now) {
            pair.server_receives(&datagram).unwrap();
        }
        assert!(n == 0 || pair.server.recv().is_some());
        for datagram in transmit(&mut pair.server, pair.now) {
            let headers = segments_of(&datagram);
            told.extend(headers.iter().map(|header| header.cmd));
            pair.client_receives(&datagram).unwrap();
        }
        pair.now = pair.now + MS;
    }
    let told = told.iter().filter(|&&cmd| cmd == Command::TellWindow);
    // One answers a question.
    assert!(told.count() <= 2);
}

/// The time between keepalives.
const IDLE: Duration = Duration::from_millis(200);

/// Two sessions whose windows may grow to 1024 segments, 10 ms apart.
fn wide_windows() -> Lossy {
    let config = SessionConfig::fast()
        .window(1024, 1024)
        .keepalive(IDLE)
        .idle_timeout(1000 * IDLE);
    let path = Conditions {
        delay: Duration::from_millis(10),
        lost: 0,
        reordered: 0,
        bottleneck: None,
    };
    Lossy::new(&config, path, 1)
}

/// Sends `messages` messages as fast as the window allows; returns the most that the receiver had reserved.
fn transport(world: &mut Lossy, messages: usize) -> usize {
    let (mut sent, mut received, mut widest) = (0, 0, 0);
    while received < messages {
        while sent < messages && world.ends[0].send_slice(&[1; 1000]).is_ok() {
            sent += 1;
        }
        world.settle(0);
        let end = world.step(world.now + Duration::from_secs(10)).unwrap();
        while world.ends[1].recv().is_some() {
            received += 1;
        }
        widest = widest.max(world.ends[1].reserved_bytes());
        world.settle(end);
        world.settle(1);
    }
    widest
}

/// The memory that the window grew by is asked back; whenever the peer goes on, it has what it was promised.
#[test]
fn a_grown_window_shrinks_when_the_session_is_idle() {
    let mut world = wide_windows();
    let first = world.ends[1].reserved_bytes();
    let (mut shrunk, mut wide) = (0, 0);
    for round in (0..80_u64).step_by(3) {
        assert!(transport(&mut world, 2500) > 8 * first, "round {round}");
        // Before it asks, while the question and the answer are on their way, and after that.
        let until = world.now + IDLE * 4 / 5 + Duration::from_millis(round);
        while let Some(end) = world.step(until) {
            world.settle(end);
        }
        world.now = until;
        match world.ends[1].reserved_bytes() {
            bytes if bytes == first => shrunk += 1,
            _ => wide += 1,
        }
        assert_eq!(
            world.ends[1].stats().dropped_beyond_window,
            0,
            "round {round}"
        );
        assert_eq!(
            world.ends[0].stats().retransmits_timeout,
            0,
            "round {round}"
        );
    }
    assert!(shrunk >= 5 && wide >= 5, "{shrunk} and {wide}");
}

/// The memory may not be there any more.
#[test]
fn a_window_that_was_asked_back_is_not_used_again() {
    let mut world = wide_windows();
    let first = world.ends[1].reserved_bytes();
    transport(&mut world, 2500);
    let until = world.now + 2 * IDLE;
    while let Some(end) = world.step(until) {
        world.settle(end);
    }
    assert_eq!(world.ends[1].reserved_bytes(), first);
    let before = world.ends[0].stats().sent_segments;
    for _ in 0..100 {
        world.ends[0].send_slice(&[1; 1000]).unwrap();
    }
    world.settle(0);
    assert_eq!(world.ends[0].stats().sent_segments - before, 32);
}

/// What both ends of a pair have to say now, a millisecond later; returns whether the client asked for the window,
/// in which case nothing of the client's arrives if that is to be lost.
fn exchange(pair: &mut Pair, lose_questions: bool) -> bool {
    pair.now = pair.now + MS;
    let before = pair.client.stats().probes;
    let to_server = transmit(&mut pair.client, pair.now);
    let asked = pair.client.stats().probes > before;
    let to_client = transmit(&mut pair.server, pair.now);
    let to_server = if asked && lose_questions {
        Vec::new()
    } else {
        to_server
    };
    for (end, datagrams) in [(&mut pair.server, to_server), (&mut pair.client, to_client)] {
        for datagram in datagrams {
            let datagram = pair.pool.try_copy_from_slice(&datagram).unwrap();
            end.handle_datagram(pair.now, datagram).unwrap();
        }
    }
    asked
}

/// The question that tells a smaller window is lost, and the peer tells its own window because its reader is back: it
/// may still send what it was promised before.
#[test]
fn a_window_told_unasked_is_no_answer_to_a_question_that_was_lost() {
    let mut pair = Pair::with_config(SessionConfig::fast().window(256, 256));
    let first = pair.client.reserved_bytes();
    pair.client.send_slice(b"hello").unwrap();
    for _ in 0..400 {
        while pair.server.send_slice(&[7; 1000]).is_ok() {}
        exchange(&mut pair, false);
        while pair.client.recv().is_some() {}
    }
    pair.settle();
    while pair.client.recv().is_some() {}
    while pair.server.recv().is_some() {}
    let grown = pair.client.reserved_bytes();
    assert!(grown > 2 * first, "{first} {grown}");

    for _ in 0..20 {
        pair.client.send_slice(&[1; 1000]).unwrap();
    }
    for _ in 0..200 {
        exchange(&mut pair, false);
    }
    while !exchange(&mut pair, true) {}
    for _ in 0..20 {
        exchange(&mut pair, true);
    }
    while pair.server.recv().is_some() {}
    for _ in 0..20 {
        exchange(&mut pair, true);
    }
    assert_eq!(pair.client.reserved_bytes(), grown);
    for _ in 0..60 {
        pair.server.send_slice(&[7; 1000]).unwrap();
    }
    for _ in 0..20 {
        exchange(&mut pair, true);
    }
    assert_eq!(pair.client.stats().dropped_beyond_window, 0);
    while pair.client.recv().is_some() {}
    // Once it is heard, the memory comes back.
    while pair.client.reserved_bytes() > first {
        exchange(&mut pair, false);
        assert!(pair.now < Time::from_micros(100_000_000));
    }
}

/// Its questions restart the time after which this end would ask.
#[test]
fn a_grown_window_shrinks_although_the_peer_asks_more_often() {
    let mut world = wide_windows();
    let config = SessionConfig::fast().window(1024, 1024);
    let config = config.keepalive(IDLE / 4).idle_timeout(1000 * IDLE);
    let budget = MemoryBudget::new(16 << 20);
    let often = Session::open(
        7,
        &config,
        Side::Client,
        &world.pool,
        &budget,
        7,
        Time::ZERO,
    );
    world.ends[0] = often.unwrap();
    let first = world.ends[1].reserved_bytes();
    transport(&mut world, 2500);
    let until = world.now + 2 * IDLE;
    while let Some(end) = world.step(until) {
        world.settle(end);
    }
    assert_eq!(world.ends[1].reserved_bytes(), first);
}

/// One end has finished sending; the other goes on, or will, without a window that nothing will come into.
#[test]
fn a_grown_window_is_given_back_when_its_peer_has_finished() {
    let mut world = wide_windows();
    let first = world.ends[1].reserved_bytes();
    assert!(transport(&mut world, 5000) > 8 * first);
    world.ends[0].finish(world.now);
    world.settle(0);
    let until = world.now + IDLE / 2;
    while let Some(end) = world.step(until) {
        world.settle(end);
    }
    assert!(world.ends[1].is_read_closed());
    assert_eq!(world.ends[1].reserved_bytes(), 0);
    // The way back is open.
    world.ends[1].send_slice(b"thanks").unwrap();
    world.settle(1);
    let until = world.now + IDLE;
    while let Some(end) = world.step(until) {
        world.settle(end);
    }
    assert_eq!(world.ends[0].recv().unwrap(), b"thanks"[..]);
}

/// If data overtakes the question that asks the window back, the window stays as it was, also for the data that
/// follows, read or not.
#[test]
fn a_window_keeps_its_size_if_data_overtakes_the_shrinking_wask() {
    let mut world = wide_windows();
    let first = world.ends[1].reserved_bytes();
    let send = |world: &mut Lossy, messages: u32| {
        for _ in 0..messages {
            world.ends[0].send_slice(&[1; 1000]).unwrap();
            world.settle(0);
        }
    };
    for _ in 0..20 {
        send(&mut world, 256);
        let until = world.now + IDLE / 4;
        while let Some(end) = world.step(until) {
            while world.ends[1].recv().is_some() {}
            world.settle(end);
            world.settle(1);
        }
    }
    let wide = world.ends[1].reserved_bytes();
    assert!(wide > 8 * first);
    // The question is on its way, and what is sent now passes it.
    let asked = world.ends[1].stats().probes;
    while world.ends[1].stats().probes == asked {
        let end = world.step(world.now + 2 * IDLE).unwrap();
        world.settle(end);
    }
    send(&mut world, 100);
    let until = world.now + IDLE / 2;
    while let Some(end) = world.step(until) {
        world.settle(end);
    }
    send(&mut world, 200);
    let until = world.now + IDLE / 2;
    while let Some(end) = world.step(until) {
        world.settle(end);
    }
    assert_eq!(world.ends[1].reserved_bytes(), wide);
    assert_eq!(world.ends[1].stats().dropped_beyond_window, 0);
    let received = std::iter::from_fn(|| world.ends[1].recv()).count();
    assert_eq!(received, 300);
}

/// A peer that acknowledges before its reader has taken what came tells a larger window in its answer. That is no reason to
/// keep what ours has grown by until the session is idle.
#[test]
fn a_window_of_no_use_is_given_back_although_the_answer_brings_news() {
    let mut peer = WindowPeer::new();
    let budget = MemoryBudget::new(300_000);
    let (config, pool) = (SessionConfig::fast(), &peer.pool);
    let open = Session::open(7, &config, Side::Client, pool, &budget, 1, Time::ZERO);
    peer.session = open.unwrap();
    let first = peer.session.reserved_bytes();
    for sn in 0..100 {
        let header = Header {
            sn,
            frg: 99 - sn as u8,
            len: 1000,
            ..bare_header(7, Command::Push)
        };
        peer.hears(&datagram(header, &[7; 1000]));
        peer.drain_commands();
    }
    assert_eq!(peer.session.recv().unwrap().len(), 100_000);
    assert!(peer.session.reserved_bytes() > 2 * first);

    peer.session.send_slice(b"answer").unwrap();
    peer.drain_commands();
    peer.acknowledges(1, 127);
    for _ in 0..200 {
        peer.now = peer.now + 10 * MS;
        peer.session.handle_timeout(peer.now);
        if peer.drain_commands().contains(&Command::AskWindow) {
            peer.acknowledges(1, 128);
        }
    }
    assert_eq!(peer.session.reserved_bytes(), first);
    assert!(peer.session.stats().probes < 5);
}
