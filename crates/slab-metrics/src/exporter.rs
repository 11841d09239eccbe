//! [`Exporter`]: a collector's page.

use crate::collector::Collector;
use crate::error::GlobalRecorderTaken;
use crate::text::{Format, TextPage};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Renders the statistics of a [`Collector`] as a Prometheus page, read at the moment of the call.
///
/// Cloning gives another handle to the same exporter. It touches no global state unless
/// [`install_global_recorder`](Self::install_global_recorder) is called.
#[derive(Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

struct Shared {
    collector: Collector,
    started: Instant,
    page: Mutex<TextPage>,
    /// What the program's own `counter!`, `gauge!` and `histogram!` go to, if it wants them here.
    global: OnceLock<PrometheusHandle>,
}

impl Exporter {
    /// An exporter of what is, or will be, registered with `collector`.
    #[must_use]
    pub fn new(collector: Collector) -> Self {
        Self {
            shared: Arc::new(Shared {
                collector,
                started: Instant::now(),
                page: Mutex::default(),
                global: OnceLock::new(),
            }),
        }
    }

    /// The collector, to register more with.
    #[must_use]
    pub fn collector(&self) -> &Collector {
        &self.shared.collector
    }

    /// Reads all statistics and renders them in Prometheus' text format 0.0.4.
    #[must_use]
    pub fn scrape(&self) -> String {
        let mut page = self.own_page(Format::Text);
        if let Some(global) = self.shared.global.get() {
            page.push_str(&global.render());
        }
        page
    }

    /// Reads all statistics and renders them in the OpenMetrics format 1.0.
    #[must_use]
    pub fn scrape_openmetrics(&self) -> String {
        let mut page = self.own_page(Format::OpenMetrics);
        if let Some(global) = self.shared.global.get() {
            crate::openmetrics::append(&mut page, &global.render());
        }
        page.push_str("# EOF\n");
        page
    }

    /// Reads all statistics and renders them as the JSON that the live page shows.
    pub(crate) fn stats_json(&self) -> String {
        let uptime_ms = self.shared.started.elapsed().as_millis();
        crate::json::stats(&self.shared.collector, uptime_ms as u64)
    }

    fn own_page(&self, format: Format) -> String {
        // One page at a time: they share the memory that they are made in. After a panic, the next
        // makes it anew.
        let page = self.shared.page.lock();
        let mut page = page.unwrap_or_else(PoisonError::into_inner);
        page.render(&self.shared.collector, format)
    }

    /// Installs a recorder of `metrics-exporter-prometheus` for the whole program, so that what it counts
    /// by the macros of the `metrics` facade is on the page too, after our own series. Names that begin
    /// with `slab_` are ours. Let those of counters end in `_total`: OpenMetrics, which Prometheus asks
    /// for, has it at the end of each, so that one named otherwise has two names, by format.
    /// [`MetricsServer::serve`](crate::MetricsServer::serve) does its upkeep.
    ///
    /// # Errors
    /// There is a global recorder already.
    pub fn install_global_recorder(&self) -> Result<(), GlobalRecorderTaken> {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|_| GlobalRecorderTaken)?;
        // There is one global recorder, so this is the only call that gets here.
        let _ = self.shared.global.set(handle);
        Ok(())
    }

    /// Moves the samples of the program's histograms into their buckets; without it they would
    /// pile up between scrapes.
    pub(crate) fn upkeep(&self) {
        if let Some(global) = self.shared.global.get() {
            global.run_upkeep();
        }
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter")
            .field("collector", &self.shared.collector)
            .field("global_recorder", &self.shared.global.get().is_some())
            .finish()
    }
}
