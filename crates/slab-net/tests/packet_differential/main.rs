//! Programs on packets and on `bytes` side by side (see `machine`): random ones, and those in the corpus of
//! the fuzz target `packet`.

mod input;
mod machine;
mod op;

use op::Op;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io::Write as _;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

fn bound() -> impl Strategy<Value = Bound<usize>> {
    let n = prop_oneof![8 => 0..40usize, 2 => 0..3000usize, 1 => Just(usize::MAX)];
    prop_oneof![
        n.clone().prop_map(Bound::Included),
        n.prop_map(Bound::Excluded),
        Just(Bound::Unbounded),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    use Op::*;
    let slot = 0..16usize;
    let s = || slot.clone();
    let len = move || prop_oneof![6 => 0..100usize, 3 => 0..5000usize, 1 => 0..40_000usize];
    let data = move || {
        prop_oneof![
            6 => prop::collection::vec(any::<u8>(), 0..80),
            1 => prop::collection::vec(any::<u8>(), 200..3000),
        ]
    };
    let making = prop_oneof![
        4 => len().prop_map(Alloc),
        1 => Just(New),
        1 => data().prop_map(FromVec),
        1 => Just(FromStatic),
        1 => data().prop_map(FromOwner),
        1 => data().prop_map(CopyFromSlice),
        1 => len().prop_map(Zeroed),
        1 => data().prop_map(Collect),
    ];
    let writing = prop_oneof![
        (s(), data()).prop_map(|(s, d)| Extend(s, d)),
        (s(), data()).prop_map(|(s, d)| ExtendByBytes(s, d)),
        (s(), s()).prop_map(|(s, t)| ExtendByPairs(s, t)),
        (s(), bound(), bound()).prop_map(|(s, a, b)| ExtendWithin(s, a, b)),
        (s(), data(), data()).prop_map(|(s, a, b)| PutChain(s, a, b)),
        (s(), any::<u8>(), len()).prop_map(|(s, b, n)| PutBytes(s, b, n)),
        (s(), any::<u64>()).prop_map(|(s, n)| PutInts(s, n)),
        (s(), data()).prop_map(|(s, d)| WriteSpare(s, d)),
        (s(), data()).prop_map(|(s, d)| ChunkMut(s, d)),
        (s(), any::<u32>()).prop_map(|(s, n)| Format(s, n)),
        (s(), len()).prop_map(|(s, n)| Flip(s, n)),
        (s(), data()).prop_map(|(s, d)| Prepend(s, d)),
        (s(), data()).prop_map(|(s, d)| PrependHeader(s, d)),
    ];
    let shaping = prop_oneof![
        (s(), len()).prop_map(|(s, n)| SplitTo(s, n)),
        (s(), len()).prop_map(|(s, n)| SplitOff(s, n)),
        s().prop_map(SplitOffFar),
        s().prop_map(Split),
        (s(), len()).prop_map(|(s, n)| CopyToBytes(s, n)),
        (s(), s()).prop_map(|(s, t)| Unsplit(s, t)),
        (s(), len(), data()).prop_map(|(s, n, d)| SplitAndJoin(s, n, d)),
        (s(), len()).prop_map(|(s, n)| Truncate(s, n)),
        s().prop_map(Clear),
        (s(), len(), any::<u8>()).prop_map(|(s, n, b)| Resize(s, n, b)),
        (s(), len()).prop_map(|(s, n)| Reserve(s, n)),
        (s(), 0..200usize).prop_map(|(s, n)| ReserveHuge(s, n)),
        (s(), len()).prop_map(|(s, n)| TryReclaim(s, n)),
        (s(), len()).prop_map(|(s, n)| Advance(s, n)),
        s().prop_map(GetInts),
    ];
    let sharing = prop_oneof![
        s().prop_map(Freeze),
        s().prop_map(Thaw),
        s().prop_map(Op::Clone),
        (s(), bound(), bound()).prop_map(|(s, a, b)| Slice(s, a, b)),
        (s(), len(), len()).prop_map(|(s, a, b)| SliceRef(s, a, b)),
        s().prop_map(Compact),
        s().prop_map(ThroughBytes),
    ];
    prop_oneof![3 => making, 2 => s().prop_map(Op::Drop), 8 => writing, 9 => shaping, 6 => sharing]
}

/// Runs random programs over pools with this headroom and tailroom, and shrinks one that fails.
fn run(headroom: usize, tailroom: usize) {
    machine::prepare();
    let config = Config {
        failure_persistence: None,
        cases: 50,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&prop::collection::vec(op(), 1..120), |program| {
            machine::run(headroom, tailroom, program);
            Ok(())
        })
        .unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "Miri would mostly run proptest")]
fn random_programs_agree_with_bytes() {
    for (headroom, tailroom) in [(0, 0), (32, 16), (200, 0)] {
        run(headroom, tailroom);
    }
    for (met, what) in [
        (&machine::PANICS, "panics"),
        (&machine::FALLBACKS, "fallbacks to the heap"),
        (&machine::EXHAUSTED, "an exhausted pool"),
        (&machine::RECLAIMED, "reclaimed chunks"),
        (&machine::REJOINED, "halves joined in place"),
        (&machine::THAWED, "packets made mutable"),
        (&machine::COMPACTED, "packets made compact"),
    ] {
        assert!(met.load(Relaxed) > 0, "the programs never meet {what}");
    }
}

/// Random bytes as programs, the same each time. `PACKET_PROGRAMS` sets their number.
#[test]
fn random_bytes_agree_with_bytes() {
    machine::prepare();
    let asked = std::env::var("PACKET_PROGRAMS").ok();
    let programs = asked.map_or(if cfg!(miri) { 3 } else { 100 }, |n| n.parse().unwrap());
    // Xorshift (Marsaglia, 2003).
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..programs {
        let program: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .take(if cfg!(miri) { 150 } else { 600 })
        .collect();
        input::run(&program);
    }
}

/// The fuzzer's corpus: each input reaches something that the others do not.
#[test]
#[cfg_attr(miri, ignore = "too many")]
fn kept_programs_agree_with_bytes() {
    machine::prepare();
    let fuzzer = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    if !fuzzer.exists() {
        // It is a package of its own, so a published crate does not contain it.
        assert!(std::env::var_os("SLAB_NET_NO_SKIP").is_none(), "no corpus");
        // Not `eprintln!`, whose output the test harness captures.
        let _ = writeln!(std::io::stderr(), "skipped: no corpus here");
        return;
    }
    let mut programs = 0;
    for file in std::fs::read_dir(fuzzer.join("seeds/packet")).unwrap() {
        input::run(&std::fs::read(file.unwrap().path()).unwrap());
        programs += 1;
    }
    assert!(programs > 0, "the fuzzer has kept some");
}
