//! What must hold once nothing happens any more, and at the end.

use crate::task::{Role, Task};
use crate::world::World;
use slab_net::rudp::CloseReason;

impl World {
    /// Nothing has happened for long: who waits has nothing to wait for, and would not get anything by asking.
    pub(crate) fn check_all_is_read(&mut self) {
        self.check_nobody_waits_for_the_dead();
        for at in 0..self.sessions.len() {
            let (_, [Some(client), Some(server)]) = &self.sessions[at] else {
                continue;
            };
            let aborted = client.aborted || server.aborted;
            let broken = self.usage.rough && (client.is_broken() || server.is_broken());
            let stuck = self.may_be_stuck || aborted || broken;
            for (from, to) in [(client, server), (server, client)] {
                let late = from.closed && to.end_read == Some(Err(CloseReason::Reset));
                // What one that began anew has no room for it does not acknowledge, until the link counts as dead.
                let unsent = from.connection.as_ref().is_some_and(|c| !c.is_sent());
                if stuck || to.closed || to.gave_up || late || from.anew || to.anew && unsent {
                    continue;
                }
                let state = (&from.connection, &to.connection);
                assert!(from.sent.is_read(), "never read: {state:?}");
                if from.finished {
                    assert_eq!(to.end_read, Some(Ok(())), "no end: {state:?}");
                }
                let writing = |task: &Task| task.role == Role::Writer && task.is_waiting();
                assert!(!from.tasks.iter().any(writing), "still writing: {state:?}");
            }
            for side in 0..2 {
                let Some(end) = &mut self.sessions[at].1[side] else {
                    continue;
                };
                for task in &mut end.tasks {
                    // A writer whose peer is stuck may have a little room, but not enough to be woken for.
                    let may_write = task.role == Role::Writer && stuck;
                    if !task.is_waiting() || task.is_woken() || may_write {
                        continue;
                    }
                    let outcome = task.poll(true);
                    assert!(outcome.is_none(), "a {:?} was not woken", task.role);
                }
            }
        }
    }

    pub(crate) fn count(&mut self) {
        for monitor in &self.monitors {
            let Some(stats) = monitor.stats() else {
                continue;
            };
            let coverage = &mut self.coverage;
            coverage.segments_dropped += stats.total.dropped_no_memory;
            coverage.window_refused += stats.total.window_refused;
            coverage.cookies += stats.cookies_taken;
            coverage.recovered += stats.fec.recovered;
        }
        for pool in &self.pools {
            let classes = 0..pool.slab().size_classes().sizes().len();
            let times = classes.filter_map(|class| pool.slab().wait_times(class));
            self.coverage.memory_waits += times.map(|times| times.count()).sum::<u64>();
        }
    }

    pub(crate) fn check_all_is_back(&mut self) {
        for monitor in &self.monitors {
            assert!(monitor.is_gone(), "an endpoint goes on: {monitor:?}");
        }
        for pool in &self.pools {
            let in_use = pool.slab().stats().in_use();
            assert_eq!(in_use, 0, "chunks still in use");
        }
    }
}
