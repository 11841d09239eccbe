//! How losses are found and repaired, and how much is sent, in virtual time.

use crate::common::lossy::{Conditions, Lossy};
use crate::common::pair::{Pair, bare_header, datagram, header, push, segments_of, transmit};
use slab_net::PacketPool;
use slab_net::rudp::wire::{Command, Header, segments};
use slab_net::rudp::{CloseReason, Congestion, MemoryBudget, Session, SessionConfig, Side, Time};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn path(delay: Duration) -> Conditions {
    Conditions {
        delay,
        lost: 0,
        reordered: 0,
        bottleneck: None,
    }
}

fn run(world: &mut Lossy, until: Time) {
    world.settle(0);
    world.settle(1);
    while let Some(end) = world.step(until) {
        world.settle(end);
    }
}

/// Two sessions that have measured their round trip of 4 ms.
fn connected() -> Lossy {
    // Without `nodelay` a time-out is at least 100 ms.
    let config = SessionConfig::default().interval(10 * MS);
    let mut world = Lossy::new(&config, path(2 * MS), 1);
    for _ in 0..20 {
        world.ends[0].send_slice(&[1; 100]).unwrap();
        let until = world.now + 50 * MS;
        run(&mut world, until);
    }
    while world.ends[1].recv().is_some() {}
    world
}

/// The last message is lost: a probe finds that long before the time-out would.
#[test]
fn a_lost_last_segment_is_found_by_a_tail_loss_probe() {
    let mut world = connected();
    // Once more, after the first was acknowledged.
    for probes in 1..=2 {
        world.lose_next(1);
        world.ends[0].send_slice(b"the last").unwrap();
        let sent = world.now;
        world.settle(0);
        while world.ends[1].recv().is_none() {
            let end = world.step(sent + 1000 * MS).expect("it arrives");
            world.settle(end);
        }
        let took = world.now.since(sent);
        assert!(took < 40 * MS, "{took:?}");
        let until = world.now + 50 * MS;
        run(&mut world, until);
        let stats = world.ends[0].stats();
        assert_eq!(
            (stats.retransmits_tail, stats.retransmits_timeout),
            (probes, 0),
            "{stats:?}"
        );
    }
}

/// By time alone, without a count, and although nothing more is sent or heard.
#[test]
fn a_loss_is_found_by_reordering_time_after_one_and_a_quarter_rtt() {
    let mut world = connected();
    let sent = world.now;
    world.lose_next(1);
    for message in [b"first", b"other"] {
        world.ends[0].send_slice(message).unwrap();
        world.settle(0);
    }
    while world.ends[1].recv().is_none() {
        let end = world.step(sent + 1000 * MS).expect("it arrives");
        world.settle(end);
    }
    let (took, stats) = (world.now.since(sent), world.ends[0].stats());
    assert!(took < 14 * MS, "{took:?}");
    let late = stats.retransmits_tail + stats.retransmits_timeout;
    assert_eq!((stats.retransmits_fast, late), (1, 0), "{stats:?}");
}

#[test]
fn a_session_ends_after_dead_link_transmissions_of_a_segment() {
    let config = SessionConfig::fast().dead_link(7);
    let mut world = Lossy::new(&config, path(2 * MS), 1);
    run(&mut world, Time::ZERO + 100 * MS);
    world.lose_next(u32::MAX);
    let before = world.ends[0].stats().sent_segments;
    world.ends[0].send_slice(b"hello?").unwrap();
    let until = world.now + Duration::from_secs(30);
    run(&mut world, until);
    assert_eq!(world.ends[0].ended(), Some(CloseReason::DeadLink));
    assert_eq!(world.ends[0].stats().sent_segments - before, 7);
}

/// A server that speaks first may send no more than three times what its client sent, and asking for the proof
/// counts. If the answer is lost, the client has to send something more.
#[test]
fn a_lost_proof_of_address_is_repeated_before_the_session_times_out() {
    let greeting = [7; 10_000];
    let mut world = Lossy::new(&SessionConfig::fast(), path(10 * MS), 1);
    world.ends[1].send_slice(&greeting).unwrap();
    world.settle(0);
    while !world.ends[0].is_peer_ours() {
        let end = world.step(Time::ZERO + 100 * MS).expect("it is answered");
        world.lose_next(u32::from(end == 0));
        world.settle(end);
    }
    assert!(!world.ends[1].is_validated());
    let until = world.now + 5000 * MS;
    run(&mut world, until);
    assert_eq!(world.ends.each_ref().map(Session::ended), [None; 2]);
    assert_eq!(world.ends[0].recv().unwrap(), greeting[..]);
    // After that neither end has anything to send.
    let said = |world: &Lossy| world.ends.each_ref().map(|end| end.stats().sent_datagrams);
    let before = said(&world);
    let until = world.now + 9000 * MS;
    run(&mut world, until);
    assert_eq!(said(&world), before);
}

