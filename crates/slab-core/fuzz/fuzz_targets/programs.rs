//! The programs of `tests/programs`, chosen by coverage: the first byte selects the pool, each further four
//! bytes are a step.
#![no_main]

#[path = "../../tests/programs/machine.rs"]
mod machine;
#[path = "../../tests/programs/model.rs"]
mod model;
#[path = "../../tests/programs/op.rs"]
mod op;

use op::Step;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, rest)) = bytes.split_first() else {
        return;
    };
    let (steps, _) = rest.as_chunks::<{ Step::BYTES }>();
    let steps: Vec<Step> = steps
        .iter()
        .take(200)
        .copied()
        .map(Step::from_bytes)
        .collect();
    machine::run(choice, &steps);
});
