//! Empty: see `benches/fast_paths.rs`, and `ci/instructions` for how it is run.
