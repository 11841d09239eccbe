//! What the builder offers beyond name, classes and cap.

mod common;
mod memlock;
#[cfg(all(
    target_os = "linux",
    feature = "std",
    not(any(miri, slab_asan, slab_tsan))
))]
mod process;

use common::{MODES, fill};
use slab_core::{
    AllocError, AnyChunk, Backing, CHUNK_ALIGN, ConfigError, Growth, Mode, SizeClasses, Slab,
    SlabPool, SlabPoolBuilder,
};

fn builder() -> SlabPoolBuilder {
    SlabPool::builder()
        .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
        .max_memory(512 << 10)
}

#[test]
fn builder_defaults_are_as_documented() {
    let pool = SlabPool::builder().build().unwrap();
    assert_eq!((pool.name(), pool.max_memory()), ("default", 64 << 20));
    assert_eq!(pool.size_classes(), &SizeClasses::network());
    assert!(!pool.zeroes_on_free());
    let slab = Slab::<[u8; 64]>::builder().build().unwrap();
    assert_eq!((slab.pool().name(), slab.capacity()), ("default", 1 << 20));
}

/// More than what the builder's page says of debug builds. A thread that has less ends the process.
#[test]
#[cfg_attr(miri, ignore = "Miri's stacks have no end")]
fn pool_is_built_on_a_small_stack() {
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let build = || drop(SlabPool::builder().build().unwrap());
    small.spawn(build).unwrap().join().unwrap();
}

/// A pool that looks after each chunk has magazines all the same.
#[test]
#[cfg(feature = "std")]
fn zeroing_and_hardened_pools_use_magazines() {
    for option in [
        SlabPoolBuilder::zero_on_alloc,
        SlabPoolBuilder::zero_on_free,
        SlabPoolBuilder::hardened,
    ] {
        let builder = option(builder(), true);
        let pool = builder.build().unwrap();
        let chunks: Vec<_> = (0..4).map(|_| pool.try_alloc(1024).unwrap()).collect();
        let before = pool.stats().classes()[0].in_magazines;
        drop(chunks);
        assert_eq!(pool.stats().classes()[0].in_magazines, before + 4);
        let chunk = pool.try_alloc(1024).unwrap();
        assert_eq!(pool.stats().classes()[0].in_magazines, before + 3);
        drop(chunk);
        pool.flush_thread_cache();
        assert_eq!(pool.stats().classes()[0].in_magazines, 0);
    }
}

#[test]
fn growth_says_how_many_slabs_are_committed_at_a_time() {
    let steps_in = |mode, growth| {
        let classes = SizeClasses::explicit(&[16384]).unwrap();
        let builder = builder().size_classes(classes).mode(mode);
        let pool = builder.growth(growth).build().unwrap();
        let slab = pool.stats().slab_bytes;
        let mut held = Vec::new();
        let mut seen = Vec::new();
        while let Ok(chunk) = pool.try_alloc(16384) {
            held.push(chunk);
            let committed = pool.stats().committed_bytes / slab;
            if seen.last() != Some(&committed) {
                seen.push(committed);
            }
        }
        assert_eq!(held.len(), (512 << 10) / 16384, "the cap is the same");
        seen
    };
    let steps = |growth| steps_in(Mode::ThreadCached, growth);
    assert_eq!(steps(Growth::Slab), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(steps(Growth::Double), [1, 2, 4, 8]);
    assert_eq!(steps(Growth::Custom(|_| 3)), [3, 6, 8]);
    assert_eq!(steps(Growth::Custom(|committed| committed)), [1, 2, 4, 8]);
    for &mode in &MODES[1..] {
        assert_eq!(steps_in(mode, Growth::Double), [1, 2, 4, 8], "{mode:?}");
    }
    assert_eq!(steps(Growth::Custom(|_| 0)), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(steps(Growth::Custom(|_| usize::MAX)), [8]);
}

/// Makes `madvise` fail with this error, for this thread and for good.
#[cfg(all(
    target_os = "linux",
    feature = "std",
    not(any(miri, slab_asan, slab_tsan))
))]
fn fail_madvise(code: i32) -> std::io::Result<()> {
    let step = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = [
        // The number of the call, which comes first.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_madvise as u32,
        ),
        step(answer, 0, libc::SECCOMP_RET_ERRNO | code as u32),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, 0);
    // SAFETY: takes only numbers.
    let permission = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program has the length that is passed, and the kernel copies it.
    let filter = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) };
    match (permission, filter) {
        (0, 0) => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// As in a kernel that was built without it, and in a sandbox.
#[test]
#[cfg(all(
    target_os = "linux",
    feature = "std",
    not(any(miri, slab_asan, slab_tsan))
))]
fn a_prefaulted_pool_is_built_where_the_system_takes_no_advice() {
    use std::io::Write;
    let build = |code| {
        if let Err(why) = fail_madvise(code) {
            // CI sets it where nothing is to be skipped.
            assert!(std::env::var_os("SLAB_NET_NO_SKIP").is_none(), "{why}");
            let _ = writeln!(
                std::io::stderr(),
                "skipped: a filter of system calls: {why}"
            );
            return;
        }
        let pool = builder().backing(Backing::Prefault).build().unwrap();
        assert_eq!(pool.resident_bytes(), Some(pool.max_memory()));
    };
    for code in [libc::ENOSYS, libc::EPERM] {
        // The filter is the thread's.
        std::thread::scope(|scope| scope.spawn(|| build(code)).join().unwrap());
    }
}

