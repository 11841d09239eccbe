//! Runs a program on `PacketBuf`/`Packet` and on `BytesMut`/`Bytes` side by side: contents, lengths and
//! panics must always be equal. The pools are so small that growth, exhaustion and reuse happen all the
//! time.

use crate::op::Op;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use slab_net::{Packet, PacketBuf, PacketPool, SizeClasses};
use std::cell::Cell;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The same value in both families; every operation is done to both.
enum Pair {
    Mut(PacketBuf, BytesMut),
    Frozen(Packet, Bytes),
}

thread_local! {
    /// Whether the running code may panic, because the other side must then panic too.
    static MAY_PANIC: Cell<bool> = const { Cell::new(false) };
}

/// Usually within `len`, sometimes beyond.
fn near(n: usize, len: usize) -> usize {
    n % (len + len / 8 + 2)
}

/// Runs both; either both return or both panic.
fn both<A, B>(ours: impl FnOnce() -> A, theirs: impl FnOnce() -> B) -> Option<(A, B)> {
    MAY_PANIC.set(true);
    let ours = catch_unwind(AssertUnwindSafe(ours));
    let theirs = catch_unwind(AssertUnwindSafe(theirs));
    MAY_PANIC.set(false);
    match (ours, theirs) {
        (Ok(a), Ok(b)) => Some((a, b)),
        (Err(_), Err(_)) => {
            PANICS.fetch_add(1, Relaxed);
            None
        }
        (ours, theirs) => panic!(
            "ours panics: {}, theirs: {}",
            ours.is_err(),
            theirs.is_err()
        ),
    }
}

// Cases that the programs have reached, so that the test can check that they do.
pub(crate) static PANICS: AtomicU64 = AtomicU64::new(0);
pub(crate) static FALLBACKS: AtomicU64 = AtomicU64::new(0);
pub(crate) static EXHAUSTED: AtomicU64 = AtomicU64::new(0);
pub(crate) static RECLAIMED: AtomicU64 = AtomicU64::new(0);
pub(crate) static REJOINED: AtomicU64 = AtomicU64::new(0);
pub(crate) static THAWED: AtomicU64 = AtomicU64::new(0);
pub(crate) static COMPACTED: AtomicU64 = AtomicU64::new(0);

const STATIC: &[u8] = b"bytes that live for ever, and belong to nobody";
/// Operations that double a buffer skip buffers longer than this, in bytes: twenty doublings in a program
/// would take all memory, and find nothing that a megabyte does not.
const DOUBLED: usize = 1 << 20;

/// A pool of two slabs for four classes: two classes always have none.
fn tiny() -> slab_net::PacketPoolBuilder {
    PacketPool::builder()
        .name("tiny")
        .size_classes(SizeClasses::explicit(&[64, 256, 4096, 16_384]).unwrap())
        .max_memory(2 * 65_536)
}

/// Tells the two pools apart: a buffer of one never grows into the other.
fn name(pool: Option<PacketPool>) -> Option<String> {
    Some(pool?.slab().name().to_owned())
}

/// Once per process: makes a small default pool, and silences the expected panics, of which there are
/// thousands.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tiny().name("default").install_default().unwrap();
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !MAY_PANIC.get() {
                report(info);
            }
        }));
    });
}

/// Runs the program over a pool of its own, and checks that it leaves nothing in use.
pub(crate) fn run(headroom: usize, tailroom: usize, program: impl IntoIterator<Item = Op>) {
    let pool = tiny()
        .headroom(headroom)
        .tailroom(tailroom)
        .build()
        .unwrap();
    let mut machine = Machine {
        pool: pool.clone(),
        slots: Vec::new(),
    };
    for op in program {
        machine.make(op);
        machine.check();
    }
    drop(machine);
    let (slab, packets) = (pool.slab().stats(), pool.packet_stats());
    assert_eq!(
        (slab.in_use(), packets.heap_bytes),
        (0, 0),
        "something leaked"
    );
    FALLBACKS.fetch_add(packets.heap_fallbacks, Relaxed);
    let exhausted = slab.classes().iter().map(|class| class.exhausted).sum();
    EXHAUSTED.fetch_add(exhausted, Relaxed);
}

