//! One thread of a program: its steps, and its end.

#[cfg(feature = "allocator-api2")]
use crate::lines::Lines;
use crate::values::Boxed;
use crate::world::{End, Held, Pointer, Signal, Wait, World};
use crate::{Random, served};
use slab_core::{AllocError, Chunk, PoolStats, SlabBox};
use std::cell::RefCell;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// The most things that a thread holds, and that wait to change hands.
const MAX_HELD: usize = 40;
const MAX_WAITS: usize = 6;
/// The most steps of a thread.
const STEPS: u64 = if cfg!(miri) { 12 } else { 120 };

thread_local! {
    /// Dropped when its thread ends, before or after the thread's magazines.
    static LAST: RefCell<Vec<(Option<Chunk>, Option<Boxed>)>> = const { RefCell::new(Vec::new()) };
}

pub(crate) struct Actor<'w, 'p> {
    world: &'w World<'p>,
    random: Random,
    held: Vec<Held<'p>>,
    waits: Vec<Wait<'p>>,
    before: Option<PoolStats>,
}

impl<'w, 'p> Actor<'w, 'p> {
    pub(crate) fn run(world: &'w World<'p>, seed: u64) {
        let mut actor = Self {
            world,
            random: Random(seed),
            held: Vec::new(),
            waits: Vec::new(),
            before: None,
        };
        // Whose destructor runs first depends on which of the two was used first.
        if actor.random.one_in(2) {
            LAST.with(|_| ());
        }
        for _ in 0..actor.random.next() % STEPS {
            actor.step();
        }
        let (mut random, len) = (Random(actor.random.next()), actor.some_len());
        actor.finish();
        // Not before: others may wait for it.
        if random.one_in(2) {
            let chunk = served(world.pool.try_alloc(len));
            if let Some(chunk) = &chunk {
                world.served[chunk.class()].fetch_add(1, Ordering::Relaxed);
            }
            let value = world.values.insert(&mut random);
            LAST.with(|last| last.borrow_mut().push((chunk, value)));
        }
    }

    fn some_len(&mut self) -> usize {
        let sizes = self.world.config.sizes;
        let size = sizes[self.random.below(sizes.len())];
        size - self.random.below(8)
    }

    fn keep(&mut self, held: Held<'p>) {
        if self.held.len() < MAX_HELD {
            self.held.push(held);
        } else {
            self.world.free_held(held);
        }
    }

