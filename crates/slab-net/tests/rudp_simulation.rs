//! Two sessions over a path that drops, duplicates, reorders, delays, cuts out and corrupts, in
//! virtual time, some with error correction. `RUDP_SEEDS=10000` runs more; `RUDP_SEED=n` runs one again.

#[path = "rudp/common/mod.rs"]
mod common;

use common::arbitrary_peer::ArbitraryPeer;
use common::random::seeds;
use common::world::World;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

#[expect(clippy::print_stderr, reason = "which seed to run again")]
fn for_each_seed(default: u64, run: impl Fn(u64)) {
    for seed in seeds(default) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("failed with RUDP_SEED={seed}");
            resume_unwind(panic);
        }
    }
}

#[test]
fn everything_arrives_once_in_order_and_no_buffer_is_lost() {
    let cut = Cell::new(0);
    for_each_seed(120, |seed| {
        let mut world = World::new(seed, false);
        world.run();
        world.check_memory();
        cut.set(cut.get() + u32::from(world.outage_drops > 0));
        world.finish();
    });
    // In one world of five, but a single seed that is run again may have none.
    if seeds(120).count() >= 100 {
        assert!(cut.get() >= 10, "the path was cut in {} worlds", cut.get());
    }
}

#[test]
fn everything_arrives_between_ends_that_do_not_recognise_each_other() {
    for_each_seed(60, |seed| {
        let mut world = World::foreign(seed);
        world.run();
        world.check_memory();
        assert!(world.ends.iter().all(|end| !end.session.is_peer_ours()));
        world.finish();
    });
}

#[test]
fn corrupted_datagrams_do_not_break_memory_accounting() {
    for_each_seed(60, |seed| {
        let mut world = World::new(seed, true);
        let limit = world.now + Duration::from_secs(30);
        while world.steps < 1500 && world.step(limit) {}
        world.check_memory();
        world.finish();
    });
}

#[test]
fn an_arbitrary_peer_breaks_no_accounting_and_causes_no_busy_loop() {
    let ran = Cell::new(0);
    for_each_seed(150, |seed| {
        if let Some(peer) = ArbitraryPeer::new(seed) {
            peer.run();
            ran.set(ran.get() + 1);
        }
    });
    assert!(ran.get() > 0 || seeds(150).count() < 10);
}

#[test]
fn a_session_dropped_or_aborted_at_any_time_frees_all_memory() {
    for_each_seed(60, |seed| {
        let mut world = World::new(seed, false);
        let limit = world.now + Duration::from_secs(3000);
        let steps = seed * 7 % 400;
        while world.steps < steps && world.step(limit) {}
        if seed % 2 == 0 {
            world.ends[0].session.abort();
            assert_eq!(world.ends[0].session.reserved_bytes(), 0);
            world.drive(0);
        }
        world.finish();
    });
}

#[test]
fn what_was_accepted_before_a_close_at_any_time_arrives() {
    for_each_seed(60, |seed| {
        let mut world = World::new(seed, false);
        let limit = world.now + Duration::from_secs(3000);
        let steps = seed * 11 % 500;
        while world.steps < steps && world.step(limit) {}
        world.close_and_run();
        world.check_memory();
        world.finish();
    });
}

/// They are closed, finished, aborted, not read, cut off, told another time, or lose their peer, in any order.
#[test]
fn whatever_happens_to_sessions_they_end_and_keep_their_word() {
    let seen = RefCell::new((HashSet::new(), 0));
    for_each_seed(80, |seed| {
        let mut world = World::eventful(seed);
        world.live();
        world.check_memory();
        let (reasons, anew) = world.fates();
        let mut seen = seen.borrow_mut();
        seen.0.extend(reasons);
        seen.1 += u32::from(anew);
        world.finish();
    });
    let (reasons, anew) = seen.into_inner();
    if seeds(80).count() >= 300 {
        // All but `Refused` and `MessageTooLong`, and a session that was gone before it ended.
        assert_eq!(reasons.len(), 8, "{reasons:?}");
        assert!(anew > 0, "no server has begun anew");
    }
}

#[test]
fn the_same_seed_makes_the_same_trace() {
    for seed in [3, 77_777] {
        let run = || {
            let mut world = World::new(seed, false);
            world.run();
            world.finish()
        };
        assert_eq!(run(), run());
        let live = || {
            let mut world = World::eventful(seed);
            world.live();
            world.finish()
        };
        assert_eq!(live(), live());
    }
}
