//! Random programs against queues and a plain model of them, compared after every step: who sends, receives,
//! waits, gives up, comes and goes, under each overflow policy. Each batch is delivered once and in order, or
//! counted under the right reason; nobody is left waiting who could go on; all memory comes back.
//!
//! | file | what |
//! |---|---|
//! | `machine` | makes up the steps from a seed, and runs them |
//! | `waiting` | the futures of a program, and what the model says of them |
//! | `model` | what a queue promises |
//!
//! A failure names its seed: see `programs`.

mod machine;
mod model;
#[path = "../programs/mod.rs"]
mod programs;
mod waiting;

use machine::{Machine, Reached};
use std::cell::RefCell;

#[test]
fn queues_match_their_model() {
    let reached = RefCell::new(Reached::default());
    let are_all = programs::run(300, |seed| {
        let reached = &reached;
        async move {
            let mut machine = Machine::new(seed, reached.take());
            for _ in 0..600 {
                machine.step().await;
            }
            machine.end_one_side().await;
            reached.replace(machine.finish());
        }
    });
    if are_all {
        for (what, count) in reached.borrow().all() {
            assert!(count >= 100, "{what}: {count} in all programs");
        }
    }
}
