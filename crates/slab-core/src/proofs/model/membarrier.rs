//! The asymmetric barrier as production has it. The other models have a fence for either half, which is
//! more than the owner has: there a light barrier is nothing to the processor, and the kernel interrupts
//! the owner at one point of its program, whichever it is, with a fence. A model here is explored once for
//! each such point.

use super::{BOUND, assert_each_once, model};
use crate::sync::{AtomicBool, Ordering, fence, heavy_barrier};
use crate::thread_cache::guard::{Guard, SHUT, TAKEN};
use loom::cell::UnsafeCell;
use loom::thread;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

std::thread_local! {
    /// Of this execution: loom's threads share one of the system's.
    static KERNEL: RefCell<Option<Rc<Kernel>>> = const { RefCell::new(None) };
}

/// Interrupts the one owner that there is, once.
struct Kernel {
    /// Points that the owner passes before; `None` if it is not interrupted, or was.
    points: Cell<Option<usize>>,
    asked: AtomicBool,
    answered: AtomicBool,
}

/// While it lives, barriers are these.
pub(super) struct Installed;

impl Drop for Installed {
    fn drop(&mut self) {
        KERNEL.take();
    }
}

/// The owner is interrupted behind so many points, or never.
pub(super) fn install(points: Option<usize>) -> Installed {
    KERNEL.set(Some(Rc::new(Kernel {
        points: Cell::new(points),
        asked: AtomicBool::new(false),
        answered: AtomicBool::new(false),
    })));
    Installed
}

fn kernel() -> Option<Rc<Kernel>> {
    KERNEL.with_borrow(Option::clone)
}

impl Kernel {
    /// The owner waits for the interrupt, because it is to be here.
    fn interrupt(&self) {
        while !self.asked.load(Ordering::Acquire) {
            thread::yield_now();
        }
        fence(Ordering::SeqCst);
        self.answered.store(true, Ordering::Release);
    }
}

/// A point of the owner's program; `false` if barriers are fences.
pub(crate) fn point() -> bool {
    let Some(kernel) = kernel() else {
        return false;
    };
    match kernel.points.get() {
        None => {}
        Some(0) => {
            kernel.points.set(None);
            kernel.interrupt();
        }
        Some(left) => kernel.points.set(Some(left - 1)),
    }
    true
}

/// The system call; `false` if barriers are fences.
pub(crate) fn call() -> bool {
    let Some(kernel) = kernel() else {
        return false;
    };
    fence(Ordering::SeqCst);
    kernel.asked.store(true, Ordering::Release);
    while !kernel.answered.load(Ordering::Acquire) {
        thread::yield_now();
    }
    fence(Ordering::SeqCst);
    true
}

/// The owner does nothing more.
fn end() {
    while kernel().is_some_and(|kernel| kernel.points.get().is_some()) {
        point();
    }
}

/// A magazine's skeleton, whose slots loom looks at.
struct Stack {
    guard: Guard,
    slots: [UnsafeCell<u32>; 2],
}

impl Stack {
    fn put(&self, value: u32) -> bool {
        let entered = self.guard.enter_to_put();
        if !self.guard.is_below_ceiling(entered.len() as u16) {
            self.guard.back_out();
            return false;
        }
        point();
        // SAFETY: the guard keeps others out; loom looks.
        self.slots[entered.len()].with_mut(|slot| unsafe { *slot = value });
        self.guard.put(entered, 1);
        point();
        true
    }

    fn take(&self) -> Option<u32> {
        let entered = self.guard.enter_to_take();
        if !self.guard.is_above_gate(entered) {
            self.guard.back_out();
            return None;
        }
        point();
        // SAFETY: as above.
        let value = self.slots[entered.len() - 1].with(|slot| unsafe { *slot });
        self.guard.take(entered, 1);
        point();
        Some(value)
    }

    fn put_slowly(&self, value: u32) -> bool {
        if !self.guard.enter_slow() {
            return false;
        }
        point();
        let len = self.guard.puts_and_len().1;
        // SAFETY: as above.
        self.slots[len].with_mut(|slot| unsafe { *slot = value });
        self.guard.put_slow();
        self.guard.leave_slow();
        point();
        true
    }

    fn take_slowly(&self) -> Option<u32> {
        if !self.guard.enter_slow() {
            return None;
        }
        point();
        let top = self.guard.puts_and_len().1.checked_sub(1);
        let value = top.map(|top| {
            self.guard.set_len(top);
            // SAFETY: as above.
            self.slots[top].with(|slot| unsafe { *slot })
        });
        self.guard.leave_slow();
        point();
        value
    }

    /// As a reclaimer does it.
    fn take_all(&self) -> Vec<u32> {
        self.guard.raise(SHUT);
        heavy_barrier();
        self.guard.wait_idle();
        let len = self.guard.puts_and_len().1;
        let slots = self.slots[..len].iter();
        // SAFETY: the owner is out; loom looks.
        let values: Vec<u32> = slots
            .map(|slot| slot.with(|slot| unsafe { *slot }))
            .collect();
        if len > 0 {
            self.guard.raise(TAKEN);
        }
        self.guard.lower(SHUT);
        values
    }
}

/// The owner puts, takes and puts again by these functions, wherever the barrier of the taker meets it.
fn interrupted(put: fn(&Stack, u32) -> bool, take: fn(&Stack) -> Option<u32>) {
    /// Three in each of four steps (before the gate is looked at, behind that, behind the step), and one
    /// behind all.
    const POINTS: usize = 3 * 4 + 1;
    for points in 0..POINTS {
        model(Some(BOUND), move || {
            let _installed = install(Some(points));
            let stack = Arc::new(Stack {
                guard: Guard::default(),
                slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            stack.guard.open(2, 0, 0);
            let taker = {
                let stack = stack.clone();
                thread::spawn(move || stack.take_all())
            };
            let mut units = Vec::new();
            let put = |units: &mut Vec<u32>, value| {
                if !put(&stack, value) {
                    units.push(value);
                }
            };
            put(&mut units, 0);
            put(&mut units, 1);
            units.extend(take(&stack));
            put(&mut units, 2);
            end();
            units.extend(taker.join().unwrap());
            if !stack.guard.is_raised(TAKEN) {
                units.extend(core::iter::from_fn(|| stack.take()));
            }
            assert_each_once(units, 3);
        });
    }
}

/// With a bound, as the next: without one this does not end in minutes.
#[test]
fn model_guard_owner_interrupted_by_taker() {
    interrupted(Stack::put, Stack::take);
}

#[test]
fn model_guard_owner_interrupted_on_its_slow_path() {
    interrupted(Stack::put_slowly, Stack::take_slowly);
}
