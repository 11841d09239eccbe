//! Cases about resident memory, each sample in a process of its own: `migration-rss`,
//! `footprint-64`, `typed-footprint`, `churn-rss`, `trim-rss` and their like.

mod scenarios;

use super::OURS;
use super::peers::{self, Heap, VisitHeap, visit_heap};
use crate::measure::{Plan, Sampler};
use std::panic;
use std::process::{Command, ExitCode};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Eight threads in a ring; each frees what the previous one allocated, then allocates as much itself,
    /// for two laps.
    Migration,
    /// Many small objects alive at once.
    Footprint,
    /// The same with a typed slab; with or without the memory of the handles.
    TypedFootprint { handles: bool },
    /// Ten times: fill up with blocks of this length, then free nine tenths at random.
    Churn(usize),
    /// How much the peak grows after the first of these ten rounds.
    ChurnGrowth,
    /// Nine tenths freed at random and the free memory given back: what stays resident.
    TrimResidue,
    /// How long giving it back takes.
    TrimTime,
}

impl Scenario {
    pub(crate) const ALL: [Self; 9] = [
        Self::Migration,
        Self::Footprint,
        Self::TypedFootprint { handles: false },
        Self::TypedFootprint { handles: true },
        Self::Churn(2048),
        Self::Churn(64),
        Self::ChurnGrowth,
        Self::TrimResidue,
        Self::TrimTime,
    ];

    /// Returns the name of the case.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Migration => "migration-rss".into(),
            Self::Footprint => "footprint-64".into(),
            Self::TypedFootprint { handles: false } => "typed-footprint".into(),
            Self::TypedFootprint { handles: true } => "typed-footprint-handles".into(),
            Self::Churn(2048) => "churn-rss".into(),
            Self::Churn(len) => format!("churn-rss-{len}"),
            Self::ChurnGrowth => "churn-growth".into(),
            Self::TrimResidue => "trim-rss".into(),
            Self::TrimTime => "trim-time".into(),
        }
    }

    /// Returns the unit; mostly resident memory over live payload.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Migration => "x payload",
            Self::Footprint | Self::TypedFootprint { .. } | Self::Churn(_) | Self::ChurnGrowth => {
                "% of payload"
            }
            Self::TrimResidue => "x what lives",
            Self::TrimTime => "ms/GiB returned",
        }
    }

    /// Returns the value too small to tell from zero, in the unit: one page of the payload.
    pub(crate) fn resolution(self) -> f64 {
        match self {
            Self::ChurnGrowth => 0.01,
            _ => 0.0,
        }
    }

    pub(crate) fn peers(self) -> &'static [&'static str] {
        peers::HEAPS
    }

    /// Returns how many objects live at once.
    fn objects(self, plan: &Plan) -> usize {
        match self {
            // With fewer, the figure would be about eight threads' caches.
            Self::Migration => 32_768 / plan.shrink.min(4),
            Self::Footprint | Self::TypedFootprint { .. } => {
                scenarios::MAX_TYPED_OBJECTS / plan.shrink
            }
            Self::Churn(64) => 1_600_000 / plan.shrink,
            Self::Churn(_) | Self::ChurnGrowth | Self::TrimResidue | Self::TrimTime => {
                100_000 / plan.shrink
            }
        }
    }

    /// Makes samples that each run this program once. Fails if the first one does.
    pub(crate) fn sampler(self, peer: &str, plan: &Plan) -> Result<Sampler, String> {
        let objects = self.objects(plan).to_string();
        let peer = peer.to_owned();
        let run = move || in_child(&self.name(), &peer, &objects);
        run()?;
        Ok(Sampler::single_run(move || {
            run().expect("what ran once in a child process runs again")
        }))
    }
}

fn in_child(scenario: &str, peer: &str, objects: &str) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["--child", scenario, peer, objects])
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(|_| {
        let problem = String::from_utf8_lossy(&output.stderr);
        match problem.trim() {
            "" => "its child process said nothing".into(),
            known => known.to_owned(),
        }
    })
}

/// The child's side: measures once and prints the figure.
pub(crate) fn child(arguments: &[String]) -> ExitCode {
    let [scenario, peer, objects] = arguments else {
        eprintln!("--child takes a scenario, a peer and a number of objects");
        return ExitCode::from(2);
    };
    let known = Scenario::ALL
        .into_iter()
        .find(|known| known.name() == *scenario);
    let (Some(scenario), Ok(objects)) = (known, objects.parse()) else {
        eprintln!("no such scenario: {scenario} of {objects} objects");
        return ExitCode::from(2);
    };
    // If one thread panicked, the others would wait for it.
    panic::set_hook(Box::new(|problem| {
        eprintln!("{problem}");
        std::process::exit(101);
    }));
    let found = match scenario {
        Scenario::TypedFootprint { handles } if peer == OURS => {
            Ok(Some(scenarios::typed_footprint(objects, handles)))
        }
        _ => visit_heap(peer, Run { scenario, objects }),
    };
    match found {
        Ok(Some(value)) => {
            println!("{value}");
            ExitCode::SUCCESS
        }
        Ok(None) => {
            eprintln!("it has no call that gives memory back");
            ExitCode::from(2)
        }
        Err(missing) => {
            eprintln!("{missing}");
            ExitCode::from(2)
        }
    }
}

struct Run {
    scenario: Scenario,
    objects: usize,
}

impl VisitHeap for Run {
    type Out = Option<f64>;

    fn visit<P>(self) -> Option<f64>
    where
        P: Heap,
        for<'p> P::Block<'p>: Send,
    {
        let objects = self.objects;
        Some(match self.scenario {
            Scenario::Migration => scenarios::migration::<P>(objects),
            Scenario::Footprint | Scenario::TypedFootprint { handles: false } => {
                scenarios::footprint::<P>(objects, false)
            }
            Scenario::TypedFootprint { handles: true } => scenarios::footprint::<P>(objects, true),
            Scenario::Churn(len) => scenarios::churn::<P>(objects, len).peak,
            Scenario::ChurnGrowth => scenarios::churn::<P>(objects, 2048).growth,
            Scenario::TrimResidue => scenarios::trim::<P>(objects)?.residue,
            Scenario::TrimTime => scenarios::trim::<P>(objects)?.ms_per_gib,
        })
    }
}
