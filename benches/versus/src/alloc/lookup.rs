//! `class-lookup`: the class of a length, as ours finds it and as one would write it by hand.

use super::OURS;
use super::peers::Missing;
use crate::alloc::local::random_numbers;
use crate::cpu::ThreadClock;
use crate::measure::Sampler;
use slab_core::{SizeClasses, SlabPool};
use std::hint::black_box;

/// Lengths that are looked up in turn: too many for the branch predictor to learn.
const LENGTHS: usize = 1024;

/// The loop over the lengths alone, which is part of each row's figures.
const NO_LOOKUP: &str = "no-lookup";

pub(super) const PEERS: &[&str] = &[NO_LOOKUP, "binary-search", "linear"];

/// Uses the network's classes and lengths up to 64 KiB, or the classes of general use and lengths from
/// there to 1 MiB.
pub(super) fn sampler(source: &str, large: bool) -> Result<Sampler, Missing> {
    let classes = if large {
        SizeClasses::general()
    } else {
        SizeClasses::network()
    };
    let least = if large { 65_536 } else { 0 };
    let most = *classes.sizes().last().expect("there are classes");
    let lens: Vec<usize> = random_numbers()
        .map(|random| least + 1 + random as usize % (most - least))
        .take(LENGTHS)
        .collect();
    let sizes = classes.sizes().to_vec();
    match source {
        OURS => {
            let pool = SlabPool::builder().size_classes(classes).build();
            let pool = pool.expect("the configuration is valid");
            Ok(lookup_sampler(lens, move |len| pool.class_for(len)))
        }
        NO_LOOKUP => Ok(lookup_sampler(lens, Some)),
        "binary-search" => Ok(lookup_sampler(lens, move |len| {
            Some(sizes.partition_point(|&size| size < len))
        })),
        "linear" => Ok(lookup_sampler(lens, move |len| {
            sizes.iter().position(|&size| size >= len)
        })),
        _ => Err(Missing::Unknown),
    }
}

fn lookup_sampler(
    lens: Vec<usize>,
    class_for: impl Fn(usize) -> Option<usize> + 'static,
) -> Sampler {
    Sampler::timed(move |ops| {
        let rounds = ops.div_ceil(LENGTHS as u64);
        let clock = ThreadClock::start();
        for _ in 0..rounds {
            let lens = black_box(lens.as_slice()).iter();
            let classes = lens.filter_map(|&len| class_for(len));
            black_box(classes.sum::<usize>());
        }
        (clock.elapsed_ns() / (rounds * LENGTHS as u64) as f64).into()
    })
}
