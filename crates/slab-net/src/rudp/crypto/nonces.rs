//! [`Nonces`]: nonces that are never drawn twice with one key, in whatever process, and that are recognised by
//! whoever drew them.

use super::NONCE_BYTES;
use super::process::this_process;
use crate::atomics::{AtomicU32, AtomicU64, Ordering};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};

#[cfg(all(test, not(loom)))]
thread_local! {
    /// Stands for a system that has no random numbers.
    pub(super) static NO_RANDOM: core::cell::Cell<bool> = const { core::cell::Cell::new(false) };
}

/// A run of 96-bit numbers that starts at random. Has no lock: the child of a fork would find it held for ever by a
/// thread that it does not have.
#[derive(Default)]
pub(super) struct Nonces {
    /// The [process](this_process) that the run belongs to; 0 before there is one.
    process: AtomicU64,
    /// The first number of the run. Its halves may come from two threads that began it at once: each half is
    /// random, and no other process counts on from there.
    high: AtomicU32,
    low: AtomicU64,
    /// Never reset, so that no nonce repeats while the first number changes.
    drawn: AtomicU64,
}

impl Nonces {
    /// Begins a run if this process has none: if the present run belongs to the parent, or nothing was drawn yet.
    /// Where only its id tells a process, asks the system, and so is called once for many datagrams.
    pub(super) fn begin_own_run(&self) -> Result<(), Unspecified> {
        let process = this_process()?;
        if self.process.load(Ordering::Acquire) == process {
            return Ok(());
        }
        let mut first = [0; NONCE_BYTES];
        #[cfg(all(test, not(loom)))]
        if NO_RANDOM.get() {
            return Err(Unspecified);
        }
        SystemRandom::new().fill(&mut first)?;
        let (low, high) = first.split_at(size_of::<u64>());
        let low = low.try_into().expect("8 of 12 bytes");
        let high = high.try_into().expect("4 of 12 bytes");
        self.low.store(u64::from_le_bytes(low), Ordering::Relaxed);
        self.high.store(u32::from_le_bytes(high), Ordering::Relaxed);
        self.process.store(process, Ordering::Release);
        Ok(())
    }

    /// Draws the next number of the run that was begun.
    pub(super) fn draw(&self) -> [u8; NONCE_BYTES] {
        let ahead = self.drawn.fetch_add(1, Ordering::Relaxed);
        to_bytes(self.first().wrapping_add(ahead.into()))
    }

    /// Is it a number of the run so far?
    pub(super) fn was_drawn(&self, nonce: &[u8; NONCE_BYTES]) -> bool {
        let mut bytes = [0; size_of::<u128>()];
        bytes[..NONCE_BYTES].copy_from_slice(nonce);
        let ago = u128::from_le_bytes(bytes).wrapping_sub(self.first());
        // Like a nonce, the difference has the lower 96 bits only.
        let ago = ago & (u128::MAX >> (u128::BITS as usize - 8 * NONCE_BYTES));
        ago < self.drawn.load(Ordering::Relaxed).into()
    }

    fn first(&self) -> u128 {
        let high = self.high.load(Ordering::Relaxed);
        u128::from(high) << u64::BITS | u128::from(self.low.load(Ordering::Relaxed))
    }
}

/// The lower 96 bits of a number.
fn to_bytes(number: u128) -> [u8; NONCE_BYTES] {
    let mut bytes = [0; NONCE_BYTES];
    bytes.copy_from_slice(&number.to_le_bytes()[..NONCE_BYTES]);
    bytes
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn drawn_nonces_are_recognised_also_across_the_wrap() {
        let nonces = Nonces::default();
        nonces.begin_own_run().unwrap();
        nonces.high.store(u32::MAX, Ordering::Relaxed);
        nonces.low.store(u64::MAX - 1, Ordering::Relaxed);
        let next = |n: u128| to_bytes((u128::MAX - 1).wrapping_add(n));
        for n in 0..5 {
            assert!(!nonces.was_drawn(&next(n)));
            assert_eq!(nonces.draw(), next(n));
            assert!((0..=n).all(|n| nonces.was_drawn(&next(n))));
        }
        assert!(!nonces.was_drawn(&next(5)) && !nonces.was_drawn(&next(u128::MAX)));
        // As in the child of a fork: what the parent drew is not of its run.
        nonces.process.store(0, Ordering::Relaxed);
        nonces.begin_own_run().unwrap();
        let after = u128::from(nonces.drawn.load(Ordering::Relaxed));
        assert!(!nonces.was_drawn(&to_bytes(nonces.first() + after)));
        assert!(!nonces.was_drawn(&next(0)));
    }

    /// Two that began near each other would soon draw the same.
    #[test]
    fn all_of_the_first_nonce_is_random() {
        let [one, other] = [(); 2].map(|()| {
            let nonces = Nonces::default();
            nonces.begin_own_run().unwrap();
            nonces.first()
        });
        for part in 0..3 {
            let word = |nonce: u128| (nonce >> (32 * part)) as u32;
            assert_ne!(word(one), word(other));
        }
    }
}
