//! The statistics of pools, sockets and queues on a Prometheus page, read at the moment of the
//! scrape.
//!
//! Nothing here runs between scrapes, and nothing is added to the paths that allocate, receive or
//! free: a scrape reads the statistics that slab-core and slab-net keep anyway.
//!
//! | module | what |
//! |---|---|
//! | `http` | [`MetricsServer`]: the page over HTTP, bounded in every direction |
//! | `exporter` | [`Exporter`]: a collector's page, and the program's own metrics behind it |
//! | `sampler` | [`Sampler`]: a collector's statistics into any recorder of the `metrics` facade |
//! | `global` | [`GlobalRecorder`]: the one that the program has installed |
//! | `collector` | [`Collector`]: what is read at a scrape |
//! | `text` | the page, written straight from the statistics |
//! | `openmetrics` | the program's own metrics in that format |
//! | `json` | the same statistics as `/stats.json` |
//! | `pool`, `net`, `rudp`, `build` | one kind of source each, and its series |
//! | `series`, `names` | from a source to its series; names, types, help texts |
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

mod build;
mod collector;
mod error;
mod exporter;
mod global;
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
mod text;

pub use collector::{Collector, MAX_SOURCES};
pub use error::{GlobalRecorderTaken, RegisterError, SourceKind};
pub use exporter::Exporter;
pub use global::GlobalRecorder;
pub use http::{DEFAULT_ADDRESS, MetricsServer, MetricsServerBuilder};
#[cfg(feature = "net")]
pub use names::RTT_SECONDS_BOUNDS;
pub use names::WAIT_SECONDS_BOUNDS;
pub use sampler::Sampler;
