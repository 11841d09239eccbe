//! The asymmetric guard: lets another thread take what lies in a thread's magazine, at the price
//! of two plain stores and a plain load for the owner.
//!
//! It is Dekker's mutual exclusion with the fences moved to one side (as in Dice, Huang and Yang,
//! "Asymmetric Dekker synchronization", 2001; the kernel's `membarrier(2)` names the same use).
//! The owner raises `busy`, then looks at `gate`; whoever takes raises `gate`, then looks at
//! `busy`. At least one of them must see the other. That needs a store-load barrier on both sides;
//! the owner's is only a compiler fence, because the taker's `membarrier` system call makes every
//! running thread of the process execute a real one.
//!
//! Each magazine has its own guard, in the cache line that its owner writes anyway, and a taker
//! disturbs only the classes that it takes from.
//!
//! Where the system call is missing, the gate of every guard carries [`FENCED`] for ever: the
//! owner never passes [`enter`](Guard::enter) and goes through
//! [`enter_slow`](Guard::enter_slow), which has a real fence. Slower, never wrong.

use crate::sync::{AtomicU32, Backoff, Ordering, barrier_is_asymmetric, fence, light_barrier};

/// Somebody takes the contents of the magazine; temporary.
pub(crate) const TAKEN: u32 = 1;
/// There is no asymmetric barrier: the owner has to fence.
const FENCED: u32 = 2;
/// The pool's last handle is gone; for ever.
pub(crate) const CLOSED: u32 = 4;
/// Somebody waits for memory (see `wait`): what is freed is not to be hoarded.
pub(crate) const PRESSURE: u32 = 8;
/// The pool has something to do with each chunk that is allocated or freed; for ever.
pub(crate) const SCRUB: u32 = 16;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Guard {
    busy: AtomicU32,
    gate: AtomicU32,
}

impl Guard {
    pub(crate) fn new() -> Self {
        let gate = if barrier_is_asymmetric() { 0 } else { FENCED };
        Self {
            busy: AtomicU32::new(0),
            gate: AtomicU32::new(gate),
        }
    }

    /// The owner enters, unless a gate is up. After `true` comes exactly one
    /// [`leave`](Self::leave), and nothing in between may wait for a taker.
    #[inline(always)]
    pub(crate) fn enter(&self) -> bool {
        self.busy.store(1, Ordering::Relaxed);
        light_barrier();
        // Acquire: the taker's changes to the magazine came before it lowered the gate.
        if self.gate.load(Ordering::Acquire) == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// As [`enter`](Self::enter), with a real fence: right on systems without `membarrier` too.
    pub(crate) fn enter_slow(&self) -> bool {
        self.busy.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.gate.load(Ordering::Acquire) & !(FENCED | SCRUB) == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// The owner leaves. Release: a taker that sees it sees all that the owner did inside.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        self.busy.store(0, Ordering::Release);
    }

    /// First step of a taker: raise the gate. Then one `heavy_barrier` for all guards raised,
    /// then [`wait_idle`](Self::wait_idle) on each.
    pub(crate) fn raise(&self, reason: u32) {
        self.gate.fetch_or(reason, Ordering::Relaxed);
    }

    /// Waits until the owner is outside; it cannot come back in while the gate is up.
    pub(crate) fn wait_idle(&self) {
        let mut backoff = Backoff::default();
        while self.busy.load(Ordering::Acquire) != 0 {
            backoff.snooze();
        }
    }

    /// Lets the owner in again. Release: it sees what the taker did.
    pub(crate) fn lower(&self, reason: u32) {
        self.gate.fetch_and(!reason, Ordering::Release);
    }
}
