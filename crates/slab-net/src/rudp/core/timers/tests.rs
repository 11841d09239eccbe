use super::super::super::budget::MemoryBudget;
use super::super::super::config::{DEFAULT_WINDOW, SessionConfig};
use super::super::super::wire::{Command, Header, OURS, segments};
use super::super::Side;
use super::*;
use crate::packet::PacketPool;

const SECOND: Duration = Duration::from_secs(1);

/// Two ends of a session, and the path between them.
pub(in super::super) struct Pair {
    pool: PacketPool,
    pub(in super::super) ends: [Session; 2],
    pub(in super::super) now: Time,
}

impl Pair {
    pub(in super::super) fn new(config: SessionConfig) -> Self {
        let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
        let budget = MemoryBudget::new(8 << 20);
        let now = Time::ZERO;
        let ends = [Side::Client, Side::Server]
            .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
        Self { pool, ends, now }
    }

    /// Two ends of which the first has said hello, a second ago.
    fn acquainted(config: SessionConfig) -> Self {
        let mut pair = Self::new(config);
        pair.ends[0].send_slice(b"hello").unwrap();
        pair.talk(SECOND);
        pair
    }

    /// Lets both ends talk for this long; returns how often one of them was called for a timer.
    fn talk(&mut self, time: Duration) -> u32 {
        self.run(time, true)
    }

    /// As [`talk`](Self::talk), over a path that loses everything.
    fn talk_in_vain(&mut self, time: Duration) {
        self.run(time, false);
    }

    fn run(&mut self, time: Duration, arrives: bool) -> u32 {
        let until = self.now + time;
        let (mut wakes, mut datagrams) = (0, 0);
        while self.now < until {
            let before = datagrams;
            for from in 0..2 {
                let end = &mut self.ends[from];
                if end.poll_timeout().is_some_and(|at| at <= self.now) {
                    end.handle_timeout(self.now);
                    wakes += 1;
                }
                while let Some(datagram) = self.transmit(from) {
                    if arrives {
                        self.deliver(1 - from, &datagram);
                    }
                    datagrams += 1;
                    assert!(datagrams < 10_000, "they talk for ever");
                }
            }
            if datagrams == before {
                let next = self.ends.iter().filter_map(Session::poll_timeout).min();
                self.now = next.map_or(until, |at| at.max(self.now)).min(until);
            }
        }
        wakes
    }

    pub(in super::super) fn transmit(&mut self, from: usize) -> Option<Vec<u8>> {
        let mut scratch = [0; 2048];
        let out = self.ends[from].poll_transmit(self.now, &mut scratch, 1)?;
        Some(out.contents().to_vec())
    }

    pub(in super::super) fn deliver(&mut self, to: usize, datagram: &[u8]) {
        let datagram = self.pool.try_copy_from_slice(datagram).unwrap();
        self.ends[to].handle_datagram(self.now, datagram).unwrap();
    }

    /// What an end has to send is lost.
    fn lose(&mut self, from: usize) {
        while self.transmit(from).is_some() {}
    }
}

#[test]
fn an_idle_session_is_called_only_for_its_keepalive() {
    let mut pair = Pair::acquainted(SessionConfig::fast());
    assert!(pair.ends[1].recv().is_some());

    let wakes = pair.talk(600 * SECOND);
    // Each end asks after 15 seconds at most.
    assert!((20..=120).contains(&wakes), "{wakes} in ten minutes");
    assert!(pair.ends.iter().all(|end| end.ended().is_none()));
}

/// A session whose peer is of another implementation, which says nothing by itself, and has answered once.
fn with_silent_peer(config: &SessionConfig) -> Session {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let (budget, now) = (MemoryBudget::new(4 << 20), Time::ZERO);
    let mut session = Session::open(1, config, Side::Client, &pool, &budget, 5, now).unwrap();
    assert_eq!(datagrams(&mut session, now), 1);
    answer(&mut session, now);
    session
}

/// Sends what is due; returns the number of datagrams.
fn datagrams(session: &mut Session, now: Time) -> usize {
    let mut scratch = [0; 2048];
    let sent =
        core::iter::from_fn(|| Some(session.poll_transmit(now, &mut scratch, 1)?.datagrams()));
    sent.sum()
}

