//! Random programs of an application's tasks over two endpoints, in virtual time, against a model: what was accepted
//! comes once and in order, no wait is forgotten, all memory comes back. `RUDP_SEEDS=10000` runs more;
//! `RUDP_SEED=n` runs one again.
//!
//! | file | what |
//! |---|---|
//! | `world` | the choices that a seed makes, and what goes wrong |
//! | `end` | what the tasks at one end do, and what they may find |
//! | `task` | calls, polled by hand, so that a wake-up that is missing shows |
//! | `path` | what happens to datagrams on the way |
//! | `rough` | the path is cut for longer than sessions wait, and the server begins anew |
//! | `checks` | what must hold once nothing happens any more, and at the end |
//! | `coverage` | what the programs have reached |

#![cfg(all(feature = "fec", feature = "aes-gcm"))]

mod checks;
#[path = "../rudp/common/mod.rs"]
mod common;
mod coverage;
mod end;
mod path;
mod rough;
mod task;
mod world;

use common::random::seeds;
use coverage::Coverage;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use world::World;

#[test]
#[expect(clippy::print_stderr, reason = "which seed to run again")]
fn what_is_accepted_arrives_once_and_no_wait_is_forgotten() {
    let mut total = Coverage::default();
    for seed in seeds(100) {
        let run = AssertUnwindSafe(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .start_paused(true)
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut world = World::new(seed);
                world.run().await;
                world.coverage
            })
        });
        match catch_unwind(run) {
            Ok(coverage) => total.add(&coverage),
            Err(panic) => {
                eprintln!("failed with RUDP_SEED={seed}");
                resume_unwind(panic);
            }
        }
    }
    // A single seed that is run again does not reach everything.
    if seeds(100).count() >= 100 {
        assert_eq!(total.missed(), [""; 0], "{total:?}");
    }
}