/// A pool of two slabs with guards, and its bytes without these. Chunks are as large as any system's pages: a smaller
/// slab than four pages would have no guard.
#[cfg(all(target_os = "linux", feature = "std", not(miri)))]
fn guarded(backing: Backing) -> (SlabPool, usize) {
    let pool = builder().size_classes(SizeClasses::explicit(&[64 << 10]).unwrap());
    let pool = pool.backing(backing).guard_pages(true).build().unwrap();
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    (pool, (512 << 10) - 2 * usize::try_from(page).unwrap())
}

#[test]
fn a_prefaulted_pool_has_all_its_memory_from_the_start() {
    let pool = builder().backing(Backing::Prefault).build().unwrap();
    let stats = pool.stats();
    assert_eq!(stats.committed_bytes, stats.max_memory);
    #[cfg(all(target_os = "linux", feature = "std", not(miri)))]
    assert_eq!(pool.resident_bytes(), Some(stats.max_memory));
    assert_eq!(fill(&pool, 16384).len(), (512 << 10) / 16384);
    // All memory that was asked for is there, slabs that never served included.
    assert_eq!(pool.trim(), 512 << 10);
    assert_eq!(fill(&pool, 16384).len(), (512 << 10) / 16384);
    #[cfg(all(target_os = "linux", feature = "std", not(miri)))]
    {
        for &mode in &MODES[1..] {
            let builder = builder().mode(mode).backing(Backing::Prefault);
            let pool = builder.build().unwrap();
            assert_eq!(pool.resident_bytes(), Some(512 << 10));
        }
        let (guarded, all_but_guards) = guarded(Backing::Prefault);
        assert_eq!(guarded.resident_bytes(), Some(all_but_guards));
    }
}

#[test]
fn locked_backing_locks_memory_or_returns_the_system_error() {
    match builder().backing(Backing::Locked).build() {
        Ok(pool) => {
            assert_eq!(pool.stats().committed_bytes, 512 << 10);
            // It stays, free or not.
            drop(fill(&pool, 16384));
            assert_eq!(pool.trim(), 0);
            assert_eq!(pool.stats().committed_bytes, 512 << 10);
            #[cfg(feature = "std")]
            assert_ne!(pool.stats().classes()[1].in_magazines, 0, "left alone");
            // The sanitizers lock nothing.
            #[cfg(all(
                target_os = "linux",
                feature = "std",
                not(any(miri, slab_asan, slab_tsan))
            ))]
            {
                assert_eq!(pool.resident_bytes(), Some(512 << 10));
                let locked = process::size("VmLck");
                let (guarded, all_but_guards) = guarded(Backing::Locked);
                assert_eq!(process::size("VmLck"), locked + all_but_guards);
                for pool in [pool, guarded] {
                    assert!(vm_flags(&pool).split(' ').any(|flag| flag == "lo"));
                }
            }
        }
        Err(error) => {
            assert!(!memlock::is_allowed(), "{error}");
            assert!(matches!(error, ConfigError::Back { bytes, .. } if bytes == 512 << 10));
        }
    }
}

