//! Regions for the tables; nothing else is there, and no allocator: with one that `alloc` brings, this would not link.

use crate::{MODES, Region};
use core::mem::MaybeUninit;
use slab_core::{ConfigError, Mode, SlabPool, SlabPoolBuilder};

const BYTES: usize = 192 << 10;
static mut BOOKKEEPING: [Region<BYTES>; MODES.len()] =
    [const { Region([MaybeUninit::uninit(); BYTES]) }; MODES.len()];

/// What a pool needed for its tables.
#[derive(Default)]
pub struct Tables(usize);

impl Tables {
    /// With just as much as it says that it needs.
    pub fn build(
        &mut self,
        builder: SlabPoolBuilder,
        lent: &'static mut [MaybeUninit<u8>],
        mode: Mode,
    ) -> SlabPool {
        let turn = MODES.iter().position(|&other| other == mode).unwrap();
        let region = (&raw mut BOOKKEEPING).cast::<Region<BYTES>>();
        // SAFETY: each region is lent once, and nothing else refers to it.
        let bookkeeping = unsafe { &mut (*region.wrapping_add(turn)).0 };
        let refused = builder.clone().build_all_in(lent, &mut []).unwrap_err();
        let ConfigError::BookkeepingTooSmall { needed, .. } = refused.error() else {
            panic!("{}", refused.error());
        };
        self.0 = needed;
        builder
            .build_all_in(refused.into_memory(), &mut bookkeeping[..needed])
            .unwrap()
    }

    /// How many bytes that were.
    pub fn check(&self) -> usize {
        self.0
    }
}
