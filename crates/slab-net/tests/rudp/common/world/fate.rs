//! What may become of the sessions of an eventful world, and what they may cost meanwhile.

use super::World;
use slab_net::rudp::CloseReason::{self, *};
use std::time::Duration;

/// No end takes longer to give up than its timers say, and this.
const SLACK: Duration = Duration::from_secs(400);

impl World {
    /// Lets everything happen, then closes what is still open, and runs until both ends have ended and are silent.
    pub(crate) fn live(&mut self) {
        let Some(life) = &self.life else { return };
        let times = (life.idle_timeout, life.linger);
        let limit = self.now + life.horizon;
        self.run_until(limit);
        self.now = self.now.max(limit);
        self.check_nobody_waits_for_the_dead();
        for end in 0..2 {
            if self.random.chance(700) {
                self.act(end, super::life::Act::Close);
                self.drive(end);
            }
        }
        let limit = self.now + times.0 * 2 + SLACK + times.1;
        self.run_until(limit);
        self.now = limit;
        for end in [0, 1] {
            if !self.is_over(end) {
                self.act(end, super::life::Act::Close);
                self.drive(end);
            }
        }
        let limit = self.now + times.0 * 2 + SLACK + times.1;
        self.run_until(limit);
        for end in [0, 1] {
            assert!(self.is_over(end), "it lives for ever: {}", self.state());
        }
        self.check_ends_are_silent();
        self.check_fates();
        self.check_all_is_given_back();
    }

    /// Why both ends have ended, and whether an end began anew.
    pub(crate) fn fates(&self) -> ([Option<CloseReason>; 2], bool) {
        let anew = |end: &super::End| end.did.crash && !end.did.is_down();
        let reasons = self.ends.each_ref().map(|end| end.session.ended());
        (reasons, self.ends.iter().any(anew))
    }

    fn is_over(&self, end: usize) -> bool {
        let end = &self.ends[end];
        end.session.ended().is_some() || end.did.is_down()
    }

    fn run_until(&mut self, limit: slab_net::rudp::Time) {
        while self.step(limit) {
            for end in [0, 1] {
                self.check_end_of_input(end);
            }
            assert!(self.steps < 1_000_000, "goes on for ever: {}", self.state());
        }
    }

    pub(super) fn state(&self) -> String {
        let ends = self.ends.each_ref().map(|end| {
            let (sent, read) = (end.accepted(), end.received);
            let ended = end.session.ended();
            let session = &end.session;
            (session.conv(), sent, read, ended, end.did, end.plan)
        });
        let acts = self.life.as_ref().map(|life| &life.acts);
        format!(
            "seed {} at {:?}: {:#?} {acts:?} {:?} {:?}",
            self.seed,
            self.now.since(self.started),
            ends,
            self.path,
            self.ends.each_ref().map(|end| &end.session),
        )
    }

    /// An end that finds the end of what the peer sends, while it is open itself, has everything.
    fn check_end_of_input(&self, end: usize) {
        let (me, peer) = (&self.ends[end], &self.ends[1 - end]);
        let left = me.did.close || me.did.finish || me.plan.finishes;
        let open = me.session.ended().is_none() && !left;
        let unread = me.session.has_message() || me.session.has_bytes();
        if !open || unread || !me.session.is_read_closed() || peer.did.crash || me.did.crash {
            return;
        }
        let all = me.received == peer.accepted() && peer.plan.finishes;
        assert!(all, "the end before everything: {}", self.state());
    }

    /// What is sent while nothing comes: a window, the probes of each time-out, questions and keepalives.
    pub(super) fn check_sends_little_into_silence(&self, end: usize) {
        if self.life.is_none() {
            return;
        }
        let me = &self.ends[end];
        let silent = self.now.since(me.heard).as_secs() as usize;
        let datagrams = 2 * self.opening.send_window() + 200 + 4 * silent;
        let few = me.bytes_unheard <= datagrams * self.mtu;
        assert!(few, "{} bytes: {}", me.bytes_unheard, self.state());
    }

