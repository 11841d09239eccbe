//! Where in the program a chunk was asked for. Without the feature `leak-tracking` a [`CallSite`] is
//! empty.

#[cfg(feature = "leak-tracking")]
use core::panic::Location;

/// The caller of the public function that asked for a chunk. Public functions pass it to the slow
/// paths only, so that the fast ones carry nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallSite {
    #[cfg(feature = "leak-tracking")]
    pub(crate) location: &'static Location<'static>,
}

impl CallSite {
    #[inline(always)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub(crate) fn here() -> Self {
        Self {
            #[cfg(feature = "leak-tracking")]
            location: Location::caller(),
        }
    }
}