/// A retransmission that is lost is found like any other loss, without a time-out.
#[test]
fn a_lost_retransmission_is_sent_again_without_a_time_out() {
    let config = SessionConfig::fast().window(256, 256);
    let mut world = Lossy::new(&config, path(20 * MS), 1);
    // So many that the window grows well beyond what follows.
    for _ in 0..2000 {
        let _ = world.ends[0].send_slice(&[1; 100]);
        let until = world.now + MS / 3;
        run(&mut world, until);
        while world.ends[1].recv().is_some() {}
    }
    let until = world.now + 500 * MS;
    run(&mut world, until);
    while world.ends[1].recv().is_some() {}
    let start = world.now;
    // A message every other millisecond; the first transmission of one of them is lost, and the next three.
    let stats = world.ends[0].stats();
    let again = stats.retransmits_tail + stats.retransmits_fast + stats.retransmits_timeout;
    world.lose_pushes_of((stats.sent_segments - again) as u32, 4);
    for n in 0..200_u64 {
        world.ends[0].send_slice(&n.to_le_bytes()).unwrap();
        let until = start + MS * 2 * (n as u32 + 1);
        run(&mut world, until);
    }
    let stats = world.ends[0].stats();
    let before = again;
    assert_eq!(stats.retransmits_timeout, 0, "{stats:?}");
    assert!(stats.retransmits_fast >= before + 4, "{stats:?}");
    let until = world.now + 500 * MS;
    run(&mut world, until);
    let got = std::iter::from_fn(|| world.ends[1].recv()).count();
    assert_eq!(got, 200);
}

/// The segments that the client sends now.
fn pushes(pair: &mut Pair) -> Vec<Header> {
    let sent = transmit(&mut pair.client, pair.now);
    let headers = sent.iter().flat_map(|datagram| segments_of(datagram));
    headers
        .filter(|header| header.cmd == Command::Push)
        .collect()
}

/// Acknowledges segments, all before `una` with them.
fn acknowledge(pair: &mut Pair, una: u32, sent: &[Header]) {
    for push in sent {
        let ack = Header {
            ts: push.ts,
            sn: push.sn,
            una,
            ..header(Command::Ack)
        };
        pair.client_receives(&datagram(ack, b"")).unwrap();
    }
}

#[test]
fn losses_of_one_round_trip_halve_the_congestion_window_once() {
    let config = SessionConfig::fast().congestion(Congestion::Reno);
    let mut pair = Pair::with_config(config.window(256, 256));
    for _ in 0..20 {
        for _ in 0..100 {
            pair.client.send_slice(&[1; 1000]).unwrap();
        }
        pair.settle();
        while pair.server.recv().is_some() {
            pair.settle();
        }
    }
    while pair.client.send_slice(&[1; 1000]).is_ok() {}
    let sent = pushes(&mut pair);
    let (window, lost) = (sent.len(), sent[0].sn);
    assert!(window >= 32, "{window}");
    acknowledge(&mut pair, lost, &sent[4..]);
    let again = pushes(&mut pair);
    assert!(again.iter().all(|push| push.sn < lost + 4), "{again:?}");
    acknowledge(&mut pair, lost + window as u32, &again[..1]);
    let after = pushes(&mut pair).len();
    assert!(after.abs_diff(window / 2) <= 1, "{window} to {after}");
}

/// While the window is full of segments behind it, a second loss would cost another round trip. Not with a congestion
/// control, which takes care of the path.
#[test]
fn a_lost_segment_that_blocks_the_window_is_sent_twice_at_once() {
    for (congestion, copies) in [(Congestion::Off, 2), (Congestion::Reno, 1)] {
        let mut pair = Pair::with_config(SessionConfig::fast().congestion(congestion));
        pair.client.send_slice(b"hello").unwrap();
        pair.settle();
        // More than the window.
        while pair.client.send_slice(&[1; 1000]).is_ok() {}
        let sent = pushes(&mut pair);
        let (lost, mut again) = (sent[0].sn, 0);
        for push in &sent[1..] {
            acknowledge(&mut pair, lost, core::slice::from_ref(push));
            let pushes = pushes(&mut pair);
            again += pushes.iter().filter(|push| push.sn == lost).count();
        }
        assert_eq!(again, copies, "{congestion:?}");
    }
}

