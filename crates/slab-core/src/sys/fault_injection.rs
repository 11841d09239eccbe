//! Called before each request to the system for memory, so that a test can refuse the n-th. Does
//! nothing outside of this crate's own tests.

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn check() -> Result<(), i32> {
    Ok(())
}

#[cfg(test)]
pub(crate) use test::*;

#[cfg(test)]
mod test {
    use core::cell::Cell;
    #[cfg(not(any(loom, shuttle, miri)))]
    use core::ops::Range;

    std::thread_local! {
        static REQUESTS: Cell<u32> = const { Cell::new(0) };
        static REFUSED_REQUESTS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }

    pub(crate) fn check() -> Result<(), i32> {
        let number = REQUESTS.get();
        REQUESTS.set(number + 1);
        let (from, to) = REFUSED_REQUESTS.get();
        if (from..to).contains(&number) {
            Err(12)
        } else {
            Ok(())
        }
    }

    /// Runs `f` while this thread's requests of these numbers are refused; returns how many
    /// requests there were.
    #[cfg(not(any(loom, shuttle, miri)))]
    pub(crate) fn refuse_requests(numbers: Range<u32>, f: impl FnOnce()) -> u32 {
        REQUESTS.set(0);
        REFUSED_REQUESTS.set((numbers.start, numbers.end));
        f();
        REFUSED_REQUESTS.set((0, 0));
        REQUESTS.get()
    }
}
