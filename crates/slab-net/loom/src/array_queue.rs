//! What stands for crossbeam's `ArrayQueue`: the same algorithm (Vyukov's), with no more order than any
//! queue has to give. crossbeam's has full fences besides, of which its documentation says nothing, and
//! which would hide that ours are missing.

use core::fmt;
use core::mem::MaybeUninit;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

pub struct ArrayQueue<T> {
    head: AtomicUsize,
    tail: AtomicUsize,
    buffer: Box<[Slot<T>]>,
    one_lap: usize,
}

struct Slot<T> {
    stamp: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a value moves from the thread that pushes to the one that pops.
unsafe impl<T: Send> Sync for ArrayQueue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for ArrayQueue<T> {}

impl<T> ArrayQueue<T> {
    pub fn new(capacity: usize) -> Self {
        let slot = |index| Slot {
            stamp: AtomicUsize::new(index),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        };
        Self {
            head: AtomicUsize::new(0),
            tail: AtomicUsize::new(0),
            buffer: (0..capacity).map(slot).collect(),
            one_lap: (capacity + 1).next_power_of_two(),
        }
    }

    /// The slot of a position, and the position behind it.
    fn slot(&self, at: usize) -> (&Slot<T>, usize) {
        let index = at & (self.one_lap - 1);
        let next = if index + 1 < self.buffer.len() {
            at + 1
        } else {
            (at - index).wrapping_add(self.one_lap)
        };
        (&self.buffer[index], next)
    }

    pub fn len(&self) -> usize {
        loop {
            let tail = self.tail.load(Ordering::Acquire);
            let head = self.head.load(Ordering::Acquire);
            if self.tail.load(Ordering::Acquire) == tail {
                let index = |at| at & (self.one_lap - 1);
                return match index(tail).checked_sub(index(head)) {
                    Some(0) if tail != head => self.buffer.len(),
                    Some(len) => len,
                    None => self.buffer.len() + index(tail) - index(head),
                };
            }
        }
    }

    pub fn push(&self, value: T) -> Result<(), T> {
        self.push_or_else(value, |value, tail, _, _| {
            let head = self.head.load(Ordering::Relaxed);
            match head.wrapping_add(self.one_lap) == tail {
                true => Err(value),
                false => Ok(value),
            }
        })
    }

    /// If there is no room, the value takes the place of the first, which is returned.
    pub fn force_push(&self, value: T) -> Option<T> {
        let forced = self.push_or_else(value, |value, tail, next, slot| {
            let (head, next_head) = (
                tail.wrapping_sub(self.one_lap),
                next.wrapping_sub(self.one_lap),
            );
            let moved = self.head.compare_exchange_weak(
                head,
                next_head,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if moved.is_err() {
                return Ok(value);
            }
            self.tail.store(next, Ordering::Relaxed);
            let first = slot.value.with_mut(|at| {
                // SAFETY: whoever moved the head past a slot that is full has it alone; loom looks.
                unsafe { at.replace(MaybeUninit::new(value)) }
            });
            slot.stamp.store(tail + 1, Ordering::Release);
            // SAFETY: the stamp said that it was written.
            Err(unsafe { first.assume_init() })
        });
        forced.err()
    }

    /// If the queue seems full, `full` gets the value, the tail, the position behind it and its slot. It
    /// returns the value to try again, or an error to end.
    fn push_or_else(
        &self,
        mut value: T,
        full: impl Fn(T, usize, usize, &Slot<T>) -> Result<T, T>,
    ) -> Result<(), T> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            let (slot, next) = self.slot(tail);
            let stamp = slot.stamp.load(Ordering::Acquire);
            if tail == stamp {
                let moved = self.tail.compare_exchange_weak(
                    tail,
                    next,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match moved {
                    Ok(_) => {
                        slot.value.with_mut(|at| {
                            // SAFETY: whoever moved the tail has the slot alone; loom looks.
                            unsafe { at.write(MaybeUninit::new(value)) }
                        });
                        slot.stamp.store(tail + 1, Ordering::Release);
                        return Ok(());
                    }
                    Err(now) => tail = now,
                }
                continue;
            }
            if stamp.wrapping_add(self.one_lap) == tail + 1 {
                value = full(value, tail, next, slot)?;
            }
            thread::yield_now();
            tail = self.tail.load(Ordering::Relaxed);
        }
    }

    pub fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let (slot, next) = self.slot(head);
            let stamp = slot.stamp.load(Ordering::Acquire);
            if head + 1 == stamp {
                let moved = self.head.compare_exchange_weak(
                    head,
                    next,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match moved {
                    Ok(_) => {
                        let value = slot.value.with(|at| {
                            // SAFETY: whoever moved the head has the slot alone; loom looks.
                            unsafe { at.read() }
                        });
                        slot.stamp
                            .store(head.wrapping_add(self.one_lap), Ordering::Release);
                        // SAFETY: the stamp said that it was written.
                        return Some(unsafe { value.assume_init() });
                    }
                    Err(now) => head = now,
                }
                continue;
            }
            if stamp == head {
                if self.tail.load(Ordering::Relaxed) == head {
                    return None;
                }
            }
            thread::yield_now();
            head = self.head.load(Ordering::Relaxed);
        }
    }
}

impl<T> fmt::Debug for ArrayQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayQueue").finish_non_exhaustive()
    }
}
