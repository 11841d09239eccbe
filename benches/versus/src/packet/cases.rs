//! What one packet goes through, written once for ours and once for `bytes`.

use super::OURS;
use crate::cpu::ThreadClock;
use crate::heap;
use crate::measure::Sampler;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use slab_net::{Packet, PacketBuf, PacketPool};
use std::hint::black_box;

/// The name of the other side.
pub(super) const BYTES: &str = "bytes";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    /// 2 KiB allocated, 64 bytes written, frozen, dropped.
    Fill,
    /// The same, and cloned before both are dropped.
    FillClone,
    /// A shared packet cloned, and the clone dropped. The compiler does not know the packet, here and in `Slice`:
    /// otherwise it would find out before the loop what owns its bytes, as it seldom can in a program.
    CloneDrop,
    /// Twelve slices of 100 bytes out of a packet of 1200.
    Slice,
    /// 40 segments of 1200 bytes split off a buffer of 64 KiB, each frozen; one operation is one
    /// segment.
    Split,
    /// A header of 16 bytes put in front of 1200 bytes that were written.
    Prepend,
    /// As `Fill`, and converted into a `bytes::Bytes` before it is dropped.
    ToBytes,
    /// 256 times four bytes read from a frozen packet; one operation is one read.
    Read,
    /// 256 times four bytes written; one operation is one write.
    Write,
}

const FILL: usize = 64;
const PACKET: usize = 2048;
const SEGMENT: usize = 1200;
const SEGMENTS: usize = 40;
const SLICES: usize = 12;
const HEADER: usize = 16;
const WORDS: usize = 256;

impl Case {
    pub(super) const ALL: [Self; 9] = [
        Self::Fill,
        Self::FillClone,
        Self::CloneDrop,
        Self::Slice,
        Self::Split,
        Self::Prepend,
        Self::ToBytes,
        Self::Read,
        Self::Write,
    ];

    /// The cases of which heap allocations are counted.
    pub(super) const COUNTED: [Self; 5] = [
        Self::Fill,
        Self::FillClone,
        Self::Split,
        Self::Prepend,
        Self::ToBytes,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fill => "alloc-write-freeze-drop",
            Self::FillClone => "alloc-write-freeze-clone-drop",
            Self::CloneDrop => "clone-drop",
            Self::Slice => "slice-12",
            Self::Split => "split-40",
            Self::Prepend => "prepend-16",
            Self::ToBytes => "to-bytes",
            Self::Read => "buf-read",
            Self::Write => "buf-write",
        }
    }

    pub(super) fn sampler(self, side: &str, counted: bool) -> Option<Sampler> {
        match side {
            OURS => Some(self.ours(counted)),
            BYTES => Some(self.theirs(counted)),
            _ => None,
        }
    }

    fn ours(self, counted: bool) -> Sampler {
        let pool = PacketPool::builder()
            .name("versus-packet")
            .headroom(if self == Self::Prepend { HEADER } else { 0 })
            .build()
            .expect("the configuration is valid");
        match self {
            Self::Fill => of(counted, 1, move || drop(black_box(filled(&pool).freeze()))),
            Self::FillClone => of(counted, 1, move || {
                let packet: Packet = black_box(filled(&pool).freeze());
                drop(black_box(packet.clone()));
                drop(packet);
            }),
            Self::CloneDrop => {
                let packet = shared(taken(&pool, SEGMENT)).freeze();
                let second = packet.clone();
                of(counted, 1, move || {
                    let _ = &second;
                    drop(black_box(black_box(&packet).clone()));
                })
            }
            Self::Slice => {
                let packet = shared(taken(&pool, SEGMENT)).freeze();
                of(counted, SLICES, move || {
                    for at in 0..SLICES {
                        drop(black_box(
                            black_box(&packet).slice(at * 100..(at + 1) * 100),
                        ));
                    }
                })
            }
            Self::Split => {
                let mut kept: Vec<Packet> = Vec::with_capacity(SEGMENTS);
                of(counted, SEGMENTS, move || {
                    let mut received = taken(&pool, 65_536);
                    // SAFETY: within the capacity; the bytes are not read.
                    unsafe { received.set_len(SEGMENTS * SEGMENT) };
                    for _ in 0..SEGMENTS {
                        kept.push(received.split_to(SEGMENT).freeze());
                    }
                    black_box(&mut kept).clear();
                })
            }
            Self::Prepend => of(counted, 1, move || {
                let mut packet = taken(&pool, SEGMENT);
                packet.extend_from_slice(black_box(&[7; SEGMENT]));
                packet.prepend(black_box(&[8; HEADER]));
                drop(black_box(packet.freeze()));
            }),
            Self::ToBytes => of(counted, 1, move || {
                drop(black_box(Bytes::from(filled(&pool).freeze())));
            }),
            Self::Read => {
                let packet = words(taken(&pool, 4 * WORDS)).freeze();
                of(counted, WORDS, move || read_words(packet.clone()))
            }
            Self::Write => {
                let mut packet = taken(&pool, 4 * WORDS);
                of(counted, WORDS, move || {
                    let packet = black_box(&mut packet);
                    packet.clear();
                    write_words(packet);
                })
            }
        }
    }

    fn theirs(self, counted: bool) -> Sampler {
        match self {
            // Theirs is already what ours is converted into.
            Self::Fill | Self::ToBytes => {
                of(counted, 1, move || drop(black_box(filled_bytes().freeze())))
            }
            Self::FillClone => of(counted, 1, move || {
                let packet: Bytes = black_box(filled_bytes().freeze());
                drop(black_box(packet.clone()));
                drop(packet);
            }),
            Self::CloneDrop => {
                let packet = shared(BytesMut::with_capacity(SEGMENT)).freeze();
                // The first clone of a `Bytes` allocates, so make it beforehand.
                let second = packet.clone();
                of(counted, 1, move || {
                    let _ = &second;
                    drop(black_box(black_box(&packet).clone()));
                })
            }
            Self::Slice => {
                let packet = shared(BytesMut::with_capacity(SEGMENT)).freeze();
                of(counted, SLICES, move || {
                    for at in 0..SLICES {
                        drop(black_box(
                            black_box(&packet).slice(at * 100..(at + 1) * 100),
                        ));
                    }
                })
            }
            Self::Split => {
                let mut kept: Vec<Bytes> = Vec::with_capacity(SEGMENTS);
                of(counted, SEGMENTS, move || {
                    let mut received = BytesMut::with_capacity(65_536);
                    // SAFETY: any bytes will do, within the capacity; they are not read.
                    unsafe { received.set_len(SEGMENTS * SEGMENT) };
                    for _ in 0..SEGMENTS {
                        kept.push(received.split_to(SEGMENT).freeze());
                    }
                    black_box(&mut kept).clear();
                })
            }
            // `bytes` has no room in front, so the header goes into a second buffer, with a copy.
            Self::Prepend => of(counted, 1, move || {
                let mut payload = BytesMut::with_capacity(SEGMENT);
                payload.extend_from_slice(black_box(&[7; SEGMENT]));
                let mut packet = BytesMut::with_capacity(HEADER + SEGMENT);
                packet.extend_from_slice(black_box(&[8; HEADER]));
                packet.extend_from_slice(&payload);
                drop(black_box(packet.freeze()));
            }),
            Self::Read => {
                let packet = words(BytesMut::with_capacity(4 * WORDS)).freeze();
                of(counted, WORDS, move || read_words(packet.clone()))
            }
            Self::Write => {
                let mut packet = BytesMut::with_capacity(4 * WORDS);
                of(counted, WORDS, move || {
                    let packet = black_box(&mut packet);
                    packet.clear();
                    write_words(packet);
                })
            }
        }
    }
}

