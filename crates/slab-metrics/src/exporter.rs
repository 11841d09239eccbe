//! [`Exporter`]: a collector with a Prometheus recorder of its own.

use crate::collector::Collector;
use crate::error::GlobalRecorderTaken;
use crate::sampler::Sampler;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// Renders the statistics of a [`Collector`] as a Prometheus page, read at the moment of the call.
///
/// Cloning gives another handle to the same exporter. It uses a recorder of its own and touches no
/// global state unless [`install_global_recorder`](Self::install_global_recorder) is called.
#[derive(Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

struct Shared {
    collector: Collector,
    started: Instant,
    page: Mutex<Page>,
    /// What the program's own `counter!`, `gauge!` and `histogram!` go to, if it wants them here.
    global: OnceLock<PrometheusHandle>,
}

/// Our series. They live apart from the program's, so that the recorder can be replaced when a
/// source is unregistered: it has no other way to end a series.
struct Page {
    sampler: Sampler<PrometheusRecorder>,
    handle: PrometheusHandle,
}

impl Page {
    fn new(collector: &Collector) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        Self {
            sampler: Sampler::new(collector.clone(), recorder),
            handle,
        }
    }
}

impl Exporter {
    /// An exporter of what is, or will be, registered with `collector`.
    #[must_use]
    pub fn new(collector: Collector) -> Self {
        let page = Mutex::new(Page::new(&collector));
        Self {
            shared: Arc::new(Shared {
                collector,
                started: Instant::now(),
                page,
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
        let mut text = self.render_sampled();
        if let Some(global) = self.shared.global.get() {
            text.push_str(&global.render());
        }
        text
    }

    /// Reads all statistics and renders them in the OpenMetrics format 1.0.
    #[must_use]
    pub fn scrape_openmetrics(&self) -> String {
        crate::openmetrics::from_text(&self.scrape())
    }

    /// Reads all statistics and renders them as the JSON that the live page shows.
    pub(crate) fn stats_json(&self) -> String {
        let uptime_ms = self.shared.started.elapsed().as_millis();
        crate::json::stats(&self.shared.collector, uptime_ms as u64)
    }

    fn render_sampled(&self) -> String {
        // Until it is rendered, so that another scrape's sample does not get into this page: what
        // adds up in a snapshot would not on the page, and a new pool would be there in part.
        let mut page = self
            .shared
            .page
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if page.sampler.sample_and_count_ended() > 0 {
            // Totals are absolute, so that a fresh recorder continues them without a break.
            *page = Page::new(&self.shared.collector);
            page.sampler.sample();
        }
        page.handle.render()
    }

    /// Installs a recorder for the whole program, so that what it counts by the macros of the
    /// `metrics` facade is on the page too, after our own series. Names that begin with `slab_`
    /// are ours. [`MetricsServer::serve`](crate::MetricsServer::serve) does its upkeep.
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
