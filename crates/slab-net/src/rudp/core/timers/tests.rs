use super::super::super::budget::MemoryBudget;
use super::super::super::config::{DEFAULT_WINDOW, SessionConfig};
use super::super::super::wire::{Command, Header, OURS};
use super::super::Side;
use super::*;
use crate::packet::PacketPool;

/// Lets both ends talk until that time; returns how often one of them was called for a timer.
fn run(ends: &mut [Session; 2], pool: &PacketPool, now: &mut Time, until: Time) -> u32 {
    run_over(ends, pool, now, until, true)
}

/// As [`run`], over a path that may lose everything.
fn run_over(
    ends: &mut [Session; 2],
    pool: &PacketPool,
    now: &mut Time,
    until: Time,
    arrives: bool,
) -> u32 {
    let mut wakes = 0;
    let mut scratch = [0; 2048];
    while *now < until {
        let mut said = false;
        for from in 0..2 {
            if ends[from].poll_timeout().is_some_and(|at| at <= *now) {
                ends[from].handle_timeout(*now);
                wakes += 1;
            }
            while let Some(out) = ends[from].poll_transmit(*now, &mut scratch, 1) {
                let datagram = pool.try_copy_from_slice(out.contents()).unwrap();
                if arrives {
                    ends[1 - from].handle_datagram(*now, datagram).unwrap();
                }
                said = true;
            }
        }
        let next = ends.iter().filter_map(Session::poll_timeout).min();
        if !said {
            *now = next.map_or(until, |at| at.max(*now)).min(until);
        }
    }
    wakes
}

#[test]
fn an_idle_session_is_called_only_for_its_keepalive() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut ends = [Side::Client, Side::Server]
        .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
    ends[0].send_slice(b"hello").unwrap();
    let settled = now + Duration::from_secs(1);
    run(&mut ends, &pool, &mut now, settled);
    assert!(ends[1].recv().is_some());

    let wakes = run(
        &mut ends,
        &pool,
        &mut now,
        settled + Duration::from_secs(600),
    );
    // Each end asks after 15 seconds at most.
    assert!((20..=120).contains(&wakes), "{wakes} in ten minutes");
    assert!(ends.iter().all(|end| end.ended().is_none()));
}

#[test]
fn a_close_notice_is_repeated_until_it_arrives_or_the_linger_time_is_over() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let config = SessionConfig::fast();
    for dead_for in [Duration::from_secs(4), Duration::from_secs(20)] {
        let mut now = Time::ZERO;
        let mut ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
        ends[0].send_slice(b"hello").unwrap();
        ends[1].send_slice(b"hello").unwrap();
        let settled = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, settled);

        ends[0].close(now);
        let before = ends[0].stats().sent_datagrams;
        let dead = now + dead_for;
        run_over(&mut ends, &pool, &mut now, dead, false);
        let notices = ends[0].stats().sent_datagrams - before;
        assert!(
            (5..=12).contains(&notices),
            "{notices}, each after twice the time"
        );
        let later = now + Duration::from_secs(10);
        run(&mut ends, &pool, &mut now, later);
        assert_eq!(ends[0].ended(), Some(CloseReason::Closed));
        // When the linger time is over it hears only what answers its own question.
        assert_eq!(ends[1].ended(), Some(CloseReason::ClosedByPeer));
    }
}

/// However long the application keeps the session, and whether it read before the end or after it.
#[test]
fn the_window_is_released_once_a_finished_peer_is_silent_and_all_is_read() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let config = SessionConfig::fast();
    for read_before in [false, true] {
        let mut now = Time::ZERO;
        let mut ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
        ends[0].send_slice(b"hello").unwrap();
        ends[0].finish(now);
        let settled = now + Duration::from_secs(1);
        run(&mut ends, &pool, &mut now, settled);
        let read = |end: &mut Session| assert_eq!(end.recv().unwrap(), b"hello"[..]);
        if read_before {
            read(&mut ends[1]);
        }
        let later = now + Duration::from_secs(100);
        run_over(&mut ends, &pool, &mut now, later, false);
        assert_eq!(ends[1].ended(), Some(CloseReason::TimedOut));
        if !read_before {
            assert!(ends[1].reserved_bytes() > 0);
            read(&mut ends[1]);
        }
        assert_eq!(ends[1].reserved_bytes(), 0);
        // The reader is not told of the silence.
        assert!(ends[1].recv().is_none() && ends[1].has_received_all());
    }
}

/// Each asks as its keepalive is due, both at once, and the answers are lost.
#[test]
fn two_idle_ends_that_have_grown_do_not_ask_each_other_for_ever() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(8 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut ends = [Side::Client, Side::Server]
        .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
    ends[0].send_slice(b"hello").unwrap();
    let settled = now + Duration::from_secs(1);
    run(&mut ends, &pool, &mut now, settled);
    assert!(ends[1].recv().is_some());
    for from in [0, 1] {
        // More segments than the first window has.
        ends[from].send_slice(&[7; 100_000]).unwrap();
    }
    let settled = now + Duration::from_secs(1);
    run(&mut ends, &pool, &mut now, settled);
    assert!(ends.iter_mut().all(|end| end.recv().is_some()));
    assert!(ends.iter().all(|end| end.receive.window() > DEFAULT_WINDOW));

    now = now + config.keepalive;
    let mut questions = [0, 1].map(|from| {
        ends[from].handle_timeout(now);
        let mut scratch = [0; 2048];
        let out = ends[from].poll_transmit(now, &mut scratch, 1);
        pool.try_copy_from_slice(out.unwrap().contents()).ok()
    });
    for to in [0, 1] {
        let question = questions[1 - to].take().unwrap();
        ends[to].handle_datagram(now, question).unwrap();
        while ends[to].poll_transmit(now, &mut [0; 2048], 1).is_some() {}
    }
    let before = ends[0].stats().probes;
    let later = now + 4 * config.keepalive;
    let mut scratch = [0; 2048];
    while now < later && ends[0].stats().probes < before + 100 {
        let mut said = false;
        for from in [0, 1] {
            if ends[from].poll_timeout().is_some_and(|at| at <= now) {
                ends[from].handle_timeout(now);
            }
            while let Some(out) = ends[from].poll_transmit(now, &mut scratch, 1) {
                let datagram = pool.try_copy_from_slice(out.contents()).unwrap();
                ends[1 - from].handle_datagram(now, datagram).unwrap();
                said = true;
            }
        }
        if !said {
            let next = ends.iter().filter_map(Session::poll_timeout).min();
            now = next.unwrap().max(now);
        }
    }
    let asked = ends[0].stats().probes - before;
    assert!(asked <= 4, "{asked} questions");
    assert!(
        ends.iter()
            .all(|end| end.receive.window() == DEFAULT_WINDOW)
    );
}