/// Runs a stream through 10 MB/s with a queue of 64 KB. Returns megabytes a second, datagrams sent in
/// vain per thousand, and the longest burst.
fn bottleneck(congestion: Congestion, seconds: u64) -> (f64, f64, usize) {
    let conditions = Conditions {
        bottleneck: Some((10_000_000, 64 << 10)),
        ..path(10 * MS)
    };
    let config = SessionConfig::fast()
        .window(1024, 1024)
        .stream(true)
        .congestion(congestion);
    let mut world = Lossy::new(&config, conditions, 1);
    let piece = [7; 16 << 10];
    let end = Time::ZERO + Duration::from_secs(seconds);
    let mut received = 0;
    world.settle(0);
    world.settle(1);
    while let Some(end) = world.step(end) {
        while world.ends[0].write(&piece).is_ok() {}
        while let Some(bytes) = world.ends[1].read() {
            received += bytes.len();
        }
        world.settle(0);
        if end == 1 {
            world.settle(1);
        }
    }
    let sent = world.ends[0].stats().sent_segments as f64;
    (
        received as f64 / 1e6 / seconds as f64,
        world.dropped_by_queue as f64 / sent * 1000.0,
        world.longest_burst[0],
    )
}

#[test]
fn congestion_control_fills_a_bottleneck_with_little_loss() {
    let seconds = if cfg!(debug_assertions) { 4 } else { 20 };
    for congestion in [Congestion::Reno, Congestion::Cubic] {
        let (rate, wasted, burst) = bottleneck(congestion, seconds);
        assert!(rate > 6.0, "{congestion:?}: {rate} MB/s");
        assert!(wasted < 20.0, "{congestion:?}: {wasted} of 1000 in vain");
        // A window is spread over the round trip.
        assert!(burst <= 48, "{congestion:?}: {burst} at once");
    }
    // Without congestion control the window is sent whatever becomes of it.
    let (_, wasted, _) = bottleneck(Congestion::Off, 1);
    assert!(wasted > 50.0, "{wasted} of 1000 in vain");
}

/// The messages that arrive in the second after a path was cut for so long.
fn messages_after_outage(congestion: Congestion, cut: Duration) -> usize {
    let config = SessionConfig::fast().congestion(congestion);
    let mut world = Lossy::new(&config, path(50 * MS), 1);
    let mut go_on = |lost: u32, time: Duration| {
        world.lose_next(lost);
        let (until, mut got) = (world.now + time, 0);
        loop {
            while world.ends[0].send_slice(&[1; 1000]).is_ok() {}
            world.settle(0);
            let Some(end) = world.step(until) else {
                return got;
            };
            while world.ends[1].recv().is_some() {
                got += 1;
            }
            world.settle(end);
            world.settle(1);
        }
    };
    go_on(0, 3000 * MS);
    go_on(u32::MAX, cut);
    go_on(0, 1000 * MS)
}

/// The window doubles again up to the threshold that the first time-out set, however many follow: they all find the
/// same flight lost.
#[test]
fn consecutive_time_outs_count_as_one_loss() {
    for congestion in [Congestion::Reno, Congestion::Cubic] {
        let got = messages_after_outage(congestion, 400 * MS);
        assert!(got > 300, "{congestion:?}: {got} in a second");
    }
}

/// The messages that a reader gets in five seconds if it looks for them ten times a second.
fn slow_reader_messages(congestion: Congestion) -> usize {
    let config = SessionConfig::fast().congestion(congestion);
    let mut world = Lossy::new(&config, path(10 * MS), 1);
    let mut got = 0;
    for turn in 1..=50 {
        let until = Time::ZERO + 100 * MS * turn;
        loop {
            while world.ends[0].send_slice(&[1; 1000]).is_ok() {}
            world.settle(0);
            let Some(end) = world.step(until) else { break };
            world.settle(end);
        }
        while world.ends[1].recv().is_some() {
            got += 1;
        }
        world.settle(1);
    }
    got
}

