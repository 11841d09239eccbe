//! How a pool is built: its tables one after the other, then the pool itself in its place.

use crate::arena::Arena;
use crate::class::CHUNK_ALIGN;
use crate::class::geometry::ClassTable;
#[cfg(feature = "alloc")]
use crate::class::geometry::slab_bytes_for;
use crate::depot::Depot;
use crate::diagnostics::hardening::Hardening;
#[cfg(feature = "alloc")]
use crate::diagnostics::recorder::SizeRecorder;
#[cfg(feature = "leak-tracking")]
use crate::diagnostics::track::Tracker;
use crate::error::ConfigError;
#[cfg(feature = "alloc")]
use crate::handle::oversize::Oversize;
use crate::pool::builder::{Backing, Mode, SlabPoolBuilder};
use crate::pool::episode::Episode;
use crate::pool::fork;
use crate::pool::handle::{Handle, Home, SharedHandle};
use crate::pool::inner::{Inner, Uncached};
use crate::reclaim::SlabLayer;
use crate::singles::Singles;
use crate::slab::Slabs;
use crate::sync::handoff::HandoffMutex;
use crate::sync::{AtomicBool, AtomicI64, AtomicU64, MODELLED, Mutex, Table};
use crate::sys::place_for;
use crate::sys::room::{Piece, Room};
use core::alloc::Layout;

/// The most threads that have magazines in one pool at the same time; further ones work without.
const MAX_THREAD_CACHES: usize = if MODELLED { 4 } else { 4096 };

fn next_id() -> u64 {
    // Plain std: models have no global state.
    static NEXT: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, core::sync::atomic::Ordering::Relaxed)
}