    /// Long after one end has gone without a word, the other knows.
    fn check_nobody_waits_for_the_dead(&self) {
        for end in [0, 1] {
            let waits = self.ends[end].did.is_down() && !self.is_over(1 - end);
            assert!(!waits, "it waits for the dead: {}", self.state());
        }
    }

    /// Two that have ended do not talk for ever, nor does one of them with nobody.
    fn check_ends_are_silent(&mut self) {
        let (steps, limit) = (self.steps, self.now + Duration::from_secs(3600));
        if self.exhausts_pool {
            return;
        }
        while self.step(limit) {
            assert!(self.steps < steps + 1000, "never silent: {}", self.state());
        }
    }

    /// Why each end has ended, and what was delivered by then.
    fn check_fates(&self) {
        let crashed = self.ends.iter().any(|end| end.did.crash);
        for end in [0, 1] {
            let (me, peer) = (&self.ends[end], &self.ends[1 - end]);
            let Some(reason) = me.session.ended() else {
                continue;
            };
            let state = || format!("end {end}: {}", self.state());
            let (my_end, peer_end) = (
                me.did.close || me.did.finish || me.plan.finishes,
                peer.did.close || peer.did.finish || peer.plan.finishes,
            );
            match reason {
                Aborted => assert!(me.did.abort, "{}", state()),
                Closed => assert!(my_end, "{}", state()),
                LingerExpired => {
                    let short = self.life.as_ref().is_some_and(|life| life.linger < SLACK);
                    let stuck = short || peer.did.pause || self.may_fall_silent(end);
                    assert!(my_end && stuck, "{}", state());
                }
                ClosedByPeer => assert!(peer_end || my_end, "{}", state()),
                Reset => {
                    let why = peer.session.ended();
                    let gave_up =
                        matches!(why, Some(Aborted | LingerExpired | TimedOut | DeadLink));
                    assert!(gave_up || crashed, "{}", state());
                }
                TimedOut | DeadLink => assert!(self.may_fall_silent(end), "{}", state()),
                other => panic!("{other}: {}", state()),
            }
            let reads = !peer.did.pause && !peer.did.close && !peer.did.abort;
            let late = peer.plan.reads_every > 0 || self.exhausts_pool;
            let lost_unread = late && (crashed || !is_graceful(peer.session.ended()));
            let read = peer.received.max(peer.did.received_before);
            let gave_up = peer.plan.finishes && !peer.session.is_peer_ours();
            if reason == Closed && reads && !lost_unread && !gave_up {
                let all = me.did.crash || read == me.accepted();
                assert!(all, "what was said to be delivered was not: {}", state());
            }
            if reason == ClosedByPeer && !my_end && !crashed && !me.did.pause {
                let all = me.received == peer.accepted();
                assert!(all, "closed before everything: {}", state());
            }
        }
    }

    /// Is there a reason for this end to hear nothing for long?
    fn may_fall_silent(&self, end: usize) -> bool {
        let (me, peer) = (&self.ends[end], &self.ends[1 - end]);
        let (from, until) = self.path.outage;
        let few = self.life.as_ref().is_some_and(|life| life.dead_link < 1000);
        let harsh = self.path.drop > 0 || from < until || few || self.exhausts_pool;
        harsh
            || me.did.leap
            || peer.did.leap
            || peer.did.crash
            || me.did.crash
            || peer.did.abort && !peer.session.is_peer_ours()
    }

    /// Nothing is held for sessions that have ended and are read, though both are still there.
    fn check_all_is_given_back(&mut self) {
        self.taken.clear();
        for end in &mut self.ends {
            while end.session.read().is_some() {}
            while end.session.recv_datagram().is_some() {}
        }
        let in_use = self.pool.slab().stats().in_use_bytes();
        assert!(
            in_use <= self.in_transit_bytes,
            "{in_use} bytes: {}",
            self.state()
        );
        for end in self.ends.iter().filter(|end| !end.did.is_down()) {
            let reserved = end.session.reserved_bytes();
            assert_eq!(reserved, 0, "{}", self.state());
        }
    }
}

fn is_graceful(reason: Option<CloseReason>) -> bool {
    matches!(reason, Some(Closed | ClosedByPeer))
}
