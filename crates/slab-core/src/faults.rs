//! Tests: the system refuses memory at the n-th request, for each n that a program meets.

use crate::sys::supply::refusing;
use crate::{AllocError, Chunk, ConfigError, Growth, SizeClasses, SlabPool};
use core::future::Future;
use core::task::{Context, Poll, Waker};

const ENOMEM: i32 = 12;

/// Counts what the program was refused, and checks that it was refused properly.
#[derive(Default)]
struct Refused {
    builds: u32,
    commits: u64,
}

impl Refused {
    fn build(&mut self) -> Option<SlabPool> {
        let built = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
            .max_memory(256 << 10)
            .build();
        match built {
            Ok(pool) => Some(pool),
            Err(ConfigError::Reserve { errno: ENOMEM, .. }) => {
                self.builds += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Fills the pool with chunks of a size; goes on where the system refused.
    fn fill(&mut self, pool: &SlabPool, len: usize) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        loop {
            match pool.try_alloc(len) {
                Ok(mut chunk) => {
                    chunk.copy_from_slice(&[0xA5; 1024]).unwrap();
                    chunks.push(chunk);
                }
                Err(AllocError::Commit { errno: ENOMEM }) => self.commits += 1,
                Err(AllocError::Exhausted { .. }) => return chunks,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Meets every kind of request: build, commit, give back (which is done by hand if the system
/// refuses), come back, wait.
fn program() -> Refused {
    let mut refused = Refused::default();
    let Some(pool) = refused.build() else {
        return refused;
    };
    let slabs = pool.max_memory() / pool.stats().slab_bytes;
    let small = refused.fill(&pool, 1024);
    assert_eq!(small.len(), slabs * 64, "all of the cap in spite of it");
    drop(small);
    pool.trim();
    assert_eq!(pool.stats().committed_bytes, 0);
    let mut large = refused.fill(&pool, 16384);
    assert_eq!(large.len(), slabs * 4);
    {
        let mut waits = core::pin::pin!(pool.alloc(16384));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        large.pop();
        assert!(matches!(waits.as_mut().poll(&mut cx), Poll::Ready(Ok(_))));
    }
    drop(large);
    let stats = pool.stats();
    assert_eq!(stats.in_use(), 0);
    assert_eq!(stats.commit_failures, refused.commits);
    for class in stats.classes() {
        let free = class.in_magazines + class.in_depot + class.in_slabs;
        assert_eq!(free, class.committed_chunks);
    }
    refused
}

#[test]
fn the_system_refuses_memory_at_each_request_in_turn() {
    let met = refusing(0..0, || {
        let refused = program();
        assert_eq!((refused.builds, refused.commits), (0, 0));
    });
    assert!(met > 8, "{met} requests: arena, tables, slabs, trims");
    let (mut builds, mut commits) = (0, 0);
    for number in 0..met {
        refusing(number..number + 1, || {
            let refused = program();
            builds += refused.builds;
            commits += refused.commits;
        });
    }
    assert!(builds >= 2, "{builds} builds failed");
    assert!(commits >= 4, "{commits} slabs were not backed");
}

#[test]
fn the_system_refuses_for_a_while() {
    let met = refusing(0..0, || assert_eq!(program().commits, 0));
    let mut commits = 0;
    for number in 0..met {
        refusing(number..number + 3, || commits += program().commits);
    }
    assert!(commits >= 3 * 4, "{commits} slabs were not backed");
}

/// Memory that the system does not take back reads as zeros all the same.
#[test]
fn a_refused_trim_zeroes_by_hand() {
    let pool = Refused::default().build().unwrap();
    drop(Refused::default().fill(&pool, 1024));
    refusing(0..u32::MAX, || assert!(pool.trim() > 0));
    let chunks: Vec<Chunk> = (0..).map_while(|_| pool.try_alloc(1024).ok()).collect();
    assert!(!chunks.is_empty());
    for chunk in chunks {
        // SAFETY: a chunk's bytes are initialised.
        let bytes = unsafe { core::slice::from_raw_parts(chunk.as_ptr().as_ptr(), 1024) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }
}

/// A request to the system for each step of growth, and no more.
#[test]
fn a_slab_is_asked_for_once() {
    for (growth, requests) in [(Growth::Slab, 8), (Growth::Double, 4)] {
        let pool = SlabPool::builder()
            .size_classes(SizeClasses::explicit(&[1024, 16384]).unwrap())
            .max_memory(512 << 10)
            .growth(growth)
            .build()
            .unwrap();
        let met = refusing(0..0, || {
            assert_eq!(Refused::default().fill(&pool, 16384).len(), 32);
        });
        assert_eq!(met, requests, "{growth:?}: 1, 1, 2 and 4 slabs");
    }
}
