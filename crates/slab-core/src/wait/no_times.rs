//! In place of `times` where there is no `std`, and so no clock: nobody knows how long a wait
//! took, and nobody can ask.

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WaitTimes(());

#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitStart;

impl WaitStart {
    pub(crate) fn now() -> Self {
        Self
    }

    pub(crate) fn record_in(self, _: &mut WaitTimes) {}
}
