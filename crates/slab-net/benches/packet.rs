//! Packets against `bytes`, in one process and in turns: `cargo bench -p slab-net --bench packet`.
//!
//! Each row runs both in alternate samples, so that what the machine does meets both; the ratio is
//! the median of the pairs' ratios. `bytes` stands on the process's allocator, the system's.
#![allow(clippy::print_stdout, missing_docs)]

use bytes::{Buf, BufMut, Bytes, BytesMut};
use slab_net::PacketPool;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Sample pairs a row, and how long one sample takes.
struct Plan {
    pairs: usize,
    sample: Duration,
}

fn time(iterations: u32, f: &mut dyn FnMut(u32)) -> f64 {
    let start = Instant::now();
    f(iterations);
    start.elapsed().as_nanos() as f64 / f64::from(iterations)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// `items` is what one iteration counts for.
fn row(plan: &Plan, name: &str, items: u32, mut ours: impl FnMut(), mut theirs: impl FnMut()) {
    // One dynamic call a sample, so that the loops are compiled around what they measure.
    let mut ours = |n| (0..n).for_each(|_| ours());
    let mut theirs = |n| (0..n).for_each(|_| theirs());
    let once = time(100, &mut ours).max(time(100, &mut theirs)).max(0.1);
    let iterations = (plan.sample.as_nanos() as f64 / once) as u32 + 1;
    let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..plan.pairs {
        let (x, y) = if pair % 2 == 0 {
            let x = time(iterations, &mut ours);
            (x, time(iterations, &mut theirs))
        } else {
            let y = time(iterations, &mut theirs);
            (time(iterations, &mut ours), y)
        };
        a.push(x / f64::from(items));
        b.push(y / f64::from(items));
        ratios.push(y / x);
    }
    let ratio = median(&mut ratios);
    let (low, high) = (ratios[ratios.len() / 10], ratios[ratios.len() * 9 / 10]);
    println!(
        "{name:<44} {:>8.2} {:>8.2}   {ratio:>5.2}x   {low:.2}..{high:.2}",
        median(&mut a),
        median(&mut b),
    );
}

fn main() {
    // `cargo bench` says so; whoever else runs this wants to know that it runs.
    let plan = if std::env::args().any(|argument| argument == "--bench") {
        Plan {
            pairs: 601,
            sample: Duration::from_micros(300),
        }
    } else {
        Plan {
            pairs: 3,
            sample: Duration::from_micros(100),
        }
    };
    let plan = &plan;
    let pool = &PacketPool::builder().build().unwrap();
    println!(
        "{:<44} {:>8} {:>8}   {:>6}   10th..90th percentile",
        "ns per item", "packets", "bytes", "ratio"
    );

    row(
        plan,
        "alloc 2 KiB, freeze, drop",
        1,
        || drop(black_box(pool.try_alloc(2048).unwrap().freeze())),
        || drop(black_box(BytesMut::with_capacity(2048).freeze())),
    );
    row(
        plan,
        "alloc 2 KiB, write 64 B, freeze, drop",
        1,
        || {
            let mut buf = pool.try_alloc(2048).unwrap();
            buf.extend_from_slice(black_box(&[7; 64]));
            drop(black_box(buf.freeze()));
        },
        || {
            let mut buf = BytesMut::with_capacity(2048);
            buf.extend_from_slice(black_box(&[7; 64]));
            drop(black_box(buf.freeze()));
        },
    );
    row(
        plan,
        "the same, clone, drop both",
        1,
        || {
            let mut buf = pool.try_alloc(2048).unwrap();
            buf.extend_from_slice(black_box(&[7; 64]));
            let packet = black_box(buf.freeze());
            drop(black_box(packet.clone()));
            drop(packet);
        },
        || {
            let mut buf = BytesMut::with_capacity(2048);
            buf.extend_from_slice(black_box(&[7; 64]));
            let packet = black_box(buf.freeze());
            drop(black_box(packet.clone()));
            drop(packet);
        },
    );

    let ours = pool.try_copy_from_slice(&[7; 1200]).unwrap();
    // Shared already: the first clone of a `Bytes` from a vector allocates.
    let theirs = Bytes::copy_from_slice(&[7; 1200]);
    let _second = theirs.clone();
    row(
        plan,
        "clone, drop",
        1,
        || drop(black_box(ours.clone())),
        || drop(black_box(theirs.clone())),
    );
    row(
        plan,
        "slice, drop: 12 of 100 B out of 1200",
        12,
        || {
            for at in (0..1200).step_by(100) {
                drop(black_box(ours.slice(at..at + 100)));
            }
        },
        || {
            for at in (0..1200).step_by(100) {
                drop(black_box(theirs.slice(at..at + 100)));
            }
        },
    );

    let payload = &vec![7u8; 48_000];
    let mut kept_ours = Vec::with_capacity(40);
    let mut kept_theirs = Vec::with_capacity(40);
    row(
        plan,
        "64 KiB: 40 of split_to(1200), freeze; drop",
        40,
        || {
            let mut buf = pool.try_alloc(65_536).unwrap();
            // SAFETY: within the capacity; the bytes are not read.
            unsafe { buf.set_len(payload.len()) };
            for _ in 0..40 {
                kept_ours.push(buf.split_to(1200).freeze());
            }
            black_box(&mut kept_ours).clear();
        },
        || {
            let mut buf = BytesMut::with_capacity(65_536);
            // SAFETY: bytes of any value; they are not read.
            unsafe { buf.set_len(payload.len()) };
            for _ in 0..40 {
                kept_theirs.push(buf.split_to(1200).freeze());
            }
            black_box(&mut kept_theirs).clear();
        },
    );

    let mut ours = pool.try_alloc(4096).unwrap();
    let mut theirs = BytesMut::with_capacity(4096);
    macro_rules! on_both {
        ($name:literal, $items:literal, |$buf:ident| $body:expr) => {
            row(
                plan,
                $name,
                $items,
                || {
                    let $buf = black_box(&mut ours);
                    $body
                },
                || {
                    let $buf = black_box(&mut theirs);
                    $body
                },
            );
        };
    }
    on_both!("BufMut: 256 of put_u32", 256, |buf| {
        buf.clear();
        for n in 0..256 {
            buf.put_u32(n);
        }
    });
    on_both!("BufMut: 256 of put_u8", 256, |buf| {
        buf.clear();
        for n in 0..=255 {
            buf.put_u8(n);
        }
    });
    on_both!("extend_from_slice: 64 of 16 B", 64, |buf| {
        buf.clear();
        for _ in 0..64 {
            buf.extend_from_slice(black_box(&[7; 16]));
        }
    });
    on_both!("256 of put_u32, as many get_u32, reclaim", 512, |buf| {
        for n in 0..256 {
            buf.put_u32(n);
        }
        for _ in 0..256 {
            black_box(buf.get_u32());
        }
        buf.reserve(4096);
    });
    for n in 0..256 {
        ours.put_u32(n);
        theirs.put_u32(n);
    }
    let (frozen_ours, frozen_theirs) = (ours.freeze(), theirs.freeze());
    row(
        plan,
        "Buf, frozen: 256 of get_u32",
        256,
        || {
            let mut packet = frozen_ours.clone();
            while packet.has_remaining() {
                black_box(packet.get_u32());
            }
        },
        || {
            let mut packet = frozen_theirs.clone();
            while packet.has_remaining() {
                black_box(packet.get_u32());
            }
        },
    );
}
