//! Work that calls foreign code at each step, and is finished even if that panics.

/// Calls `step` until it returns `false`. If a call panics, calls it on before the panic goes on: in a waker, or in
/// what the drop of a packet calls, foreign code may do so, and the other steps are owed to others.
pub(crate) fn finish(step: impl FnMut() -> bool) {
    struct Rest<F: FnMut() -> bool>(F);

    impl<F: FnMut() -> bool> Rest<F> {
        fn run(&mut self) {
            while (self.0)() {}
        }
    }

    impl<F: FnMut() -> bool> Drop for Rest<F> {
        fn drop(&mut self) {
            self.run();
        }
    }

    Rest(step).run();
}
