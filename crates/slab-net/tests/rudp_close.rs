//! How sessions end: by closing, by giving up, and in time.

use slab_net::rudp::wire::{Command, HEADER_BYTES, Header};
use slab_net::rudp::{CloseReason, MemoryBudget, Rejection, Session, SessionConfig, Side, Time};
use slab_net::{Packet, PacketPool};
use std::collections::VecDeque;
use std::time::Duration;

const ONE_WAY: Duration = Duration::from_millis(10);
const STEP: Duration = Duration::from_millis(1);

/// Two ends, and what is on its way to each.
struct Line {
    now: Time,
    ends: [Session; 2],
    on_its_way: [VecDeque<(Time, Packet)>; 2],
}

impl Line {
    fn new() -> Self {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let budget = MemoryBudget::new(16 << 20);
        let config = SessionConfig::fast();
        let open = |side| {
            let random = 0x1234_5678_9abc_def0;
            Session::open(3, &config, side, &pool, &budget, random, Time::ZERO).unwrap()
        };
        let mut line = Self {
            now: Time::ZERO,
            ends: [open(Side::Client), open(Side::Server)],
            on_its_way: Default::default(),
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
                while arrived(&self.on_its_way[end]) {
                    let (_, datagram) = self.on_its_way[end].pop_front().unwrap();
                    let _ = self.ends[end].handle_datagram(now, datagram);
                }
                let session = &mut self.ends[end];
                if session.poll_timeout().is_some_and(|at| at <= now) {
                    session.handle_timeout(now);
                }
                let mut scratch = [0; 4096];
                while let Some(out) = session.poll_transmit(now, &mut scratch, 1) {
                    let datagram = Packet::from(out.contents().to_vec());
                    self.on_its_way[1 - end].push_back((now + ONE_WAY, datagram));
                }
            }
        }
    }
}

/// Who closes does not receive any more, and so does not know how far the other one is.
#[test]
fn closing_while_the_other_end_sends_takes_no_longer_than_a_few_round_trips() {
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

/// Neither takes what the other one has: nobody waits for the end of the linger time.
fn closed_at_once_with_data_left() -> Line {
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
fn two_ends_that_close_at_once_with_data_left_are_over_in_a_few_round_trips() {
    let mut line = closed_at_once_with_data_left();
    line.run(ONE_WAY * 6, |_| {});
    for end in &line.ends {
        assert_eq!(end.ended(), Some(CloseReason::ClosedByPeer));
        assert_eq!(end.stats().rejected_datagrams(), 0);
    }
    // Nobody answers for ever.
    let sent = line.ends.each_ref().map(|end| end.stats().sent_datagrams);
    line.run(ONE_WAY * 10, |_| {});
    let later = line.ends.each_ref().map(|end| end.stats().sent_datagrams);
    assert_eq!(sent, later);
}

#[test]
fn two_ends_that_close_at_once_ask_again_where_that_was_lost() {
    let mut line = closed_at_once_with_data_left();
    line.run(2 * STEP, |_| {});
    line.on_its_way = Default::default();
    line.run(Duration::from_secs(2), |_| {});
    for end in &line.ends {
        assert_eq!(end.ended(), Some(CloseReason::ClosedByPeer));
    }
}

/// One that is still open has heard nothing by that: it hears of the close once it has everything.
#[test]
fn an_end_that_takes_nothing_any_more_still_delivers_what_it_has() {
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

#[test]
fn an_abort_resets_the_peer_whatever_is_under_way() {
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

#[test]
fn a_reset_that_does_not_know_the_token_is_refused() {
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

/// A question each nine seconds is a sign of life, and no proof of an address.
#[test]
fn a_half_open_session_ends_in_time_although_its_peer_goes_on_asking() {
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

/// One that only sends is heard for as long as it does: it is asked for no proof.
#[test]
fn a_peer_that_is_sent_nothing_may_go_on_unproved() {
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