struct Machine {
    pool: PacketPool,
    slots: Vec<Pair>,
}

impl Machine {
    fn push(&mut self, pair: Pair) {
        if self.slots.len() == 16 {
            self.slots.remove(0);
        }
        self.slots.push(pair);
    }

    fn push_mut(&mut self, pair: Option<(PacketBuf, BytesMut)>) {
        if let Some((ours, theirs)) = pair {
            self.push(Pair::Mut(ours, theirs));
        }
    }

    fn push_frozen(&mut self, pair: Option<(Packet, Bytes)>) {
        if let Some((ours, theirs)) = pair {
            self.push(Pair::Frozen(ours, theirs));
        }
    }

    fn take(&mut self, slot: usize) -> Option<Pair> {
        let len = self.slots.len();
        (len > 0).then(|| self.slots.swap_remove(slot % len))
    }

    /// Runs an operation on a mutable pair, if the slot holds one.
    fn with_mut<R>(
        &mut self,
        slot: usize,
        f: impl FnOnce(&mut PacketBuf, &mut BytesMut) -> R,
    ) -> Option<R> {
        let len = self.slots.len().max(1);
        match self.slots.get_mut(slot % len) {
            Some(Pair::Mut(ours, theirs)) => {
                let home = name(ours.pool());
                let result = f(ours, theirs);
                assert!(home.is_none() || name(ours.pool()) == home);
                Some(result)
            }
            _ => None,
        }
    }

    fn with_frozen<R>(
        &mut self,
        slot: usize,
        f: impl FnOnce(&mut Packet, &mut Bytes) -> R,
    ) -> Option<R> {
        let len = self.slots.len().max(1);
        match self.slots.get_mut(slot % len) {
            Some(Pair::Frozen(ours, theirs)) => Some(f(ours, theirs)),
            _ => None,
        }
    }

    fn make(&mut self, op: Op) {
        match op {
            Op::Alloc(n) => {
                let ours = self.pool.with_capacity(n);
                assert!(ours.capacity() >= n);
                assert!(ours.tailroom() >= n + self.pool.tailroom());
                assert_eq!(ours.headroom(), self.pool.headroom());
                self.push(Pair::Mut(ours, BytesMut::with_capacity(n)));
            }
            Op::New => self.push(Pair::Mut(PacketBuf::new(), BytesMut::new())),
            Op::FromVec(v) => self.push(Pair::Frozen(v.clone().into(), v.into())),
            Op::FromStatic => self.push(Pair::Frozen(
                Packet::from_static(STATIC),
                Bytes::from_static(STATIC),
            )),
            Op::FromOwner(v) => self.push(Pair::Frozen(
                Packet::from_owner(v.clone()),
                Bytes::from_owner(v),
            )),
            Op::CopyFromSlice(v) => self.push(Pair::Frozen(
                self.pool.copy_from_slice(&v),
                Bytes::copy_from_slice(&v),
            )),
            Op::Zeroed(n) => self.push(Pair::Mut(PacketBuf::zeroed(n), BytesMut::zeroed(n))),
            Op::Collect(v) => self.push(Pair::Mut(v.iter().collect(), v.iter().collect())),
            op => self.write(op),
        }
    }