/// Writes all fields of a struct where it is going to lie. One after the other: as a value it would be on the stack
/// before, several times in a debug build.
macro_rules! write_fields {
    ($at:expr, $of:ident { $($(#[$if:meta])? $field:ident: $value:expr),* $(,)? }) => {{
        let at: *mut $of = $at;
        $(
            $(#[$if])?
            {
                let value = $value;
                // SAFETY: `at` is a place for the struct that nobody else knows, of the room or of the heap.
                unsafe { (&raw mut (*at).$field).write(value) };
            }
        )*
        // Each field, once.
        let _ = |all: $of| { let $of { $($(#[$if])? $field: _),* } = all; };
    }};
}

impl Inner {
    /// Builds a pool; returns the one handle whose drop closes it.
    #[cfg(feature = "alloc")]
    pub(crate) fn open(options: &SlabPoolBuilder) -> Result<SharedHandle, ConfigError> {
        let slab_bytes = slab_bytes_for(options.size_classes.largest());
        let mut room = Room::system();
        let arena = Arena::reserve(&mut room, options.max_memory, slab_bytes)?;
        let arena = arena
            .with_guard(options.guard_bytes(slab_bytes))
            .with_lock(options.backing == Backing::Locked);
        Self::open_in(&mut Some(arena), &mut room, options)
    }

    /// As [`open`](Self::open), in the arena of this slot, from which it is taken only where nothing can fail any more,
    /// and with its tables in this room: after an error nothing lies there.
    pub(crate) fn open_in(
        slot: &mut Option<Arena>,
        room: &mut Room,
        options: &SlabPoolBuilder,
    ) -> Result<SharedHandle, ConfigError> {
        const FULL: &str = "an arena is in the slot";
        let arena = slot.as_ref().expect(FULL);
        if options.huge_pages {
            arena.advise_huge_pages();
        }
        let mode = options.mode.in_effect();
        let mut classes = ClassTable::new(options.size_classes.clone(), options.max_memory);
        classes.keep_out(arena.slab_bytes() - arena.usable_bytes());
        classes.take_numbers(mode == Mode::ThreadCached)?;
        if mode != Mode::ThreadCached {
            classes.without_magazines();
        }
        let reserve_error = |errno| ConfigError::Reserve {
            bytes: arena.bytes(),
            errno,
        };
        let units = arena.bytes() / CHUNK_ALIGN;
        let counts_from = units.next_power_of_two();
        let counts = Table::new(room, (counts_from + units) >> classes.least_count_shift());
        let counts = counts.map_err(reserve_error)?;
        let max_thread_caches = if mode == Mode::ThreadCached {
            MAX_THREAD_CACHES
        } else {
            0
        };
        // One more mover a class: an open batch that becomes whole is moved under its lock.
        let movers = max_thread_caches + classes.count();
        let depot = Depot::new(room, &classes, arena.slabs(), movers).map_err(reserve_error)?;
        let slabs = Slabs::new(room, arena, classes.count(), options.growth);
        let mut slabs = slabs.map_err(reserve_error)?;
        let share = arena.slabs() / classes.count();
        if mode == Mode::Ring && share == 0 {
            return Err(ConfigError::CapBelowClasses {
                slabs: arena.slabs(),
                classes: classes.count(),
            });
        }
        let singles = Singles::new(room, mode, classes.count() as u8, |class| {
            share * classes.geometry(class).chunks_per_slab as usize
        })
        .map_err(reserve_error)?;
        let hardening = options
            .hardened
            .then(|| Hardening::new(room, arena.bytes(), options.zero_on_free))
            .transpose()
            .map_err(reserve_error)?;
        #[cfg(feature = "alloc")]
        let recorder = options
            .record_sizes
            .then(|| SizeRecorder::new(room))
            .transpose()
            .map_err(reserve_error)?;
        #[cfg(feature = "leak-tracking")]
        let tracker = options
            .track_leaks
            .map(|one_in| Tracker::new(room, arena.bytes(), one_in))
            .transpose()
            .map_err(reserve_error)?;
        let place = room.place(Layout::new::<Self>());
        // Tables that found no room are empty: from here on they are looked into.
        room.check()?;
        if mode == Mode::Ring {
            slabs.fix_shares(classes.count());
        }
        if options.backing != Backing::OnDemand {
            slabs.back_all(arena).map_err(|errno| ConfigError::Back {
                bytes: arena.bytes(),
                errno,
            })?;
        }
        // Where the heap has no room for it that is an error, as for the tables: the memory that was lent comes back.
        let inner = match place {
            Piece::Lent(at) => at.cast::<Self>(),
            Piece::System | Piece::None => place_for::<Self>().map_err(reserve_error)?,
        };
        write_fields!(
            inner.as_ptr(),
            Inner {
                id: next_id(),
                in_heap: !matches!(place, Piece::Lent(_)),
                base: arena.base(),
                counts: counts,
                depot: depot,
                classes: classes,
                singles: singles,
                uncached: core::array::from_fn(|_| Uncached::default()),
                too_large: AtomicU64::new(0),
                commit_refusals: Episode::default(),
                slabs: HandoffMutex::new(SlabLayer::new(slabs)),
                arena: slot.take().expect(FULL),
                gates: Mutex::new(()),
                closed: AtomicBool::new(false),
                under_pressure: AtomicBool::new(false),
                live: AtomicI64::new(0),
                home: Home::default(),
                max_thread_caches: max_thread_caches,
                no_cache_left: core::sync::atomic::AtomicBool::new(false),
                zero_on_alloc: options.zero_on_alloc && !options.zero_on_free,
                zero_on_free: options.zero_on_free,
                hardening: hardening,
                #[cfg(feature = "alloc")]
                recorder: recorder,
                #[cfg(feature = "leak-tracking")]
                tracker: tracker,
                #[cfg(feature = "alloc")]
                oversize: Oversize::new(options.max_oversize_memory, options.zero_on_free),
                name: options.name.clone(),
            }
        );
        // SAFETY: new, and all of its fields are written.
        let handle = unsafe { Handle::first(inner) };
        // SAFETY: as above.
        unsafe { inner.as_ref() }.enter_directory(inner, counts_from);
        fork::watch(handle.as_ptr());
        Ok(handle)
    }
}
