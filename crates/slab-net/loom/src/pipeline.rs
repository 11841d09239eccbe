//! The queue, its gates and its lanes; without what receives and sends.

#[path = "../../src/pipeline/flow.rs"]
mod flow;
#[path = "../../src/pipeline/gate.rs"]
mod gate;
#[path = "../../src/pipeline/lanes.rs"]
mod lanes;
#[path = "../../src/pipeline/queue/mod.rs"]
mod queue;
#[path = "../../src/pipeline/stats.rs"]
mod stats;
#[path = "../../src/pipeline/unsent.rs"]
mod unsent;

#[cfg(test)]
#[path = "model_queue.rs"]
mod model;
