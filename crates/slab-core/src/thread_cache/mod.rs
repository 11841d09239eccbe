//! The magazines of one thread in one pool, and the rack in which they lie.
//!
//! | file | what |
//! |---|---|
//! | `local`, or `no_local` | which magazines the current thread has |
//! | `magazine` | one stack of free chunks |
//! | `guard` | how another thread takes what lies in a magazine |
//! | `registry` | all caches of a pool |

pub(crate) mod guard;
#[cfg(feature = "std")]
pub(crate) mod local;
pub(crate) mod magazine;
#[cfg(not(feature = "std"))]
pub(crate) mod no_local;
pub(crate) mod registry;

#[cfg(not(feature = "std"))]
pub(crate) use no_local as local;

use crate::class::geometry::ClassTable;
use crate::sync::{Shared, Table};
#[cfg(feature = "std")]
use crate::sys::room::Room;
use crate::thread_cache::magazine::Magazine;
use core::ptr::NonNull;

/// Magazines side by side, all zero until they are opened: room for each that a thread can find by its number, or those
/// of one cache.
pub(crate) type Rack = Table<Magazine>;

/// The magazines of one thread in one pool, one a class. The pool's registry and the thread both hold it, so
/// it outlives either.
#[derive(Debug)]
pub(crate) struct ThreadCache {
    first: NonNull<Magazine>,
    count: u8,
    /// The lane of the depot that they use. Here too, so that who asks does not disturb their owner.
    pub(crate) lane: u8,
    /// Where they lie.
    _rack: Shared<Rack>,
}

// SAFETY: magazines are `Sync`, and the cache keeps the rack that has them.
unsafe impl Send for ThreadCache {}
// SAFETY: as above.
unsafe impl Sync for ThreadCache {}

impl ThreadCache {
    /// In a rack of their own. `None` if there is no memory for it.
    #[cfg(feature = "std")]
    pub(crate) fn apart(classes: &ClassTable, lane: u8, gates: u32) -> Option<Self> {
        let rack = Rack::new(&mut Room::system(), classes.count()).ok()?;
        Some(Self::open(Shared::new(rack), 0, classes, lane, gates))
    }

    /// In the current thread's rack, from this place on, which no other cache uses.
    pub(crate) fn open(
        rack: Shared<Rack>,
        first: usize,
        classes: &ClassTable,
        lane: u8,
        gates: u32,
    ) -> Self {
        let count = classes.count();
        assert!(count > 0 && first + count <= rack.len());
        // SAFETY: one of the rack's, as just asserted.
        let first = unsafe { rack.first().add(first) };
        let cache = Self {
            first,
            count: count as u8,
            lane,
            _rack: rack,
        };
        for (class, magazine) in (0..).zip(cache.magazines()) {
            magazine.open(classes.geometry(class).magazine(), lane, gates);
        }
        cache
    }

    #[inline]
    pub(crate) fn magazine(&self, class: u8) -> &Magazine {
        assert!(class < self.count);
        // SAFETY: one of the rack's, which lives as long as this.
        let magazine = unsafe { self.first.add(class.into()) };
        // SAFETY: as above; a rack gives out shared references alone.
        unsafe { magazine.as_ref() }
    }

    /// All of them, by class.
    pub(crate) fn magazines(&self) -> impl Iterator<Item = &Magazine> {
        (0..self.count).map(|class| self.magazine(class))
    }
}