    fn write(&mut self, op: Op) {
        match op {
            Op::Extend(s, v) => self.with_mut(s, |a, b| {
                a.extend_from_slice(&v);
                b.extend_from_slice(&v);
            }),
            Op::ExtendByBytes(s, v) => self.with_mut(s, |a, b| {
                a.extend(&v);
                b.extend(&v);
            }),
            Op::ExtendByPairs(s, t) => {
                let Some((p, q)) = self.with_frozen(t, |p, q| (p.clone(), q.clone())) else {
                    return;
                };
                self.with_mut(s, |a, b| {
                    if a.len() + p.len() <= DOUBLED {
                        a.extend([p.clone(), p]);
                        b.extend([q.clone(), q]);
                    }
                })
            }
            Op::ExtendWithin(s, from, to) => self.with_mut(s, |a, b| {
                if a.len() <= DOUBLED {
                    both(
                        || a.extend_from_within((from, to)),
                        || b.extend_from_within((from, to)),
                    );
                }
            }),
            Op::PutChain(s, v, w) => self.with_mut(s, |a, b| {
                a.put(Buf::chain(&v[..], &w[..]));
                b.put(Buf::chain(&v[..], &w[..]));
            }),
            Op::PutBytes(s, byte, n) => self.with_mut(s, |a, b| {
                a.put_bytes(byte, n);
                b.put_bytes(byte, n);
            }),
            Op::PutInts(s, n) => self.with_mut(s, |a, b| {
                a.put_u8(n as u8);
                a.put_u16(n as u16);
                a.put_u32_le(n as u32);
                a.put_u64(n);
                a.put_uint(n >> 40, 3);
                b.put_u8(n as u8);
                b.put_u16(n as u16);
                b.put_u32_le(n as u32);
                b.put_u64(n);
                b.put_uint(n >> 40, 3);
            }),
            Op::WriteSpare(s, v) => self.with_mut(s, |a, b| {
                a.reserve(v.len());
                for (to, &from) in a.spare_capacity_mut().iter_mut().zip(&v) {
                    to.write(from);
                }
                // SAFETY: reserved and written above.
                unsafe { a.set_len(a.len() + v.len()) };
                b.extend_from_slice(&v);
            }),
            Op::ChunkMut(s, v) => self.with_mut(s, |a, b| {
                let mut rest = &v[..];
                while !rest.is_empty() {
                    let room = a.chunk_mut();
                    let n = room.len().min(rest.len());
                    room[..n].copy_from_slice(&rest[..n]);
                    // SAFETY: just written.
                    unsafe { a.advance_mut(n) };
                    rest = &rest[n..];
                }
                b.extend_from_slice(&v);
            }),
            Op::Format(s, n) => self.with_mut(s, |a, b| {
                write!(a, "<{n:>12}>").unwrap();
                write!(b, "<{n:>12}>").unwrap();
            }),
            Op::Flip(s, n) => self.with_mut(s, |a, b| {
                if n < b.len() {
                    a[n] ^= 0xff;
                    b[n] ^= 0xff;
                }
            }),
            Op::Prepend(s, v) => self.with_mut(s, |a, b| {
                a.prepend(&v);
                let body = b.split();
                b.extend_from_slice(&v);
                b.extend_from_slice(&body);
            }),
            Op::PrependHeader(s, v) => self.with_mut(s, |a, b| {
                let header = a.prepend_header(v.len());
                assert!(header.iter().all(|&byte| byte == 0));
                header.copy_from_slice(&v);
                let body = b.split();
                b.extend_from_slice(&v);
                b.extend_from_slice(&body);
            }),
            op => {
                self.shape(op);
                None
            }
        };
    }