/// What the kernel knows of the mapping that the pool's chunks lie in.
#[cfg(all(target_os = "linux", feature = "std", not(miri)))]
fn vm_flags(pool: &SlabPool) -> String {
    let at = pool.try_alloc(1).unwrap().as_ptr().addr().get();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().unwrap().split_once('-');
        let bound = |text| usize::from_str_radix(text, 16).ok();
        if let Some((from, to)) = range
            && let (Some(from), Some(to)) = (bound(from), bound(to))
        {
            inside = (from..to).contains(&at);
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.into();
        }
    }
    panic!("no mapping around {at:x}");
}

#[test]
fn huge_pages_are_advised_only_if_asked_for() {
    let pool = builder().huge_pages(true).build().unwrap();
    assert!(pool.try_alloc(1).is_ok());
    #[cfg(all(target_os = "linux", feature = "std", not(miri)))]
    if std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap_or(false) {
        let asked = |pool: &SlabPool| vm_flags(pool).split(' ').any(|flag| flag == "hg");
        assert!(asked(&pool), "the kernel was told");
        assert!(!asked(&builder().build().unwrap()), "and only if asked");
        let fixed = builder().huge_pages(true).backing(Backing::Prefault);
        assert!(asked(&fixed.build().unwrap()), "also of a fixed pool");
    }
    assert!(matches!(
        pool.try_alloc(20_000),
        Err(AllocError::TooLarge { .. })
    ));
}

#[test]
fn oversize_requests_use_the_heap_up_to_their_own_cap() {
    let refusing = builder().build().unwrap();
    assert!(matches!(
        refusing.try_alloc_any(20_000),
        Err(AllocError::TooLarge { .. })
    ));
    let pool = builder().max_oversize_memory(100_000).build().unwrap();
    let mut first = pool.try_alloc_any(60_000).unwrap();
    assert!(matches!(first, AnyChunk::Heap(_)));
    first.fill_zero().fill(1);
    let second = pool.try_alloc_any(40_000).unwrap();
    for block in [&first, &second] {
        assert!(block.as_ptr().addr().get().is_multiple_of(CHUNK_ALIGN));
    }
    let refused = pool.try_alloc_any(16_385).unwrap_err();
    assert_eq!(
        refused,
        AllocError::OversizeExhausted {
            requested: 16_385,
            limit: 100_000
        }
    );
    assert!(pool.try_alloc_any(usize::MAX).is_err());
    assert!(matches!(pool.try_alloc_any(16_384), Ok(AnyChunk::Pool(_))));
    let AnyChunk::Heap(block) = second else {
        panic!("no class holds it");
    };
    let at = block.as_ptr();
    assert_eq!(block.capacity(), 40_000);
    let mut second = AnyChunk::from(block);
    assert_eq!((second.as_ptr(), second.capacity()), (at, 40_000));
    assert_eq!(second.try_copy_from_slice(&[7; 40_001]), None);
    assert!(second.try_copy_from_slice(&[7; 40_000]).is_some());
    assert_eq!(second.try_copy_from_slice(b"front").unwrap(), b"front");
    assert_eq!(second.as_uninit_mut().as_mut_ptr().cast(), at.as_ptr());
    assert_eq!(second.as_uninit_mut().len(), 40_000);
    let stats = pool.stats();
    assert_eq!(
        (
            stats.oversize_bytes,
            stats.oversize_allocs,
            stats.oversize_refused
        ),
        (100_000, 2, 2)
    );
    drop(second);
    assert_eq!(pool.stats().oversize_bytes, 60_000);
    drop(pool);
    assert!(
        first.fill_zero().iter().all(|&byte| byte == 0),
        "outlives it"
    );
}

/// More than any heap has: the share that was reserved for it is there for the next request.
#[test]
#[cfg_attr(any(miri, slab_asan, slab_tsan), ignore = "theirs ends the process")]
fn refused_heap_allocation_returns_its_reservation() {
    let pool = builder().max_oversize_memory(usize::MAX).build().unwrap();
    let refused = pool.try_alloc_any(isize::MAX as usize - 4095).unwrap_err();
    assert!(matches!(refused, AllocError::Commit { .. }), "{refused}");
    let stats = pool.stats();
    assert_eq!((stats.oversize_bytes, stats.oversize_allocs), (0, 0));
    assert_eq!(stats.oversize_refused, 1);
}