fn answer(session: &mut Session, now: Time) {
    let mut answer = [0; HEADER_BYTES];
    session.header(Command::TellWindow).encode(&mut answer);
    let answer = session.context.pool.try_copy_from_slice(&answer).unwrap();
    session.handle_datagram(now, answer).unwrap();
}

/// Calls it for its timers until it ends; returns when that is, and how many datagrams it has sent.
fn until_end(session: &mut Session) -> (Time, usize) {
    let (mut now, mut sent) = (Time::ZERO, 0);
    while let Some(next) = session.poll_timeout() {
        now = next;
        session.handle_timeout(now);
        sent += datagrams(session, now);
    }
    (now, sent)
}

/// Where the path loses one datagram in ten, one of five questions has no answer.
#[test]
fn a_question_for_a_sign_of_life_is_repeated_often() {
    let config = SessionConfig::fast();
    let mut session = with_silent_peer(&config);
    let end = Time::ZERO + config.idle_timeout;
    assert_eq!(until_end(&mut session), (end, 12));
}

/// Late by less than half of the time that a peer has to answer, but each time: that does not prolong its silence.
#[test]
fn a_session_that_is_only_called_now_and_then_is_given_up_in_time() {
    let config = SessionConfig::fast().keepalive(Duration::from_millis(100));
    let mut session = with_silent_peer(&config);
    let step = config.idle_timeout / 4;
    for calls in 1..=4 {
        assert_eq!(session.ended(), None);
        let now = Time::ZERO + step * calls;
        session.handle_timeout(now);
        datagrams(&mut session, now);
    }
    assert_eq!(session.ended(), Some(CloseReason::TimedOut));
}

/// As in a process that was stopped before it could ask, or before it could ask again.
#[test]
fn a_peer_that_was_not_asked_in_time_is_not_given_up_for_silence() {
    let config = SessionConfig::fast();
    for (asked, answers) in [(0, true), (0, false), (1, true), (1, false)] {
        let mut session = with_silent_peer(&config);
        let (mut now, mut left) = (Time::ZERO, config.idle_timeout - config.keepalive);
        if asked > 0 {
            now = now + config.keepalive;
            left -= config.keepalive / KEEPALIVE_REPEATS;
            session.handle_timeout(now);
            assert_eq!(datagrams(&mut session, now), 1);
        }
        now = now + 10 * config.idle_timeout;
        session.handle_timeout(now);
        assert_eq!((session.ended(), datagrams(&mut session, now)), (None, 1));
        if answers {
            answer(&mut session, now);
            left = config.idle_timeout;
        }
        assert_eq!(until_end(&mut session).0, now + left);
    }
}

/// A smaller delay leaves the peer time to answer.
#[test]
fn a_delay_of_half_the_time_to_answer_prolongs_a_silence() {
    let config = SessionConfig::fast();
    let half = (config.idle_timeout - config.keepalive) / 2;
    for (late, prolonged) in [
        (half - Duration::from_millis(1), Duration::ZERO),
        (half, half),
    ] {
        let mut session = with_silent_peer(&config);
        session.handle_timeout(Time::ZERO + config.keepalive + late);
        let end = Time::ZERO + config.idle_timeout + prolonged;
        assert_eq!(until_end(&mut session).0, end);
    }
}

/// The first answer with it may be lost, and the server takes nothing else.
#[test]
fn a_cookie_is_repeated_at_a_time_out() {
    let mut pair = Pair::new(SessionConfig::fast());
    pair.ends[0].send_slice(b"hello").unwrap();
    pair.lose(0);
    let mut cookie = [7; HEADER_BYTES + 8];
    let header = Header {
        ts: pair.ends[0].token,
        len: 8,
        ..pair.ends[0].header(Command::Cookie)
    };
    header.encode(&mut cookie);
    pair.deliver(0, &cookie);
    pair.lose(0);
    let before = pair.ends[0].stats().retransmits_timeout;
    while pair.ends[0].stats().retransmits_timeout == before {
        pair.now = pair.ends[0].poll_timeout().unwrap();
        pair.ends[0].handle_timeout(pair.now);
        let sent: Vec<_> = core::iter::from_fn(|| pair.transmit(0)).collect();
        let mut headers = sent.iter().flat_map(|datagram| segments(datagram));
        let repeated = headers.any(|segment| segment.unwrap().0.cmd == Command::Cookie);
        assert_eq!(repeated, pair.ends[0].stats().retransmits_timeout > before);
    }
}