/// The receive window says nothing about the network: that it was full is no reason for slow start.
#[test]
fn a_slow_reader_does_not_shrink_the_congestion_window() {
    let free = slow_reader_messages(Congestion::Off);
    for congestion in [Congestion::Reno, Congestion::Cubic] {
        let got = slow_reader_messages(congestion);
        assert!(got > free * 9 / 10, "{congestion:?}: {got} of {free}");
    }
}

/// The window that a receiving end promises follows what the path carries.
#[test]
fn the_receive_window_follows_the_bandwidth_delay_product() {
    let reserved = |delay, every| {
        let config = SessionConfig::fast().window(1024, 1024);
        let mut world = Lossy::new(&config, path(delay), 1);
        for n in 1..3000_u32 {
            let _ = world.ends[0].send_slice(&[1; 1000]);
            run(&mut world, Time::ZERO + every * n);
            while world.ends[1].recv().is_some() {}
        }
        world.ends[1].reserved_bytes()
    };
    let (slow, fast) = (reserved(MS, MS), reserved(50 * MS, MS / 2));
    // 2 segments are on the way, and 200.
    assert!(slow <= 32 * 1536 * 5 / 4, "{slow}");
    assert!(fast >= 200 * 1536, "{fast}");
}

/// 1000 segments a second over 20 ms need a window of 64, whatever window the peer tells when its reader has made
/// room.
#[test]
fn an_unasked_wins_is_not_a_round_trip_sample() {
    const TOKEN: u64 = 0x1234_5678;
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let config = SessionConfig::fast().window(256, 1024);
    let reserved = |unasked: bool| {
        let budget = MemoryBudget::new(16 << 20);
        let (side, mut now) = (Side::Client, Time::ZERO);
        let mut here = Session::open(7, &config, side, &pool, &budget, TOKEN << 32, now).unwrap();
        let handle = |here: &mut Session, now, cmd, sn| {
            let header = Header {
                frg: u8::from(cmd == Command::TellWindow),
                wnd: 256,
                ts: TOKEN as u32,
                sn,
                ..bare_header(7, cmd)
            };
            let told = pool.try_copy_from_slice(&datagram(header, b""));
            here.handle_datagram(now, told.unwrap()).unwrap();
        };
        let (mut scratch, mut answer_at) = ([0; 2048], None);
        for sn in 0..10_000_u32 {
            now = now + Duration::from_millis(1);
            here.handle_timeout(now);
            handle(&mut here, now, Command::Push, sn);
            while here.recv().is_some() {}
            if answer_at.take_if(|at| *at <= now).is_some() || (unasked && sn % 950 == 949) {
                handle(&mut here, now, Command::TellWindow, 256);
            }
            while let Some(out) = here.poll_transmit(now, &mut scratch, 1) {
                let mut segments = segments(out.contents()).map(|segment| segment.unwrap().0);
                if segments.any(|header| header.cmd == Command::AskWindow) {
                    answer_at = Some(now + Duration::from_millis(20));
                }
            }
        }
        here.reserved_bytes()
    };
    assert_eq!(reserved(true), reserved(false));
}

/// As many as are kept, in datagrams that they fill to the end: what comes again after that is acknowledged, too.
#[test]
fn acknowledgements_that_fill_their_datagrams_make_room_for_more() {
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    let budget = MemoryBudget::new(1 << 20);
    // An MTU with room for two acknowledgements, and a window for which four are kept.
    let config = SessionConfig::fast().mtu(64).window(4, 4);
    let (now, random) = (Time::ZERO, 7 << 32);
    let mut session = Session::open(9, &config, Side::Client, &pool, &budget, random, now).unwrap();
    transmit(&mut session, now);
    let acknowledged = |session: &mut Session, sns: &[u32]| {
        for &sn in sns {
            let packet = datagram(
                Header {
                    sn,
                    una: 0,
                    ..push(b"x")
                },
                b"x",
            );
            let packet = pool.try_copy_from_slice(&packet).unwrap();
            session.handle_datagram(now, packet).unwrap();
        }
        let sent = transmit(session, now);
        let headers = sent.iter().flat_map(|datagram| segments_of(datagram));
        let acks = headers.filter(|header| header.cmd == Command::Ack);
        acks.map(|header| header.sn).collect::<Vec<_>>()
    };
    assert_eq!(acknowledged(&mut session, &[1, 2, 3, 1]), [1, 2, 3, 1]);
    assert_eq!(acknowledged(&mut session, &[2]), [2]);
}
