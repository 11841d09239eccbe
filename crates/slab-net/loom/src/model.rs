//! Two or three threads, one chunk.

use crate::packet::{Packet, PacketBuf, PacketPool};
use bytes::BufMut;
use loom::cell::UnsafeCell;
use loom::thread;
use slab_core::{Mode, SizeClasses};
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Stands for a part of a chunk.
#[derive(Clone)]
struct Part(Arc<UnsafeCell<u32>>);

impl Part {
    fn new() -> Self {
        Self(Arc::new(UnsafeCell::new(0)))
    }

    fn read(&self) -> u32 {
        // SAFETY: loom reports a write that is not ordered with this.
        self.0.with(|value| unsafe { *value })
    }

    fn write(&self, to: u32) {
        // SAFETY: loom reports any access that is not ordered with this.
        self.0.with_mut(|value| unsafe { *value = to });
    }
}

// SAFETY: loom is asked exactly this.
unsafe impl Send for Part {}

const CHUNK: usize = 1024;
/// Chunks of the pool.
const CHUNKS: usize = 8;

/// Runs the model, every interleaving of it, over a pool of its own, whose chunks are all free again
/// in the end, each once.
fn model(f: impl Fn(&PacketPool) + Send + Sync + 'static) {
    explore(None, move || {
        let pool = PacketPool::builder()
            .size_classes(SizeClasses::explicit(&[CHUNK]).unwrap())
            .max_memory(CHUNKS * CHUNK)
            // The count of a packet is what is modelled; the pool has its own models.
            .slab(|slab| slab.mode(Mode::Locked))
            .build()
            .unwrap();
        f(&pool);
        assert_eq!(pool.slab().stats().in_use(), 0);
        let all: Vec<_> = (0..CHUNKS).map(|_| pool.try_alloc(CHUNK)).collect();
        assert!(all.iter().all(Result::is_ok), "a chunk was lost");
        assert!(pool.try_alloc(CHUNK).is_err(), "a chunk was freed twice");
        let mut at: Vec<_> = all.iter().flatten().map(|buf| buf.as_ptr()).collect();
        at.sort_unstable();
        at.dedup();
        assert_eq!(at.len(), CHUNKS, "a chunk was freed twice");
    });
}

/// Every interleaving, or all with so many preemptions. Says on stderr how many executions there were;
/// `ci/loom` adds them up.
pub(crate) fn explore(bound: Option<usize>, f: impl Fn() + Send + Sync + 'static) {
    let executions = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = executions.clone();
    let mut builder = loom::model::Builder::new();
    // `ci/loom --long` explores one preemption more.
    let extra = usize::from(std::env::var_os("SLAB_LOOM_EXTRA").is_some());
    builder.preemption_bound = bound.map(|bound| bound + extra);
    builder.check(move || {
        count.fetch_add(1, Relaxed);
        f();
    });
    let name = std::thread::current().name().map(String::from);
    let bound = builder.preemption_bound;
    let said = writeln!(
        std::io::stderr(),
        "loom: {}: {} executions, {}",
        name.unwrap_or_default(),
        executions.load(Relaxed),
        bound.map_or("no bound".into(), |bound| format!("{bound} preemptions"))
    );
    said.expect("stderr is open");
}

fn filled(pool: &PacketPool) -> PacketBuf {
    let mut buf = pool.try_alloc(CHUNK).unwrap();
    buf.put_bytes(7, 64);
    buf
}

