//! The benchmarks of the systems that packet-slab replaces, row by row, on Criterion: see
//! `benches/README.md`.
#![allow(missing_docs)]

mod common;
mod cpp_slab;
mod fastalloc_crate;
mod funny_slab;
mod go_slab;

criterion::criterion_main!(
    go_slab::benches,
    funny_slab::benches,
    fastalloc_crate::benches,
    cpp_slab::benches
);
