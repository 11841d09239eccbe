//! The case `mixed`: lengths as in a real program, with one of [`LIVE`] live blocks replaced at random.

use super::local::{alloc, random_numbers};
use super::peers::{Peer, Visit};
use crate::cpu::ThreadClock;
use crate::measure::Sampler;
use std::mem;
use std::ops::RangeInclusive;

/// Blocks that live at once.
pub(crate) const LIVE: usize = 1024;
/// The largest length.
pub(crate) const LONGEST: usize = 65_536;

const SMALLEST: RangeInclusive<usize> = 64..=512;

/// Half of the blocks are small, three tenths medium, two tenths large.
const SHARES: [(u32, RangeInclusive<usize>); 3] =
    [(50, SMALLEST), (30, 1024..=8192), (20, 16_384..=LONGEST)];

pub(crate) struct Mixed;

impl Visit for Mixed {
    type Out = Sampler;

    fn visit<P: Peer>(self) -> Sampler {
        let peer = P::open(LONGEST, LIVE + 1);
        let steps = steps();
        Sampler::timed(move |ops| replace(&peer, ops, &steps).into())
    }
}

/// Which block is replaced, and the length of the new one.
struct Step {
    slot: u16,
    len: u32,
}

/// Drawn beforehand, and equal for every peer and run.
fn steps() -> Vec<Step> {
    let mut random = random_numbers().map(|number| number as usize);
    let mut below = |limit: usize| random.next().unwrap_or(0) % limit;
    let step = |_| {
        let mut percent = below(100) as u32;
        let of_range = |(share, range): &(u32, RangeInclusive<usize>)| {
            let found = percent < *share;
            percent = percent.wrapping_sub(*share);
            found.then(|| range.clone())
        };
        let range = SHARES.iter().find_map(of_range).unwrap_or(SMALLEST);
        Step {
            len: (range.start() + below(range.end() - range.start() + 1)) as u32,
            slot: below(LIVE) as u16,
        }
    };
    (0..8 * LIVE).map(step).collect()
}

#[inline(never)]
fn replace<P: Peer>(peer: &P, ops: u64, steps: &[Step]) -> f64 {
    let mut held: Vec<_> = steps[..LIVE]
        .iter()
        .map(|step| alloc(peer, step.len as usize))
        .collect();
    let mut turn = 0;
    let clock = ThreadClock::start();
    for _ in 0..ops {
        let step = &steps[turn];
        turn = (turn + 1) % steps.len();
        let old = mem::replace(
            &mut held[usize::from(step.slot)],
            alloc(peer, step.len as usize),
        );
        peer.free(old);
    }
    let per_op = clock.elapsed_ns() / ops as f64;
    held.drain(..).for_each(|block| peer.free(block));
    per_op
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_the_documented_shares_and_ranges() {
        let steps = steps();
        let mut counts = [0; 3];
        for step in &steps {
            let len = step.len as usize;
            let share = SHARES.iter().position(|(_, range)| range.contains(&len));
            counts[share.expect("of one of the ranges")] += 1;
        }
        for (count, (share, _)) in counts.into_iter().zip(&SHARES) {
            let percent = count * 100 / steps.len();
            assert!(percent.abs_diff(*share as usize) <= 3, "{counts:?}");
        }
    }
}
