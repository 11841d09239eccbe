//! What a caller asks for, and where in the program: what the slow paths note down for pools that
//! [look after each chunk](crate::pool::inner::Inner::attends).

#[cfg(feature = "leak-tracking")]
use core::panic::Location;

/// Public functions pass it to the slow paths only, so that the fast ones carry nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// In bytes, before it is rounded up to a size class.
    pub(crate) len: usize,
    /// The caller of the public function.
    #[cfg(feature = "leak-tracking")]
    pub(crate) call_site: &'static Location<'static>,
}

impl Request {
    #[inline(always)]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    pub(crate) fn new(len: usize) -> Self {
        Self {
            len,
            #[cfg(feature = "leak-tracking")]
            call_site: Location::caller(),
        }
    }
}
