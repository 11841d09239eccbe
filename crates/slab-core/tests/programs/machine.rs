//! Runs a program against a pool and the model side by side, and compares them after every step.
//!
//! Steps run on several threads, one at a time: a program is deterministic, and each of its
//! failures repeats. What happens when they run at once is for `concurrent.rs`.

use crate::model::{MAX_WAITERS, Model, Queue};
use crate::op::{Op, Step};
use slab_core::{
    Alloc, AllocError, Chunk, ChunkBatch, Growth, Mode, SharedChunk, SizeClasses, SlabPool,
};
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

/// Threads that a program's steps are spread over.
const THREADS: usize = 3;
/// The most things held at a time: enough to fill the pools below.
const MAX_HELD: usize = if cfg!(miri) { 60 } else { 4000 };

/// What a program has.
enum Held {
    Chunk(Chunk),
    Shared(Vec<SharedChunk>),
    Raw(Pointer),
    Batch(Box<ChunkBatch>),
}

struct Pointer(NonNull<u8>);
// SAFETY: the pointer stands for a chunk, which is `Send`.
unsafe impl Send for Pointer {}

/// Counts how often it was woken.
#[derive(Default)]
struct WakeCount(AtomicU32);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Waiter<'p> {
    future: Pin<Box<Alloc<'p>>>,
    woken: Arc<WakeCount>,
    class: usize,
}

type Work<'p> = Box<dyn FnOnce() + Send + 'p>;

/// A thread that does what it is told, piece by piece.
struct Worker<'s, 'p> {
    work: mpsc::SyncSender<Work<'p>>,
    thread: thread::ScopedJoinHandle<'s, ()>,
}

impl<'s, 'p: 's> Worker<'s, 'p> {
    fn start(scope: &'s thread::Scope<'s, '_>) -> Self {
        let (work, tasks) = mpsc::sync_channel::<Work<'p>>(1);
        let thread = scope.spawn(move || tasks.into_iter().for_each(|task| task()));
        Self { work, thread }
    }

    /// Runs `task` on the thread and waits for its result.
    fn run<R: Send + 'p>(&self, task: impl FnOnce() -> R + Send + 'p) -> R {
        let (send, receive) = mpsc::sync_channel(1);
        let task = Box::new(move || drop(send.send(task())));
        self.work.send(task).expect("the thread runs");
        receive.recv().expect("the thread does not panic")
    }

    fn end(self) {
        drop(self.work);
        self.thread.join().expect("the thread does not panic");
    }
}

/// The pools that programs run on: chosen so that a few dozen steps meet the cap, and slabs change
/// their class often.
pub(crate) fn pool(choice: u8) -> SlabPool {
    let (sizes, slabs): (&[usize], usize) = match choice % 4 {
        0 => (&[4096, 16384], 3),
        1 => (&[1536], 2),
        2 => (&[1024, 9216, 16384], 4),
        _ => (&[192, 2048, 65536], 5),
    };
    let classes = SizeClasses::explicit(sizes).expect("ascending and aligned");
    let slab_bytes = (4 * classes.largest()).next_power_of_two().max(64 << 10);
    let mut builder = SlabPool::builder()
        .size_classes(classes)
        .max_memory(slabs * slab_bytes);
    // Most of the pools have an option.
    builder = match choice / 4 % 8 {
        1 => builder.mode(Mode::DepotOnly),
        2 => builder.zero_on_free(true),
        3 => builder.hardened(true),
        DOUBLE => builder.growth(Growth::Double),
        5 => builder.mode(Mode::Locked),
        RING => builder.mode(Mode::Ring),
        7 => builder.guard_pages(true),
        _ => builder,
    };
    builder.build().expect("a cap of several slabs")
}

/// The option with which each class has an equal share of the slabs, and keeps it.
const RING: u8 = 6;
/// The option with which slabs are backed before anybody asks for them.
const DOUBLE: u8 = 4;

pub(crate) fn new_model(choice: u8, pool: &SlabPool, base: usize) -> Model {
    let stats = pool.stats();
    let share = stats.max_memory / stats.slab_bytes / stats.classes().len();
    let option = choice / 4 % 8;
    let mut model = Model::new(base, &stats, (option == RING).then_some(share));
    model.has_magazines = !matches!(option, 1 | 5 | RING);
    model
}

