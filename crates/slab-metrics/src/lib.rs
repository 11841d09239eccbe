//! Exports the statistics of pools, sockets, queues and RUDP endpoints to Prometheus, read at each
//! scrape.
//!
//! A scrape reads the statistics that slab-core and slab-net keep anyway. So nothing runs between
//! scrapes, and nothing is added to the paths that allocate, receive or free.
//!
//! | for | see |
//! |---|---|
//! | what is to be read | [`Collector`] |
//! | the page over HTTP, with limits on everything | [`MetricsServer`] |
//! | the page in a server of your own, with the program's own metrics | [`Exporter`] |
//! | the statistics in a recorder of the `metrics` facade | [`Sampler`], [`GlobalRecorder`] |
//!
//! The crate's README lists every metric, with what to do when it moves.
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
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `net` | yes | packet pools, sockets, queues and RUDP endpoints as sources |
//! | `fec` | no | what error correction of RUDP did; with `net` |

#![cfg_attr(docsrs, feature(doc_cfg))]

// Files:
// | `http`, `exporter`, `sampler`, `global`, `collector` | the types of these names |
// | `pool`, `net`, `rudp`, `build` | one kind of source each, and its series |
// | `series`, `names` | from a source to its series; names, types, help texts |
// | `text` | the page, written straight from the statistics |
// | `openmetrics` | converts the program's own metrics to OpenMetrics |
// | `stats_json`, `json` | the same statistics as `/stats.json`; how JSON is written |

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
mod stats_json;
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

/// The README's example, compiled with the tests.
#[cfg(all(doctest, feature = "net"))]
#[doc = include_str!("../README.md")]
struct Readme;