    fn shape(&mut self, op: Op) {
        match op {
            Op::SplitTo(s, n) => {
                let pair = self.with_mut(s, |a, b| {
                    let n = near(n, b.len());
                    both(|| a.split_to(n), || b.split_to(n))
                });
                self.push_mut(pair.flatten());
                let pair = self.with_frozen(s, |a, b| {
                    let n = near(n, b.len());
                    both(|| a.split_to(n), || b.split_to(n))
                });
                self.push_frozen(pair.flatten());
            }
            Op::SplitOff(s, n) => {
                let pair = self.with_mut(s, |a, b| {
                    // Capacities differ by design; positions beyond the smaller one are not comparable.
                    let n = n % (a.capacity().min(b.capacity()) + 1);
                    both(|| a.split_off(n), || b.split_off(n))
                });
                self.push_mut(pair.flatten());
                let pair = self.with_frozen(s, |a, b| {
                    let n = near(n, b.len());
                    both(|| a.split_off(n), || b.split_off(n))
                });
                self.push_frozen(pair.flatten());
            }
            Op::SplitOffFar(s) => {
                self.with_mut(s, |a, b| {
                    let n = a.capacity().max(b.capacity()) + 1;
                    assert!(both(|| a.split_off(n), || b.split_off(n)).is_none());
                });
            }
            Op::Split(s) => {
                let pair = self.with_mut(s, |a, b| (a.split(), b.split()));
                self.push_mut(pair);
            }
            Op::CopyToBytes(s, n) => {
                let pair =
                    self.with_mut(s, |a, b| both(|| a.copy_to_bytes(n), || b.copy_to_bytes(n)));
                self.push_frozen(pair.flatten());
                // By the trait the result is `Bytes`.
                let pair = self.with_frozen(s, |a, b| {
                    both(|| Buf::copy_to_bytes(a, n), || b.copy_to_bytes(n))
                });
                if let Some(Some((ours, theirs))) = pair {
                    self.push(Pair::Frozen(ours.into(), theirs));
                }
            }
            Op::Unsplit(s, t) => match (self.take(s), self.take(t)) {
                (Some(Pair::Mut(mut a, mut b)), Some(Pair::Mut(c, d))) => {
                    a.unsplit(c);
                    b.unsplit(d);
                    self.push(Pair::Mut(a, b));
                }
                (first, second) => self.slots.extend(first.into_iter().chain(second)),
            },
            Op::SplitAndJoin(s, n, v) => {
                self.with_mut(s, |a, b| {
                    let n = n % (a.len() + 1);
                    let (mut c, mut d) = (a.split_off(n), b.split_off(n));
                    c.extend_from_slice(&v);
                    d.extend_from_slice(&v);
                    let (at, moved) = (a.as_ptr(), c.as_ptr() != a.as_ptr().wrapping_add(n));
                    a.unsplit(c);
                    b.unsplit(d);
                    REJOINED.fetch_add(u64::from(!moved && a.as_ptr() == at), Relaxed);
                });
            }
            Op::Truncate(s, n) => {
                self.with_mut(s, |a, b| (a.truncate(n), b.truncate(n)));
                self.with_frozen(s, |a, b| (a.truncate(n), b.truncate(n)));
            }
            Op::Clear(s) => {
                self.with_mut(s, |a, b| (a.clear(), b.clear()));
                self.with_frozen(s, |a, b| {
                    a.clear();
                    b.clear();
                    assert!(!a.is_unique() && !b.is_unique(), "it has no memory");
                });
            }
            Op::Resize(s, n, byte) => {
                self.with_mut(s, |a, b| (a.resize(n, byte), b.resize(n, byte)));
            }
            Op::Reserve(s, n) => {
                self.with_mut(s, |a, b| {
                    a.reserve(n);
                    assert!(a.tailroom() >= n);
                    b.reserve(n);
                });
            }
            Op::ReserveHuge(s, n) => {
                self.with_mut(s, |a, b| {
                    let n = usize::MAX - n;
                    assert!(!a.try_reclaim(n));
                    assert!(a.try_reserve(n).is_err());
                    assert!(both(|| a.reserve(n), || b.reserve(n)).is_none());
                });
            }
            Op::TryReclaim(s, n) => {
                self.with_mut(s, |a, b| {
                    let n = a.tailroom() + n % 64;
                    let had = a.tailroom() >= n;
                    let (at, capacity) = (a.as_ptr(), a.capacity());
                    if a.try_reclaim(n) {
                        assert!(a.tailroom() >= n);
                        RECLAIMED.fetch_add(u64::from(!had), Relaxed);
                    } else {
                        assert_eq!((a.as_ptr(), a.capacity()), (at, capacity));
                    }
                    let _ = b.try_reclaim(n);
                });
            }
            Op::Advance(s, n) => {
                self.with_mut(s, |a, b| {
                    let n = near(n, b.len());
                    both(|| a.advance(n), || b.advance(n))
                });
                self.with_frozen(s, |a, b| {
                    let n = near(n, b.len());
                    both(|| a.advance(n), || b.advance(n))
                });
            }
            Op::GetInts(s) => {
                let pair = self.with_mut(s, |a, b| {
                    both(
                        || (a.get_u8(), a.get_u16_le(), a.get_u32(), a.get_int(5)),
                        || (b.get_u8(), b.get_u16_le(), b.get_u32(), b.get_int(5)),
                    )
                });
                let frozen = self.with_frozen(s, |a, b| {
                    both(
                        || (a.get_u8(), a.get_u16_le(), a.get_u32(), a.get_int(5)),
                        || (b.get_u8(), b.get_u16_le(), b.get_u32(), b.get_int(5)),
                    )
                });
                if let Some(Some((ours, theirs))) = pair.or(frozen) {
                    assert_eq!(ours, theirs);
                }
            }
            op => self.share(op),
        }
    }