pub(crate) fn run(choice: u8, steps: &[Step]) {
    let pool = pool(choice);
    let model = {
        let base = base_of(&pool);
        pool.trim();
        new_model(choice, &pool, base)
    };
    let (left, model) = thread::scope(|scope| {
        let mut machine = Machine {
            pool: &pool,
            model,
            grows_ahead: choice / 4 % 8 == DOUBLE,
            held: Vec::new(),
            waiters: Vec::new(),
            workers: (0..THREADS).map(|_| Some(Worker::start(scope))).collect(),
        };
        for step in steps {
            machine.step(scope, *step);
            machine.compare();
        }
        machine.finish()
    });
    // Chunks outlive their pool.
    drop(pool);
    let mut model = model;
    for held in &left {
        held.each(&mut |at| model.check(at));
    }
    for held in left {
        held.each(&mut |at| model.leave(at));
    }
}

/// The arena's first byte: where the first chunk of a new pool lies. The model complains about any
/// address below, should that ever change.
pub(crate) fn base_of(pool: &SlabPool) -> usize {
    let first = pool.try_alloc(pool.size_classes().largest());
    first.expect("a new pool has memory").as_ptr().addr().get()
}

impl Held {
    fn each(&self, f: &mut dyn FnMut(NonNull<u8>)) {
        match self {
            Held::Chunk(chunk) => f(chunk.as_ptr()),
            Held::Shared(clones) => f(clones[0].as_ptr()),
            Held::Raw(at) => f(at.0),
            Held::Batch(batch) => batch.as_ptrs().for_each(f),
        }
    }

    fn free(self, pool: &SlabPool) {
        match self {
            Held::Chunk(chunk) => drop(chunk),
            Held::Shared(clones) => drop(clones),
            // SAFETY: came from `into_raw`, and is taken back once, here.
            Held::Raw(at) => unsafe { pool.free_raw(at.0) }.expect("a chunk of the pool"),
            Held::Batch(batch) => drop(batch),
        }
    }
}

struct Machine<'s, 'p> {
    pool: &'p SlabPool,
    model: Model,
    /// Is memory committed before it is needed?
    grows_ahead: bool,
    held: Vec<Held>,
    /// Waiters, in the order in which they came.
    waiters: Vec<Waiter<'p>>,
    workers: Vec<Option<Worker<'s, 'p>>>,
}

