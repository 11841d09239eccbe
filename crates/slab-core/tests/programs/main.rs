//! Random programs against a pool and a plain model of it, compared after every step: live chunks
//! never overlap, contents survive, counters agree, refusals are right, waiters are served in
//! order, the cap holds.
//!
//! | file | what |
//! |---|---|
//! | `op` | the steps a program is made of |
//! | `machine` | runs them, one at a time, on several threads |
//! | `model` | what the pool promises |
//! | `concurrent` | programs on several threads at once |
//! | `typed` | the same idea over typed slabs, in each mode |
//!
//! `fuzz/` runs the same programs.

mod concurrent;
mod machine;
mod model;
mod op;
mod typed;

use op::Step;
use proptest::prelude::*;

fn config() -> ProptestConfig {
    if cfg!(miri) {
        // Miri cannot write a file of failures.
        ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(2)
        }
    } else {
        // PROPTEST_CASES in the environment asks for more, or fewer.
        match std::env::var_os("PROPTEST_CASES") {
            None => ProptestConfig::with_cases(64),
            Some(_) => ProptestConfig::default(),
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let longest = if cfg!(miri) { 25 } else { 200 };
    prop::collection::vec(
        any::<[u8; Step::BYTES]>().prop_map(Step::from_bytes),
        1..longest,
    )
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn pool_matches_its_model(choice in 0u8..32, steps in steps()) {
        machine::run(choice, &steps);
    }
}
