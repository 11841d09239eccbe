//! Interleaved samples of two sides, and their statistics.

use crate::cpu::Distance;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How much to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    /// Rounds, each with one sample of ours and one of theirs.
    pub(crate) rounds: usize,
    /// Rounds of samples that are a process each.
    pub(crate) process_rounds: usize,
    /// The intended duration of a sample.
    pub(crate) sample: Duration,
    /// Divides the size of the scenarios that measure resident memory.
    pub(crate) shrink: usize,
    /// Less than this cannot be told from zero, in the unit of the case: a ratio to zero is taken to this
    /// value.
    pub(crate) resolution: f64,
}

impl Plan {
    pub(crate) fn quick() -> Self {
        Self {
            rounds: 7,
            process_rounds: 3,
            sample: Duration::from_millis(3),
            shrink: 16,
            resolution: 0.0,
        }
    }

    /// Just enough to see that something runs.
    #[cfg(test)]
    pub(crate) fn smallest() -> Self {
        Self {
            rounds: 1,
            process_rounds: 1,
            sample: Duration::from_micros(50),
            shrink: 64,
            resolution: 0.0,
        }
    }

    pub(crate) fn full() -> Self {
        Self {
            rounds: 15,
            process_rounds: 7,
            sample: Duration::from_millis(25),
            shrink: 1,
            resolution: 0.0,
        }
    }

    pub(crate) fn with_resolution(self, resolution: f64) -> Self {
        Self { resolution, ..self }
    }

    /// Returns the effort for samples that are a process each.
    pub(crate) fn for_child_processes(self) -> Self {
        Self {
            rounds: self.process_rounds,
            ..self
        }
    }

    pub(crate) fn with_longer_samples(self, times: u32) -> Self {
        Self {
            sample: self.sample * times,
            ..self
        }
    }
}

/// The reading of one sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// In the unit of the case; less is better.
    pub(crate) value: f64,
    /// The distance of the two CPUs, in cross-thread cases.
    pub(crate) distance: Option<Distance>,
}

impl From<f64> for Reading {
    fn from(value: f64) -> Self {
        Self {
            value,
            distance: None,
        }
    }
}

/// One side of a comparison, ready to take samples.
pub(crate) struct Sampler {
    run: Box<dyn FnMut(u64) -> Reading>,
    /// Operations per sample; `None` until calibrated.
    ops: Option<u64>,
}

/// Samples have at least this many operations, so that the cost of the clock is negligible.
const MIN_OPS: u64 = 1024;

impl Sampler {
    /// Makes a sampler: `run` performs that many operations and returns nanoseconds per operation.
    pub(crate) fn timed(run: impl FnMut(u64) -> Reading + 'static) -> Self {
        Self {
            run: Box::new(run),
            ops: None,
        }
    }

    /// Makes a sampler of which each call of `run` is a whole sample.
    pub(crate) fn single_run(mut run: impl FnMut() -> f64 + 'static) -> Self {
        Self {
            run: Box::new(move |_| run().into()),
            ops: Some(1),
        }
    }

    /// Finds how many operations fill a sample. The runs that this takes are the warm-up.
    fn calibrate(&mut self, plan: &Plan) {
        if self.ops.is_some() {
            return;
        }
        let target = plan.sample.as_nanos() as f64;
        let mut ops = MIN_OPS;
        loop {
            let start = Instant::now();
            let timed = (self.run)(ops).value;
            // The untimed part of a case takes time too.
            let per_op = timed.max(start.elapsed().as_nanos() as f64 / ops as f64);
            if per_op * ops as f64 > target / 4.0 {
                self.ops = Some(((target / per_op) as u64).max(MIN_OPS));
                return;
            }
            ops *= 4;
        }
    }

    /// Runs so many operations, whatever a sample has.
    pub(crate) fn run(&mut self, ops: u64) -> Reading {
        (self.run)(ops)
    }

    fn sample(&mut self) -> Reading {
        (self.run)(self.ops.unwrap_or(MIN_OPS))
    }
}

/// Median and range of a few samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// # Panics
    /// If there are no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Self {
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        }
    }
}

/// The result of the rounds of one row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Comparison {
    pub(crate) ours: Spread,
    pub(crate) theirs: Spread,
    /// Theirs over ours, from the two samples of each round: how many times better ours is.
    pub(crate) ratio: Spread,
    /// The distance of the CPUs in the rounds that count.
    pub(crate) distance: Option<Distance>,
}

#[derive(Debug, Clone, Copy)]
struct Round {
    ours: Reading,
    theirs: Reading,
}

impl Round {
    /// The distance in both samples, or `Moved` if it differed.
    fn distance(&self) -> Option<Distance> {
        match (self.ours.distance, self.theirs.distance) {
            (Some(a), Some(b)) if a == b => Some(a),
            (None, None) => None,
            _ => Some(Distance::Moved),
        }
    }
}

/// Takes alternating samples of the two sides, A B A B.
///
/// If the distance of the CPUs matters, a figure uses rounds of one distance only: more rounds are taken
/// until there are enough of one kind, at most three times as many.
pub(crate) fn interleave(plan: &Plan, ours: &mut Sampler, theirs: &mut Sampler) -> Comparison {
    ours.calibrate(plan);
    theirs.calibrate(plan);
    let mut rounds = Vec::new();
    while rounds.len() < 3 * plan.rounds && most_frequent_distance(&rounds).1.len() < plan.rounds {
        rounds.push(Round {
            ours: ours.sample(),
            theirs: theirs.sample(),
        });
    }
    let (distance, counted) = most_frequent_distance(&rounds);
    if counted.len() >= plan.rounds {
        summary(plan, &counted, distance)
    } else {
        summary(plan, &rounds, Some(Distance::Moved))
    }
}

