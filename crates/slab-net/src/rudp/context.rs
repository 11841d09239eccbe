//! [`Context`]: what all sessions of an endpoint have in common.

use super::budget::MemoryBudget;
use super::config::SessionConfig;
use super::measures::Measures;
use crate::packet::PacketPool;

/// What all sessions of an endpoint have in common, so that each has one pointer to it.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) config: SessionConfig,
    pub(super) pool: PacketPool,
    pub(super) budget: MemoryBudget,
    pub(super) measures: Measures,
}

impl Context {
    pub(super) fn new(config: SessionConfig, pool: PacketPool, budget: MemoryBudget) -> Self {
        Self {
            config,
            pool,
            budget,
            measures: Measures::default(),
        }
    }
}