#[test]
fn a_close_notice_is_repeated_until_it_arrives_or_the_linger_time_is_over() {
    for dead_for in [4 * SECOND, 20 * SECOND] {
        let mut pair = Pair::new(SessionConfig::fast());
        for end in &mut pair.ends {
            end.send_slice(b"hello").unwrap();
        }
        pair.talk(SECOND);

        pair.ends[0].close(pair.now);
        let before = pair.ends[0].stats().sent_datagrams;
        pair.talk_in_vain(dead_for);
        let notices = pair.ends[0].stats().sent_datagrams - before;
        assert!(
            (5..=12).contains(&notices),
            "{notices}, each after twice the time"
        );
        pair.talk(10 * SECOND);
        assert_eq!(pair.ends[0].ended(), Some(CloseReason::Closed));
        // When the linger time is over it hears only what answers its own question.
        assert_eq!(pair.ends[1].ended(), Some(CloseReason::ClosedByPeer));
    }
}

/// However long the application keeps the session, and whether it read before the end or after it.
#[test]
fn the_window_is_released_once_a_finished_peer_is_silent_and_all_is_read() {
    for read_before in [false, true] {
        let mut pair = Pair::new(SessionConfig::fast());
        pair.ends[0].send_slice(b"hello").unwrap();
        pair.ends[0].finish(pair.now);
        pair.talk(SECOND);
        let read = |end: &mut Session| assert_eq!(end.recv().unwrap(), b"hello"[..]);
        if read_before {
            read(&mut pair.ends[1]);
        }
        pair.talk_in_vain(100 * SECOND);
        let end = &mut pair.ends[1];
        assert_eq!(end.ended(), Some(CloseReason::TimedOut));
        if !read_before {
            assert!(end.reserved_bytes() > 0);
            read(end);
        }
        assert_eq!(end.reserved_bytes(), 0);
        // The reader is not told of the silence.
        assert!(end.recv().is_none() && end.has_received_all());
    }
}

/// Each asks as its keepalive is due, both at once, and the answers are lost.
#[test]
fn two_idle_ends_that_have_grown_do_not_ask_each_other_for_ever() {
    let config = SessionConfig::fast();
    let mut pair = Pair::acquainted(config);
    assert!(pair.ends[1].recv().is_some());
    for end in &mut pair.ends {
        // More segments than the first window has.
        end.send_slice(&[7; 100_000]).unwrap();
    }
    pair.talk(SECOND);
    assert!(pair.ends.iter_mut().all(|end| end.recv().is_some()));
    let windows = |pair: &Pair| [0, 1].map(|end| pair.ends[end].receive.window());
    assert!(windows(&pair).iter().all(|&window| window > DEFAULT_WINDOW));

    pair.now = pair.now + config.keepalive;
    let questions = [0, 1].map(|from| {
        pair.ends[from].handle_timeout(pair.now);
        pair.transmit(from).unwrap()
    });
    for to in [0, 1] {
        pair.deliver(to, &questions[1 - to]);
        pair.lose(to);
    }
    let before = pair.ends[0].stats().probes;
    pair.talk(4 * config.keepalive);
    let asked = pair.ends[0].stats().probes - before;
    assert!(asked <= 4, "{asked} questions");
    assert_eq!(windows(&pair), [DEFAULT_WINDOW; 2]);
}

/// A datagram that tells an end a window.
fn wins(wnd: u16, ts: u32, una: u32) -> [u8; HEADER_BYTES] {
    let header = Header {
        conv: 1,
        cmd: Command::TellWindow,
        frg: OURS,
        wnd,
        ts,
        sn: wnd.into(),
        una,
        len: 0,
    };
    let mut datagram = [0; HEADER_BYTES];
    header.encode(&mut datagram);
    datagram
}

#[test]
fn an_unasked_wins_does_not_count_as_an_answer_to_a_wask() {
    let mut pair = Pair::new(SessionConfig::fast());
    pair.ends[0].send_slice(b"hello").unwrap();
    // The question is lost, and so is what came with it.
    pair.lose(0);
    pair.deliver(0, &wins(64, 0, 0));
    assert!(pair.ends[0].peer.has_sent_wins && !pair.ends[0].is_peer_window_known());

    pair.ends[0].close(pair.now);
    pair.talk(20 * SECOND);
    assert_eq!(pair.ends[0].ended(), Some(CloseReason::Closed));
    assert_eq!(pair.ends[1].ended(), Some(CloseReason::ClosedByPeer));
}