/// Returns the rounds of the most frequent distance. "Moved" is no distance: two rounds in which the CPUs
/// moved have nothing in common.
fn most_frequent_distance(rounds: &[Round]) -> (Option<Distance>, Vec<Round>) {
    [None, Some(Distance::Near), Some(Distance::Far)]
        .into_iter()
        .map(|kind| {
            let of_kind = rounds.iter().filter(|round| round.distance() == kind);
            (kind, of_kind.copied().collect::<Vec<_>>())
        })
        .max_by_key(|(_, of_kind)| of_kind.len())
        .unwrap_or_default()
}

fn summary(plan: &Plan, rounds: &[Round], distance: Option<Distance>) -> Comparison {
    let values: Vec<_> = rounds
        .iter()
        .map(|round| (round.ours.value, round.theirs.value))
        .collect();
    Comparison {
        distance,
        ..compare(&values, Better::Less, plan.resolution)
    }
}

/// Which direction is better in the unit of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
}

/// Summarizes rounds of alternating samples (ours, theirs). Values below `resolution` cannot be told from
/// zero.
///
/// # Panics
/// If there are no rounds.
pub(crate) fn compare(rounds: &[(f64, f64)], better: Better, resolution: f64) -> Comparison {
    let at_least = |value: f64| value.max(resolution);
    let ratio = |&(ours, theirs): &(f64, f64)| match better {
        Better::Less => at_least(theirs) / at_least(ours),
        Better::More => at_least(ours) / at_least(theirs),
    };
    Comparison {
        ours: Spread::of(rounds.iter().map(|round| round.0)),
        theirs: Spread::of(rounds.iter().map(|round| round.1)),
        ratio: Spread::of(rounds.iter().map(ratio)),
        distance: None,
    }
}

/// If a peer, or ours, panics, only its own row is lost.
pub(crate) fn catch_panic<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("panicked: {}", text.unwrap_or("without a message"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            rounds: 3,
            process_rounds: 3,
            sample: Duration::from_micros(100),
            shrink: 1,
            resolution: 0.0,
        }
    }

    fn scripted(values: Vec<Reading>) -> Sampler {
        let mut values = values.into_iter();
        Sampler {
            run: Box::new(move |_| values.next().expect("no sample is left in the script")),
            ops: Some(1),
        }
    }

    fn at(value: f64, distance: Distance) -> Reading {
        Reading {
            value,
            distance: Some(distance),
        }
    }

    #[test]
    fn median_of_odd_and_even_counts() {
        let odd = Spread::of([3.0, 1.0, 2.0]);
        assert_eq!((odd.median, odd.min, odd.max), (2.0, 1.0, 3.0));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
    }

    #[test]
    fn ratio_is_of_adjacent_samples() {
        // The machine is twice as slow from the second round on: no ratio may change.
        let mut ours = scripted([1.0, 2.0, 2.0].map(Reading::from).to_vec());
        let mut theirs = scripted([3.0, 6.0, 6.0].map(Reading::from).to_vec());
        let found = interleave(&plan(), &mut ours, &mut theirs);
        assert_eq!(found.ratio, Spread::of([3.0]));
        assert_eq!(found.distance, None);
    }

    #[test]
    fn only_rounds_of_one_distance_count() {
        use Distance::{Far, Moved, Near};
        let script = |factor: f64| {
            let reading = |(value, distance)| at(factor * value, distance);
            let script = [
                (9.0, Far),
                (1.0, Near),
                (5.0, Moved),
                (1.0, Near),
                (1.0, Near),
            ];
            scripted(script.map(reading).to_vec())
        };
        let found = interleave(&plan(), &mut script(1.0), &mut script(2.0));
        assert_eq!(found.distance, Some(Near));
        assert_eq!(found.ours, Spread::of([1.0]));
    }

    #[test]
    fn too_few_rounds_of_one_distance_are_marked_moved() {
        let script = || scripted(vec![at(1.0, Distance::Moved); 9]);
        let found = interleave(&plan(), &mut script(), &mut script());
        assert_eq!(found.distance, Some(Distance::Moved));
    }

    #[test]
    fn the_ratio_is_times_better_for_costs_and_for_rates() {
        let rounds = [(10.0, 5.0)];
        assert_eq!(compare(&rounds, Better::More, 0.0).ratio, Spread::of([2.0]));
        assert_eq!(compare(&rounds, Better::Less, 0.0).ratio, Spread::of([0.5]));
        let nothing = [(0.0, 5.0)];
        assert_eq!(
            compare(&nothing, Better::Less, 0.5).ratio,
            Spread::of([10.0])
        );
    }

    #[test]
    fn a_panic_loses_only_its_own_row() {
        let reason = catch_panic(|| -> () { panic!("out of {}", "luck") });
        assert_eq!(reason, Err("panicked: out of luck".into()));
    }

    #[test]
    fn calibration_fills_a_sample() {
        let mut sampler = Sampler::timed(|_| 10.0.into());
        sampler.calibrate(&plan());
        assert_eq!(sampler.ops, Some(10_000));
    }
}