// Always inlined, like everything on both sides: returning a buffer through memory costs more than what is
// measured here.
#[inline(always)]
fn taken(pool: &PacketPool, len: usize) -> PacketBuf {
    pool.try_alloc(len).expect("the pool has room")
}

#[inline(always)]
fn filled(pool: &PacketPool) -> PacketBuf {
    let mut packet = taken(pool, PACKET);
    packet.extend_from_slice(black_box(&[7; FILL]));
    packet
}

#[inline(always)]
fn filled_bytes() -> BytesMut {
    let mut packet = BytesMut::with_capacity(PACKET);
    packet.extend_from_slice(black_box(&[7; FILL]));
    packet
}

fn shared<B: BufMut>(mut packet: B) -> B {
    packet.put_bytes(7, SEGMENT);
    packet
}

fn words<B: BufMut>(mut packet: B) -> B {
    write_words(&mut packet);
    packet
}

/// A loop around one read is seven instructions; of two of these, the same but for their addresses, one took nearly
/// twice as long as the other in a build in which only that one crossed a cache line.
const WORDS_PER_TURN: usize = 4;

#[inline(always)]
fn read_words(mut packet: impl Buf) {
    while packet.has_remaining() {
        for _ in 0..WORDS_PER_TURN {
            black_box(packet.get_u32());
        }
    }
}

#[inline(always)]
fn write_words(packet: &mut impl BufMut) {
    for turn in 0..WORDS / WORDS_PER_TURN {
        for word in 0..WORDS_PER_TURN {
            packet.put_u32((turn * WORDS_PER_TURN + word) as u32);
        }
    }
}

/// Packets per sample of which allocations are counted.
const COUNTED_PACKETS: usize = 100_000;

/// The smallest count of allocations that can be told from zero.
pub(super) const RESOLUTION: f64 = 1.0 / COUNTED_PACKETS as f64;

/// Makes a sampler of `step`, which is `items` operations.
fn of(counted: bool, items: usize, mut step: impl FnMut() + 'static) -> Sampler {
    if counted {
        // Allocations that happen only once are not counted.
        repeat(&mut step, 1000);
        return Sampler::single_run(move || {
            let steps = COUNTED_PACKETS / items;
            let before = heap::allocations();
            repeat(&mut step, steps);
            (heap::allocations() - before) as f64 / (steps * items) as f64
        });
    }
    Sampler::timed(move |ops| {
        let steps = ops.div_ceil(items as u64) as usize;
        let clock = ThreadClock::start();
        repeat(&mut step, steps);
        (clock.elapsed_ns() / (steps * items) as f64).into()
    })
}

/// The one place that calls a step, so that each is inlined into its loop: with several, the compiler did so for
/// some steps and not for others, and the latter were charged with a call.
#[inline(never)]
fn repeat(step: &mut impl FnMut(), times: usize) {
    for _ in 0..times {
        step();
    }
}
