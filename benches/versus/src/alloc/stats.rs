//! The cost of one snapshot of the statistics: ours against glibc's `mallinfo2`, the only peer that keeps
//! statistics without a special build.

use super::OURS;
use super::peers::Missing;
use crate::cpu::{Cpus, ThreadClock, pin};
use crate::measure::Sampler;
use slab_core::{SizeClasses, SlabPool};
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Takes snapshots of a pool with eleven classes in which two threads have magazines.
pub(crate) fn sampler(source: &str, busy: bool, cpus: Cpus) -> Result<Sampler, Missing> {
    match source {
        OURS => {
            let classes = SizeClasses::geometric(64, 65_536, 2.0).expect("eleven powers of two");
            let pool = SlabPool::builder()
                .name("versus-stats")
                .size_classes(classes)
                .build()
                .expect("the configuration is valid");
            let (other, sizes) = (pool.clone(), pool.size_classes().clone());
            let load = move || {
                for &bytes in sizes.sizes() {
                    drop(black_box(other.try_alloc(bytes)));
                }
            };
            let snapshot = move || {
                // `black_box` of the 4 KiB themselves would copy them.
                black_box(&pool.stats());
            };
            Ok(snapshot_sampler(snapshot, load, busy, cpus))
        }
        "glibc" => {
            let load = || {
                for shift in 6..=16 {
                    drop(black_box(Vec::<u8>::with_capacity(1 << shift)));
                }
            };
            let snapshot = || {
                // SAFETY: the function takes no argument and may be called at any time on any thread.
                black_box(&unsafe { libc::mallinfo2() });
            };
            Ok(snapshot_sampler(snapshot, load, busy, cpus))
        }
        _ => Err(Missing::Unknown),
    }
}

fn snapshot_sampler(
    snapshot: impl Fn() + 'static,
    load: impl Fn() + Send + Sync + 'static,
    busy: bool,
    cpus: Cpus,
) -> Sampler {
    Sampler::timed(move |ops| {
        let stop = AtomicBool::new(false);
        let (ready, done) = (Barrier::new(2), Barrier::new(2));
        load();
        let per_op = thread::scope(|scope| {
            scope.spawn(|| {
                if let Some(other) = cpus.other {
                    pin(other);
                }
                load();
                ready.wait();
                while busy && !stop.load(Ordering::Relaxed) {
                    load();
                }
                done.wait();
            });
            ready.wait();
            let clock = ThreadClock::start();
            for _ in 0..ops {
                snapshot();
            }
            let per_op = clock.elapsed_ns() / ops as f64;
            stop.store(true, Ordering::Relaxed);
            done.wait();
            per_op
        });
        per_op.into()
    })
}
