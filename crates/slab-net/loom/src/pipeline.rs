//! The queue, its event counts and its lanes; without what receives and sends.

#[path = "../../src/pipeline/event_count.rs"]
mod event_count;
#[path = "../../src/pipeline/flow.rs"]
mod flow;
#[path = "../../src/pipeline/priority_lanes.rs"]
mod priority_lanes;
#[path = "../../src/pipeline/queue/mod.rs"]
mod queue;
#[path = "../../src/pipeline/stats.rs"]
mod stats;
#[path = "../../src/pipeline/unsent.rs"]
mod unsent;

#[cfg(test)]
#[path = "model_queue.rs"]
mod model;