    fn some_held(&mut self) -> Option<Held<'p>> {
        let index = self.random.below(self.held.len().max(1));
        (!self.held.is_empty()).then(|| self.held.swap_remove(index))
    }

    fn step(&mut self) {
        let (world, pool) = (self.world, self.world.pool);
        match self.random.below(50) {
            0..=8 => {
                let len = self.some_len();
                if let Some(chunk) = served(pool.try_alloc(len)) {
                    world.enter(&chunk);
                    self.keep(Held::Chunk(chunk));
                }
            }
            9 => {
                let len = self.some_len();
                if let Some(chunk) = served(pool.try_alloc_zeroed(len)) {
                    let (at, len) = (chunk.as_ptr().as_ptr(), chunk.capacity());
                    // SAFETY: the chunk's bytes, which are zeros.
                    let bytes = unsafe { std::slice::from_raw_parts(at, len) };
                    let step = if cfg!(miri) { 512 } else { 1 };
                    assert!(bytes.iter().step_by(step).all(|&byte| byte == 0));
                    world.enter(&chunk);
                    self.keep(Held::Chunk(chunk));
                }
            }
            10 => {
                let len = self.some_len();
                if let Some(at) = served(pool.alloc_raw(len)) {
                    let class = pool.class_for(len).unwrap();
                    let bytes = world.config.sizes[class];
                    world.marks.enter(at, bytes);
                    world.served[class].fetch_add(1, Ordering::Relaxed);
                    self.keep(Held::Raw(Pointer(at), bytes));
                }
            }
            11 => {
                let len = world.config.sizes.last().unwrap() + 1 + self.random.below(100_000);
                match pool.try_alloc_any(len) {
                    Ok(chunk) => self.keep(Held::Heap(chunk)),
                    Err(AllocError::OversizeExhausted { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            12 | 13 => {
                let len = self.some_len();
                let class = pool.class_for(len).unwrap();
                let mut batch = Box::new(pool.chunk_batch(len).unwrap());
                let count = 1 + self.random.below(20);
                if served(batch.fill(count)).is_some() {
                    let bytes = world.config.sizes[class];
                    batch.as_ptrs().for_each(|at| world.marks.enter(at, bytes));
                    let chunks = batch.len() as u64;
                    world.served[class].fetch_add(chunks, Ordering::Relaxed);
                    self.keep(Held::Batch(batch, bytes));
                }
            }
            14..=18 => {
                if let Some(held) = self.some_held() {
                    world.free_held(held);
                }
            }
            19 => {
                let half = self.held.split_off(self.held.len() / 2);
                half.into_iter().for_each(|held| world.free_held(held));
            }
            20..=22 => self.change_some_held(),
            23..=25 => {
                let mut passing = world.passing.lock().unwrap();
                if passing.len() < MAX_HELD
                    && let Some(held) = self.some_held()
                {
                    passing.push(held);
                }
            }
            26..=28 => {
                let mut passing = world.passing.lock().unwrap();
                let index = self.random.below(passing.len().max(1));
                let passed = (!passing.is_empty()).then(|| passing.swap_remove(index));
                drop(passing);
                match passed {
                    Some(Held::Wait(wait)) => self.poll_or_keep(wait, false),
                    Some(held) => self.keep(held),
                    None => {}
                }
            }
            29..=31 if self.waits.len() < MAX_WAITS => {
                let len = self.some_len();
                let wait = Wait {
                    future: Box::pin(pool.alloc(len)),
                    signal: Signal::new(),
                    class: pool.class_for(len).unwrap(),
                };
                self.poll_or_keep(wait, true);
            }
            29..=34 if !self.waits.is_empty() => {
                let wait = self.waits.swap_remove(self.random.below(self.waits.len()));
                match self.random.below(3) {
                    0 => world.end_wait(wait, End::GivenUp),
                    1 => world.passing.lock().unwrap().push(Held::Wait(wait)),
                    _ => self.poll_or_keep(wait, false),
                }
            }
            35 => {
                pool.flush_thread_cache();
                world.values.slab.pool().flush_thread_cache();
                #[cfg(feature = "allocator-api2")]
                world.lines.alloc.pool().flush_thread_cache();
            }
            36 => match self.random.below(4) {
                0 => drop(pool.trim_to(pool.max_memory() / 2)),
                1 => drop(pool.trim_above(pool.max_memory() / 2, 0)),
                _ => {
                    pool.trim();
                    world.values.slab.pool().trim();
                    #[cfg(feature = "allocator-api2")]
                    world.lines.alloc.pool().trim();
                }
            },
            37 | 38 => {
                let stats = pool.stats();
                world.check_stats(&stats, self.before.as_ref());
                self.before = Some(stats);
                world.check_stats(&world.values.slab.pool().stats(), None);
                #[cfg(feature = "allocator-api2")]
                world.check_stats(&world.lines.alloc.pool().stats(), None);
                #[cfg(feature = "leak-tracking")]
                drop(pool.live_chunks());
            }
            39..=44 => {
                if let Some(value) = world.values.insert(&mut self.random) {
                    self.keep(Held::Value(value));
                }
            }
            #[cfg(feature = "allocator-api2")]
            45..=48 => {
                let bytes = self.some_len();
                if let Some(line) = world.lines.try_new(bytes) {
                    self.keep(Held::Line(line));
                }
            }
            _ => {
                // A thread of one free.
                let held = self.some_held();
                let work = || held.into_iter().for_each(|held| world.free_held(held));
                thread::scope(|scope| scope.spawn(work).join().unwrap());
            }
        }
    }

    /// Makes something else of what is held.
    fn change_some_held(&mut self) {
        let (world, pool) = (self.world, self.world.pool);
        let Some(held) = self.some_held() else {
            return;
        };
        let changed = match held {
            Held::Chunk(chunk) => match self.random.below(3) {
                0 => {
                    let bytes = chunk.capacity();
                    Held::Raw(Pointer(chunk.into_raw()), bytes)
                }
                1 => {
                    assert!(chunk.pool().unwrap().same_pool(pool));
                    world.marks.check(chunk.as_ptr(), chunk.capacity());
                    Held::Chunk(chunk)
                }
                _ => Held::Shared(chunk.into_shared()),
            },
            // SAFETY: came from `into_raw` or `alloc_raw`, and is taken back once, here.
            Held::Raw(at, _) => Held::Chunk(unsafe { pool.chunk_from_raw(at.0) }.unwrap()),
            Held::Shared(shared) => match self.random.below(4) {
                0 => match shared.try_into_unique() {
                    Ok(chunk) => Held::Chunk(chunk),
                    Err(shared) => Held::Shared(shared),
                },
                1 => {
                    let clone = shared.clone();
                    self.keep(Held::Shared(clone));
                    Held::Shared(shared)
                }
                2 => {
                    let lent = shared.lend();
                    self.keep(Held::Shared(lent));
                    Held::Shared(shared)
                }
                _ => {
                    let clones = shared.clones(1 + self.random.below(4));
                    // One is given back with the iterator.
                    let taken = clones.len() - 1;
                    let clones: Vec<_> = clones.take(taken).collect();
                    world
                        .passing
                        .lock()
                        .unwrap()
                        .extend(clones.into_iter().map(Held::Shared));
                    Held::Shared(shared)
                }
            },
            Held::Batch(mut batch, bytes) => {
                if let Some(chunk) = batch.pop() {
                    match batch.push(chunk) {
                        Ok(()) if self.random.one_in(2) => {}
                        Ok(()) => {
                            let chunk = batch.pop().expect("just put in");
                            self.keep(Held::Chunk(chunk));
                        }
                        Err(chunk) => panic!("{chunk:?} was in the batch before"),
                    }
                }
                Held::Batch(batch, bytes)
            }
            Held::Value(value) if self.random.one_in(4) => {
                drop(SlabBox::into_inner(value));
                return;
            }
            Held::Value(value) => {
                value.check();
                Held::RawValue(Pointer(SlabBox::into_raw(value).cast()))
            }
            Held::RawValue(at) => Held::Value(world.values.take_back(at)),
            #[cfg(feature = "allocator-api2")]
            Held::Line(mut line) => {
                let bytes = self.some_len();
                Lines::change(&mut line, bytes, &mut self.random);
                Held::Line(line)
            }
            other @ (Held::Heap(_) | Held::Wait(_)) => other,
        };
        self.keep(changed);
    }

    /// Polls a wait; keeps the chunk if there is one, otherwise the wait. `first`: it was never polled.
    fn poll_or_keep(&mut self, mut wait: Wait<'p>, first: bool) {
        match poll(&mut wait) {
            Poll::Pending => self.waits.push(wait),
            Poll::Ready(chunk) => {
                self.world.enter(&chunk);
                if first {
                    assert_eq!(wait.signal.woken.load(Ordering::Relaxed), 0);
                } else {
                    self.world.end_wait(wait, End::Served);
                }
                self.keep(Held::Chunk(chunk));
            }
        }
    }

    /// Frees everything, and waits for all that it waits for, which comes: everybody gets here sooner or later.
    /// It looks now and then without having been woken, but who was served has to have been woken in the end.
    fn finish(mut self) {
        let world = self.world;
        self.held.drain(..).for_each(|held| world.free_held(held));
        loop {
            let passing = std::mem::take(&mut *world.passing.lock().unwrap());
            passing.into_iter().for_each(|held| world.free_held(held));
            self.waits = std::mem::take(&mut self.waits)
                .into_iter()
                .filter_map(|mut wait| match poll(&mut wait) {
                    Poll::Pending => Some(wait),
                    Poll::Ready(chunk) => {
                        world.enter(&chunk);
                        world.end_wait(wait, End::Served);
                        world.free(chunk);
                        None
                    }
                })
                .collect();
            if self.waits.is_empty() || world.failed.load(Ordering::Relaxed) {
                return;
            }
            thread::park_timeout(Duration::from_millis(100));
        }
    }
}

fn poll(wait: &mut Wait<'_>) -> Poll<Chunk> {
    let signal = Signal::new();
    let waker = Waker::from(Arc::clone(&signal));
    let polled = wait.future.as_mut().poll(&mut Context::from_waker(&waker));
    if polled.is_pending() {
        wait.signal = signal;
    }
    polled.map(|chunk| chunk.unwrap())
}
