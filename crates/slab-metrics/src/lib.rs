//! The statistics of pools, sockets and queues on a Prometheus page, read at the moment of the
//! scrape.
//!
//! Nothing here runs between scrapes, and nothing is added to the paths that allocate, receive or
//! free: a scrape reads the statistics that slab-core and slab-net keep anyway.
//!
//! | module | what |
//! |---|---|
//! | `http` | [`MetricsServer`]: the page over HTTP, bounded in every direction |
//! | `exporter` | [`Exporter`]: a collector and a Prometheus recorder, rendered as a page |
//! | `sampler` | [`Sampler`]: a collector's statistics into any recorder of the `metrics` facade |
//! | `collector` | [`Collector`]: what is read at a scrape |
//! | `pool`, `net`, `rudp` | one kind of source each, and its series |
//! | `json` | the same statistics as `/stats.json` |
//! | `openmetrics` | the page in that format |
//! | `series`, `names` | from a source to handles in a recorder; names, types, help texts |
//!
//! Every metric, with what to do when it moves, is in the crate's README.
//!
//! ```no_run
//! use slab_core::SlabPool;
//! use slab_metrics::{Collector, Exporter, MetricsServer};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = SlabPool::builder().name("rx").build()?;
//! let collector = Collector::new();
//! collector.register_pool(&pool)?;
//!
//! let server = MetricsServer::builder(Exporter::new(collector)).bind().await?;
//! tokio::spawn(server.serve(std::future::pending()));
//! # Ok(())
//! # }
//! ```

mod collector;
mod error;
mod exporter;
mod http;
mod json;
mod names;
#[cfg(feature = "net")]
mod net;
mod openmetrics;
mod pool;
#[cfg(feature = "net")]
mod rudp;
mod sampler;
mod series;

pub use collector::{Collector, MAX_SOURCES};
pub use error::{GlobalRecorderTaken, RegisterError, SourceKind};
pub use exporter::Exporter;
pub use http::{DEFAULT_ADDRESS, MetricsServer, MetricsServerBuilder};
pub use sampler::Sampler;