#[test]
fn an_unasked_wins_does_not_count_as_an_answer_to_a_wask() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut ends = [Side::Client, Side::Server]
        .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
    ends[0].send_slice(b"hello").unwrap();
    // The question is lost, and so is what came with it.
    while ends[0].poll_transmit(now, &mut [0; 2048], 1).is_some() {}
    let told = Header {
        conv: 1,
        cmd: Command::TellWindow,
        frg: OURS,
        wnd: 64,
        ts: 0,
        sn: 64,
        una: 0,
        len: 0,
    };
    let mut datagram = [0; HEADER_BYTES];
    told.encode(&mut datagram);
    let datagram = pool.try_copy_from_slice(&datagram).unwrap();
    ends[0].handle_datagram(now, datagram).unwrap();
    assert!(ends[0].peer.has_sent_wins && !ends[0].is_peer_window_known());

    ends[0].close(now);
    let later = now + Duration::from_secs(20);
    run(&mut ends, &pool, &mut now, later);
    assert_eq!(ends[0].ended(), Some(CloseReason::Closed));
    assert_eq!(ends[1].ended(), Some(CloseReason::ClosedByPeer));
}

/// There may be memory for it now, which there was not before.
#[test]
fn what_a_peer_waits_for_is_sent_at_once_when_its_reader_has_made_room() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut ends = [Side::Client, Side::Server]
        .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
    ends[0].send_slice(b"hello").unwrap();
    let settled = now + Duration::from_secs(1);
    run(&mut ends, &pool, &mut now, settled);

    for _ in 0..2 {
        ends[0].send_slice(b"refused").unwrap();
    }
    let later = now + Duration::from_secs(5);
    run_over(&mut ends, &pool, &mut now, later, false);
    let before = ends[0].stats().retransmits_timeout;
    let mut told = [0; HEADER_BYTES];
    let header = Header {
        conv: 1,
        cmd: Command::TellWindow,
        frg: OURS,
        wnd: 300,
        ts: ends[0].token,
        sn: 300,
        una: 1,
        len: 0,
    };
    header.encode(&mut told);
    // The second says nothing new.
    for _ in 0..2 {
        let told = pool.try_copy_from_slice(&told).unwrap();
        ends[0].handle_datagram(now, told).unwrap();
        while ends[0].poll_transmit(now, &mut [0; 2048], 1).is_some() {}
        assert_eq!(ends[0].stats().retransmits_timeout, before + 1);
    }
}

/// A loss that a tail-loss probe repairs is a loss like any other (RFC 8985, 7.4).
#[test]
fn a_loss_repaired_by_a_tail_probe_reduces_the_congestion_window() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let config = SessionConfig::default().interval(Duration::from_millis(10));
    let mut now = Time::ZERO;
    let mut ends = [Side::Client, Side::Server]
        .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
    ends[0].send_slice(b"hello").unwrap();
    let settled = now + Duration::from_secs(1);
    run(&mut ends, &pool, &mut now, settled);
    let before = ends[0].control.window();

    ends[0].send_slice(b"is lost").unwrap();
    while ends[0].poll_transmit(now, &mut [0; 2048], 1).is_some() {}
    let later = now + Duration::from_secs(1);
    run(&mut ends, &pool, &mut now, later);
    let stats = ends[0].stats();
    assert_eq!((stats.retransmits_tail, stats.retransmits_timeout), (1, 0));
    assert!(ends[0].is_sent());
    assert!(ends[0].control.window() < before);
}

/// However many time-outs follow before an acknowledgement, and whatever is found lost with the segment then.
#[test]
fn repeated_time_outs_of_one_flight_reduce_the_threshold_once() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let mut now = Time::ZERO;
    let mut ends = [Side::Client, Side::Server].map(|side| {
        let config = SessionConfig::default();
        Session::open(1, &config, side, &pool, &budget, 5, now).unwrap()
    });
    ends[0].send_slice(b"hello").unwrap();
    let settled = now + Duration::from_secs(1);
    run(&mut ends, &pool, &mut now, settled);
    let before = ends[0].control.window();

    for _ in 0..before {
        ends[0].send_slice(&[7; 1000]).unwrap();
    }
    let cut = now + Duration::from_secs(3);
    run_over(&mut ends, &pool, &mut now, cut, false);
    assert_eq!(ends[0].control.window(), 1);
    assert!(ends[0].stats().retransmits_timeout > 4, "more than one");
    let later = now + Duration::from_secs(10);
    run(&mut ends, &pool, &mut now, later);
    assert!(ends[0].is_sent());
    assert!((before / 2..before).contains(&ends[0].control.window()));
}