    fn share(&mut self, op: Op) {
        match op {
            Op::Freeze(s) => match self.take(s) {
                Some(Pair::Mut(a, b)) => {
                    let at = a.as_ptr();
                    let a = a.freeze();
                    assert_eq!(a.as_ptr(), at);
                    self.push(Pair::Frozen(a, b.freeze()));
                }
                other => self.slots.extend(other),
            },
            Op::Thaw(s) => match self.take(s) {
                Some(Pair::Frozen(a, b)) => {
                    let (unique, at) = (a.is_unique(), a.as_ptr());
                    let a = match a.try_into_mut() {
                        Ok(a) => {
                            assert!(unique && a.as_ptr() == at);
                            THAWED.fetch_add(1, Relaxed);
                            a
                        }
                        Err(a) => {
                            assert!(!unique);
                            let home = name(a.pool());
                            let a = PacketBuf::from(a);
                            assert!(home.is_none() || name(a.pool()) == home);
                            a
                        }
                    };
                    self.push(Pair::Mut(a, BytesMut::from(b)));
                }
                other => self.slots.extend(other),
            },
            Op::Clone(s) => {
                let pair = self.with_mut(s, |a, b| {
                    let copy = a.clone();
                    assert!(a.pool().is_none() || name(copy.pool()) == name(a.pool()));
                    (copy, b.clone())
                });
                self.push_mut(pair);
                let pair = self.with_frozen(s, |a, b| (a.clone(), b.clone()));
                self.push_frozen(pair);
            }
            Op::Slice(s, from, to) => {
                let pair = self.with_frozen(s, |a, b| {
                    both(|| a.slice((from, to)), || b.slice((from, to)))
                });
                self.push_frozen(pair.flatten());
            }
            Op::SliceRef(s, from, len) => {
                let pair = self.with_frozen(s, |a, b| {
                    let from = from % (a.len() + 1);
                    let to = from + len % (a.len() - from + 1);
                    (a.slice_ref(&a[from..to]), b.slice_ref(&b[from..to]))
                });
                self.push_frozen(pair);
                self.with_frozen(s, |a, b| {
                    both(|| a.slice_ref(STATIC), || b.slice_ref(STATIC)).map(drop)
                });
            }
            Op::Compact(s) => match self.take(s) {
                Some(Pair::Frozen(a, b)) => {
                    let (pinned, class, at) = (a.pinned_bytes(), a.class(), a.as_ptr());
                    let a = self.pool.compact(a);
                    let is_copy = a.as_ptr() != at && !a.is_empty();
                    // Behind `Bytes`, the pool knows of more than the packet.
                    assert!(a.pinned_bytes() <= pinned || is_copy && class.is_none());
                    COMPACTED.fetch_add(u64::from(is_copy), Relaxed);
                    self.push(Pair::Frozen(a, b));
                }
                other => self.slots.extend(other),
            },
            Op::ThroughBytes(s) => match self.take(s) {
                Some(Pair::Frozen(a, b)) => {
                    let (at, empty) = (a.as_ptr(), a.is_empty());
                    let bytes = Bytes::from(a);
                    assert!(empty || bytes.as_ptr() == at);
                    self.push(Pair::Frozen(bytes.into(), b));
                }
                other => self.slots.extend(other),
            },
            Op::Drop(s) => drop(self.take(s)),
            _ => unreachable!("all operations are listed"),
        }
    }

    fn check(&self) {
        for pair in &self.slots {
            match pair {
                Pair::Mut(a, b) => {
                    assert_eq!(&a[..], &b[..]);
                    assert_eq!(a.len(), b.len());
                    assert!(a.capacity() >= a.len());
                }
                Pair::Frozen(a, b) => {
                    assert_eq!(&a[..], &b[..]);
                    assert_eq!(a.remaining(), b.len());
                }
            }
        }
    }
}