/// Two threads clone, read and drop; the chunk is freed once, by whoever is last.
#[test]
fn clones_and_drops() {
    model(|pool| {
        let packet = filled(pool).freeze();
        let threads = [packet.clone(), packet].map(|packet| {
            thread::spawn(move || {
                let again = packet.clone();
                drop(packet);
                assert_eq!(again[..2], [7, 7]);
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// While one packet is sliced by reference, another is dropped; the slice keeps the chunk.
#[test]
fn a_clone_of_a_borrowed_packet() {
    model(|pool| {
        let packet = Arc::new(filled(pool).freeze());
        let threads = [0, 32].map(|from| {
            let packet = Arc::clone(&packet);
            thread::spawn(move || packet.slice(from..from + 32))
        });
        drop(packet);
        let slices = threads.map(|thread| thread.join().unwrap());
        assert!(!slices[0].is_unique());
        assert_eq!(slices[0], slices[1]);
    });
}

/// Whoever gets the buffer may write what the other has read.
#[test]
fn mutable_again_after_the_others_are_done() {
    static MUTABLE: AtomicU32 = AtomicU32::new(0);
    static SHARED: AtomicU32 = AtomicU32::new(0);
    model(|pool| {
        let packet = filled(pool).freeze();
        let (part, other) = (Part::new(), packet.clone());
        let writer = {
            let part = part.clone();
            thread::spawn(move || match packet.try_into_mut() {
                Ok(buf) => {
                    part.write(1);
                    MUTABLE.fetch_add(1, Relaxed);
                    drop(buf);
                }
                Err(packet) => {
                    part.read();
                    SHARED.fetch_add(1, Relaxed);
                    drop(packet);
                }
            })
        };
        part.read();
        drop(other);
        writer.join().unwrap();
    });
    assert!(
        MUTABLE.load(Relaxed) > 0 && SHARED.load(Relaxed) > 0,
        "{MUTABLE:?} {SHARED:?}"
    );
}

/// Two ask at the same time: never both get it, and who does has it alone.
#[test]
fn mutable_for_one_at_a_time() {
    model(|pool| {
        let packet = filled(pool).freeze();
        let part = Part::new();
        let ask = |packet: Packet, part: Part| {
            thread::spawn(move || match packet.try_into_mut() {
                Ok(mut buf) => {
                    part.write(1);
                    buf[0] = 1;
                    true
                }
                Err(packet) => {
                    part.read();
                    drop(packet);
                    false
                }
            })
        };
        let first = ask(packet.clone(), part.clone());
        let second = ask(packet, part);
        let (first, second) = (first.join().unwrap(), second.join().unwrap());
        assert!(!(first && second));
    });
}

/// Three parts of one buffer: the middle one comes back and is joined, while the thread that has the
/// last one writes it and lets go. The whole chunk is the first one's only after that.
#[test]
fn joined_while_another_part_lives() {
    model(|pool| {
        let mut front = filled(pool);
        let mut middle = front.split_off(16);
        let mut rest = middle.split_off(16);
        let part = Part::new();
        let writer = {
            let part = part.clone();
            thread::spawn(move || {
                part.write(1);
                rest.put_u8(9);
                drop(rest);
            })
        };
        let at = front.as_ptr();
        front.unsplit(middle);
        assert_eq!((front.len(), front.capacity()), (32, 32));
        if front.try_reclaim(CHUNK - 32) {
            part.write(2);
            front.put_bytes(1, CHUNK - 32);
        }
        assert_eq!(front.as_ptr(), at, "in place");
        writer.join().unwrap();
    });
}

/// Both halves come back from threads that wrote them, and are one again.
#[test]
fn joined_after_both_were_written() {
    model(|pool| {
        let mut front = filled(pool);
        let back = front.split_off(32);
        let parts = [Part::new(), Part::new()];
        let write = |mut buf: PacketBuf, part: &Part| {
            let part = part.clone();
            thread::spawn(move || {
                part.write(3);
                buf[0] = 3;
                buf
            })
        };
        let threads = [write(front, &parts[0]), write(back, &parts[1])];
        let [mut front, back] = threads.map(|thread| thread.join().unwrap());
        front.unsplit(back);
        assert!(front.freeze().is_unique());
        assert_eq!(parts.map(|part| part.read()), [3, 3]);
    });
}

/// Segments of a received buffer go to another thread, whose drops race with the receiver's.
#[test]
fn segments_dropped_elsewhere() {
    model(|pool| {
        let mut received = filled(pool);
        let segment = received.split_to(32).freeze();
        let consumer = thread::spawn(move || drop(segment));
        let last = received.freeze();
        drop(last.clone());
        drop(last);
        consumer.join().unwrap();
    });
}