/// There may be memory for it now, which there was not before.
#[test]
fn what_a_peer_waits_for_is_sent_at_once_when_its_reader_has_made_room() {
    let mut pair = Pair::acquainted(SessionConfig::fast());
    for _ in 0..2 {
        pair.ends[0].send_slice(b"refused").unwrap();
    }
    pair.talk_in_vain(5 * SECOND);
    let before = pair.ends[0].stats().retransmits_timeout;
    let told = wins(300, pair.ends[0].token, 1);
    // The second says nothing new.
    for _ in 0..2 {
        pair.deliver(0, &told);
        pair.lose(0);
        assert_eq!(pair.ends[0].stats().retransmits_timeout, before + 1);
    }
}

/// A loss that a tail-loss probe repairs is a loss like any other (RFC 8985, 7.4).
#[test]
fn a_loss_repaired_by_a_tail_probe_reduces_the_congestion_window() {
    let config = SessionConfig::default().interval(Duration::from_millis(10));
    let mut pair = Pair::acquainted(config);
    let before = pair.ends[0].control.window();

    pair.ends[0].send_slice(b"is lost").unwrap();
    pair.lose(0);
    pair.talk(SECOND);
    let stats = pair.ends[0].stats();
    assert_eq!((stats.retransmits_tail, stats.retransmits_timeout), (1, 0));
    assert!(pair.ends[0].is_sent());
    assert!(pair.ends[0].control.window() < before);
}

/// Only an acknowledgement makes room for another, and the time-out comes later.
#[test]
fn one_tail_probe_and_at_each_time_out_four_segments_are_sent_again() {
    let mut pair = Pair::acquainted(SessionConfig::default().interval(Duration::from_millis(10)));
    for _ in 0..10 {
        pair.ends[0].send_slice(&[7; 1000]).unwrap();
    }
    let mut again = Vec::new();
    while again.len() < 3 {
        pair.lose(0);
        pair.now = pair.ends[0].poll_timeout().unwrap();
        let before = pair.ends[0].stats();
        pair.ends[0].handle_timeout(pair.now);
        pair.lose(0);
        let stats = pair.ends[0].stats();
        let sent = (
            stats.retransmits_tail - before.retransmits_tail,
            stats.retransmits_timeout - before.retransmits_timeout,
        );
        if sent != (0, 0) {
            again.push(sent);
        }
    }
    assert_eq!(again, [(1, 0), (0, 4), (0, 4)]);
}

/// What arrives behind a segment shows that the peer is there, so what was sent in vain before counts no more against it.
#[test]
fn a_link_on_which_others_arrive_is_not_dead() {
    let mut pair = Pair::acquainted(SessionConfig::fast().dead_link(8));
    let time_outs = |pair: &mut Pair, count| {
        while pair.ends[0].stats().retransmits_timeout < count {
            pair.lose(0);
            assert_eq!(pair.ends[0].ended(), None);
            pair.now = pair.ends[0].poll_timeout().unwrap();
            pair.ends[0].handle_timeout(pair.now);
        }
    };
    pair.ends[0].send_slice(b"is lost").unwrap();
    time_outs(&mut pair, 4);
    pair.lose(0);
    pair.ends[0].send_slice(b"arrives").unwrap();
    let arrives = pair.transmit(0).unwrap();
    pair.deliver(1, &arrives);
    let acknowledged = pair.transmit(1).unwrap();
    pair.deliver(0, &acknowledged);
    time_outs(&mut pair, 9);
}

/// However many time-outs follow before an acknowledgement, and whatever is found lost with the segment then.
#[test]
fn repeated_time_outs_of_one_flight_reduce_the_threshold_once() {
    let mut pair = Pair::acquainted(SessionConfig::default());
    let before = pair.ends[0].control.window();

    for _ in 0..before {
        pair.ends[0].send_slice(&[7; 1000]).unwrap();
    }
    pair.talk_in_vain(3 * SECOND);
    assert_eq!(pair.ends[0].control.window(), 1);
    assert!(
        pair.ends[0].stats().retransmits_timeout > 4,
        "more than one"
    );
    pair.talk(10 * SECOND);
    assert!(pair.ends[0].is_sent());
    assert!((before / 2..before).contains(&pair.ends[0].control.window()));
}