impl<'s, 'p: 's> Machine<'s, 'p> {
    /// A length that asks for some class, not always its full size.
    fn len_for(&self, size: u16) -> usize {
        let sizes = self.pool.size_classes().sizes();
        let largest = sizes[usize::from(size) % sizes.len()];
        largest - (usize::from(size) / 7) % 64
    }

    fn class_of(&self, len: usize) -> usize {
        self.pool.size_classes().class_for(len).expect("it fits")
    }

    fn pick(&self, choice: u8) -> Option<usize> {
        let len = self.held.len();
        (len > 0).then(|| usize::from(choice).wrapping_mul(0x9E37) % len)
    }

    /// The first held thing from `choice` on for which `f` holds.
    fn pick_where(&self, choice: u8, f: impl Fn(&Held) -> bool) -> Option<usize> {
        let start = self.pick(choice)?;
        let len = self.held.len();
        (start..start + len)
            .map(|index| index % len)
            .find(|&index| f(&self.held[index]))
    }

    fn step(&mut self, scope: &'s thread::Scope<'s, '_>, step: Step) {
        let number = usize::from(step.thread) % THREADS;
        if let Op::EndThread = step.op {
            if let Some(worker) = self.workers[number].take() {
                worker.end();
            }
            self.workers[number] = Some(Worker::start(scope));
            return;
        }
        let worker = self.workers[number].take().expect("there is a worker");
        self.run_op(&worker, step.op);
        self.workers[number] = Some(worker);
    }

    fn run_op(&mut self, worker: &Worker<'s, 'p>, op: Op) {
        let pool = self.pool;
        match op {
            Op::Alloc(size) => {
                self.alloc(worker, size);
            }
            Op::AllocMany(size, count) => {
                for _ in 0..count {
                    if !self.alloc(worker, size) {
                        break;
                    }
                }
            }
            Op::AllocTooLarge => {
                let largest = pool.size_classes().largest();
                let requested = largest + 1;
                assert_eq!(
                    worker.run(move || pool.try_alloc(requested)).unwrap_err(),
                    AllocError::TooLarge { requested, largest }
                );
                self.model.too_large += 1;
            }
            Op::Batch(size, count) => self.batch(worker, size, count),
            Op::BatchPop(choice) => {
                let is_batch = |held: &Held| matches!(held, Held::Batch(_));
                if let Some(index) = self.pick_where(choice, is_batch)
                    && let Held::Batch(batch) = &mut self.held[index]
                    && let Some(chunk) = batch.pop()
                {
                    self.held.push(Held::Chunk(chunk));
                }
            }
            Op::BatchPush(batch, chunk) => self.batch_push(batch, chunk),
            Op::Free(choice) => {
                if let Some(index) = self.pick(choice) {
                    let held = self.held.swap_remove(index);
                    self.free(worker, vec![held]);
                }
            }
            Op::FreeEach(n) => {
                let (mut number, n) = (0, usize::from(n % 4) + 2);
                let (out, keep): (Vec<_>, Vec<_>) = self.held.drain(..).partition(|_| {
                    number += 1;
                    number % n == 0
                });
                self.held = keep;
                self.free(worker, out);
            }
            Op::FreeAll => {
                let all = self.held.drain(..).collect();
                self.free(worker, all);
            }
            Op::Share(choice, clones) => {
                let is_chunk = |held: &Held| matches!(held, Held::Chunk(_));
                if let Some(index) = self.pick_where(choice, is_chunk)
                    && let Held::Chunk(chunk) = self.held.swap_remove(index)
                {
                    let first = chunk.into_shared();
                    let mut all: Vec<_> = first.clones(usize::from(clones % 5)).collect();
                    assert_eq!(first.is_unique(), all.is_empty());
                    all.push(first);
                    self.held.push(Held::Shared(all));
                }
            }
            Op::IntoRaw(choice) => {
                let is_chunk = |held: &Held| matches!(held, Held::Chunk(_));
                if let Some(index) = self.pick_where(choice, is_chunk)
                    && let Held::Chunk(chunk) = self.held.swap_remove(index)
                {
                    self.held.push(Held::Raw(Pointer(chunk.into_raw())));
                }
            }
            Op::FromRaw(choice) => {
                let is_raw = |held: &Held| matches!(held, Held::Raw(_));
                if let Some(index) = self.pick_where(choice, is_raw)
                    && let Held::Raw(at) = self.held.swap_remove(index)
                {
                    // SAFETY: came from `into_raw`, and is taken back once, here.
                    let chunk = unsafe { pool.chunk_from_raw(at.0) }.expect("a chunk of the pool");
                    let live = self.model.live(at.0);
                    assert_eq!((chunk.class(), chunk.capacity()), (live.class, live.bytes));
                    self.held.push(Held::Chunk(chunk));
                }
            }
            Op::Wait(size) => self.wait(worker, size),
            Op::Poll(choice) => {
                if !self.waiters.is_empty() {
                    let index = usize::from(choice) % self.waiters.len();
                    self.poll(worker, index);
                }
            }
            Op::Cancel(choice) => {
                if !self.waiters.is_empty() {
                    let index = usize::from(choice) % self.waiters.len();
                    self.cancel(worker, index);
                }
            }
            Op::Flush => worker.run(move || pool.flush_thread_cache()),
            Op::Trim => {
                let before = pool.stats();
                worker.run(move || pool.trim());
                let stats = pool.stats();
                self.model.check_trim(&before, &stats, !self.grows_ahead);
                let granted = self.granted().count();
                if granted == 0 && self.model.share.is_none() {
                    assert_eq!(
                        stats.committed_bytes,
                        self.model.slabs_in_use() * stats.slab_bytes,
                        "trim leaves exactly the slabs that are in use"
                    );
                }
            }
            Op::TrimTo(slabs) => {
                let before = pool.stats();
                let slab_bytes = before.slab_bytes;
                let target = usize::from(slabs % 8) * slab_bytes;
                worker.run(move || pool.trim_to(target));
                let after = pool.stats();
                self.model.check_trim(&before, &after, !self.grows_ahead);
                let in_use = match self.model.share {
                    None => self.model.slabs_in_use() + self.granted().count(),
                    Some(share) => share * pool.size_classes().sizes().len(),
                };
                assert!(after.committed_bytes <= target.max(in_use * slab_bytes));
            }
            Op::EndThread => unreachable!("handled by `step`"),
        }
    }

    /// Returns `false` if the pool has no more.
    fn alloc(&mut self, worker: &Worker<'s, 'p>, size: u16) -> bool {
        if self.held.len() >= MAX_HELD {
            return false;
        }
        let (pool, len) = (self.pool, self.len_for(size));
        let class = self.class_of(len);
        match worker.run(move || pool.try_alloc(len)) {
            Ok(chunk) => {
                assert_eq!(chunk.class(), class);
                let waiting = self.waiting(class);
                assert_eq!(waiting, 0, "overtook a waiter of the same class");
                self.model.enter_chunk(&chunk);
                self.held.push(Held::Chunk(chunk));
                true
            }
            Err(error) => {
                let chunk_bytes = pool.size_classes().sizes()[class];
                assert_eq!(error, AllocError::Exhausted { chunk_bytes });
                self.model.count_refusal(class);
                self.check_refusal(class);
                false
            }
        }
    }

    fn check_refusal(&self, class: usize) {
        // A chunk set aside for a waiter may be the only one that keeps its slab in use.
        if self.granted().next().is_none() {
            self.model.check_refusal(class, &self.pool.stats());
        }
    }

    fn batch(&mut self, worker: &Worker<'s, 'p>, size: u16, count: u8) {
        if self.held.len() >= MAX_HELD {
            return;
        }
        let (pool, len) = (self.pool, self.len_for(size));
        let count = usize::from(count % 80);
        let filled = worker.run(move || {
            let mut batch = pool.chunk_batch(len).expect("it fits a class");
            batch.fill(count).map(|_| Box::new(batch))
        });
        let class = self.class_of(len);
        match filled {
            Ok(batch) => {
                for at in batch.as_ptrs() {
                    let bytes = pool.size_classes().sizes()[class];
                    self.model.enter(at, class, bytes);
                }
                assert!(batch.len() == count.min(ChunkBatch::MAX) || !batch.is_empty());
                // No refusal, but there is as little left.
                if batch.len() < count.min(ChunkBatch::MAX) {
                    self.check_refusal(class);
                }
                self.held.push(Held::Batch(batch));
            }
            Err(error) => {
                assert!(matches!(error, AllocError::Exhausted { .. }), "{error}");
                assert!(count > 0);
                self.model.count_refusal(class);
                self.check_refusal(class);
            }
        }
    }

    fn batch_push(&mut self, batch: u8, chunk: u8) {
        let is_chunk = |held: &Held| matches!(held, Held::Chunk(_));
        let is_batch = |held: &Held| matches!(held, Held::Batch(_));
        let Some(index) = self.pick_where(chunk, is_chunk) else {
            return;
        };
        let Held::Chunk(chunk) = self.held.swap_remove(index) else {
            unreachable!("just looked");
        };
        let place = self.pick_where(batch, is_batch);
        let Some(Held::Batch(batch)) = place.map(|index| &mut self.held[index]) else {
            self.held.push(Held::Chunk(chunk));
            return;
        };
        if let Err(chunk) = batch.push(chunk) {
            self.held.push(Held::Chunk(chunk));
        }
    }

    fn free(&mut self, worker: &Worker<'s, 'p>, out: Vec<Held>) {
        for held in &out {
            held.each(&mut |at| self.model.leave(at));
        }
        let pool = self.pool;
        worker.run(move || out.into_iter().for_each(|held| held.free(pool)));
    }

    /// The waiters of the class for which nothing is set aside.
    fn waiting(&self, class: usize) -> usize {
        let of_class = self.waiters.iter().filter(|waiter| waiter.class == class);
        of_class.filter(|waiter| !waiter.is_granted()).count()
    }

    fn granted(&self) -> impl Iterator<Item = &Waiter<'p>> {
        self.waiters.iter().filter(|waiter| waiter.is_granted())
    }

    fn wait(&mut self, worker: &Worker<'s, 'p>, size: u16) {
        if self.waiters.len() as u64 >= MAX_WAITERS || self.held.len() >= MAX_HELD {
            return;
        }
        let len = self.len_for(size);
        self.waiters.push(Waiter {
            future: Box::pin(self.pool.alloc(len)),
            woken: Arc::default(),
            class: self.class_of(len),
        });
        let before = self.waiters.len();
        self.poll(worker, before - 1);
        if self.waiters.len() == before {
            self.model.count_wait(self.waiters[before - 1].class);
        }
    }

    fn poll(&mut self, worker: &Worker<'s, 'p>, index: usize) {
        let mut waiter = self.waiters.remove(index);
        let waker = Waker::from(waiter.woken.clone());
        let (polled, waiter) = worker.run(move || {
            let polled = waiter
                .future
                .as_mut()
                .poll(&mut Context::from_waker(&waker));
            (polled, waiter)
        });
        match polled {
            Poll::Pending => {
                assert!(!waiter.is_granted(), "woken for nothing");
                if index == self.waiters.len() {
                    self.check_refusal(waiter.class);
                }
                self.waiters.insert(index, waiter);
            }
            Poll::Ready(chunk) => {
                let chunk = chunk.expect("the only error is for too large requests");
                assert_eq!(chunk.class(), waiter.class);
                if !waiter.is_granted() {
                    let ahead = self.waiting(waiter.class);
                    assert_eq!(ahead, 0, "overtook a waiter of the same class");
                }
                self.model.enter_chunk(&chunk);
                self.held.push(Held::Chunk(chunk));
            }
        }
    }

    fn cancel(&mut self, worker: &Worker<'s, 'p>, index: usize) {
        let waiter = self.waiters.remove(index);
        // To the counters, a chunk set aside for it was allocated.
        if waiter.is_granted() {
            self.model.count_granted_and_freed(waiter.class);
        }
        worker.run(move || drop(waiter));
    }

    /// Asserts that the pool's statistics agree with the model.
    fn compare(&mut self) {
        let stats = self.pool.stats();
        let mut queues = vec![Queue::default(); stats.classes().len()];
        for waiter in &self.waiters {
            let queue = &mut queues[waiter.class];
            if waiter.is_granted() {
                queue.granted += 1;
            } else {
                queue.waiting += 1;
            }
        }
        self.model.check_stats(&stats, &queues);
        for (class, entry) in stats.classes().iter().enumerate() {
            let waiting = self.waiting(class);
            if waiting > 0 {
                let free = entry.committed_chunks - entry.in_use;
                assert_eq!(free, 0, "{waiting} wait while {free} chunks are free");
            }
        }
        // First come, first served: within a class, a waiter with nothing came after all that have a chunk.
        for class in 0..stats.classes().len() {
            let of_class = self.waiters.iter().filter(|waiter| waiter.class == class);
            let granted: Vec<bool> = of_class.map(Waiter::is_granted).collect();
            assert!(granted.is_sorted_by(|a, b| a >= b), "{granted:?}");
        }
        for waiter in &self.waiters {
            assert!(waiter.woken.0.load(Ordering::Relaxed) <= 1, "woken twice");
        }
    }

    /// Ends all threads and waiters; what is held stays.
    fn finish(mut self) -> (Vec<Held>, Model) {
        let worker = self.workers[0].take().expect("there is a worker");
        while !self.waiters.is_empty() {
            self.cancel(&worker, 0);
        }
        worker.end();
        self.workers.drain(..).flatten().for_each(Worker::end);
        let stats = self.pool.stats();
        self.compare();
        assert!(stats.thread_caches <= 1, "only this thread's");
        // Pointers can be taken back only while there is a pool.
        for held in &mut self.held {
            if let Held::Raw(at) = held {
                // SAFETY: came from `into_raw`, and is taken back once, here.
                let chunk = unsafe { self.pool.chunk_from_raw(at.0) }.expect("a chunk of the pool");
                *held = Held::Chunk(chunk);
            }
        }
        // Batches hold a handle; it must not keep the pool open.
        let mut chunks = Vec::new();
        for held in self.held.drain(..) {
            match held {
                Held::Batch(batch) => chunks.extend(batch.into_iter().map(Held::Chunk)),
                other => chunks.push(other),
            }
        }
        (chunks, self.model)
    }
}

impl Waiter<'_> {
    fn is_granted(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed) > 0
    }
}
