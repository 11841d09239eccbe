//! The atomics of those parts that loom has models of (`loom/`), where its own stand in for them.

pub(crate) use core::sync::atomic::*;
