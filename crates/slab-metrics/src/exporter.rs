//! [`Exporter`]: renders a collector's page.

use crate::collector::Collector;
use crate::error::GlobalRecorderTaken;
use crate::text::{Format, TextPage};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;
use std::{fmt, mem};

/// Renders the statistics of a [`Collector`], read at the moment of the call, as a Prometheus page.
///
/// Cloning returns another handle to the same exporter. An exporter touches no global state unless
/// [`install_global_recorder`](Self::install_global_recorder) is called.
///
/// A program that already has an HTTP server serves the page on a route of its own, without a
/// [`MetricsServer`](crate::MetricsServer):
///
/// ```
/// use hyper::{Response, header::CONTENT_TYPE};
/// use slab_metrics::{Collector, Exporter};
///
/// fn metrics(exporter: &Exporter) -> Response<String> {
///     let mut response = Response::new(exporter.scrape());
///     let content_type = Exporter::CONTENT_TYPE.parse().expect("a header's value");
///     response.headers_mut().insert(CONTENT_TYPE, content_type);
///     response
/// }
/// // With axum, where it is the state of the router:
/// //     async fn metrics(State(exporter): State<Exporter>) -> impl IntoResponse {
/// //         ([(CONTENT_TYPE, Exporter::CONTENT_TYPE)], exporter.scrape())
/// //     }
///
/// let response = metrics(&Exporter::new(Collector::new()));
/// assert!(response.body().contains("slab_build_info"));
/// ```
#[derive(Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

struct Shared {
    collector: Collector,
    started: Instant,
    /// What the latest page was rendered in.
    page: Mutex<TextPage>,
    /// The recorder of the program's own `counter!`, `gauge!` and `histogram!`, if one was installed here.
    global: OnceLock<PrometheusHandle>,
}

impl Exporter {
    /// The media type of [`scrape`](Self::scrape), for the header `Content-Type`.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";
    /// The media type of [`scrape_openmetrics`](Self::scrape_openmetrics).
    pub const OPENMETRICS_CONTENT_TYPE: &'static str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Creates an exporter of everything that is, or will be, registered with `collector`.
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

    /// Returns the collector, to register more sources with.
    ///
    /// ```
    /// # use slab_core::Slab;
    /// # use slab_metrics::{Collector, Exporter};
    /// # let exporter = Exporter::new(Collector::new());
    /// // Where the exporter is at hand, such as in the state of a router:
    /// let sessions = Slab::<[u64; 8]>::builder().name("sessions").build()?;
    /// exporter.collector().register_pool(sessions.pool())?;
    /// assert!(exporter.scrape().contains("{pool=\"sessions\"}"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// ```
    /// # use slab_metrics::{Collector, Exporter};
    /// # let exporter = Exporter::new(Collector::new());
    /// # let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    /// // `accept` is a header of the request. That of Prometheus names OpenMetrics first.
    /// let (content_type, page) = match accept.contains("application/openmetrics-text") {
    ///     true => (Exporter::OPENMETRICS_CONTENT_TYPE, exporter.scrape_openmetrics()),
    ///     false => (Exporter::CONTENT_TYPE, exporter.scrape()),
    /// };
    /// # assert!(content_type.starts_with("application/openmetrics-text"));
    /// assert!(page.ends_with("# EOF\n"));
    /// ```
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
        crate::stats_json::render(&self.shared.collector, uptime_ms as u64)
    }

    fn own_page(&self, format: Format) -> String {
        // Not locked while it is rendered: with the page's handle to it a pool may end, which calls a subscriber of
        // `tracing`, and that may want a page. One that is rendered meanwhile takes memory of its own.
        let mut page = mem::take(&mut *self.lock_page());
        let text = page.render(&self.shared.collector, format);
        *self.lock_page() = page;
        text
    }

    fn lock_page(&self) -> MutexGuard<'_, TextPage> {
        let page = self.shared.page.lock();
        page.unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a recorder of `metrics-exporter-prometheus` for the whole program: what the program counts
    /// by the macros of the `metrics` facade then follows our own series on the page.
    ///
    /// Names that begin with `slab_` are reserved for ours. Names of counters should end in `_total`: the
    /// OpenMetrics format, which Prometheus asks for, appends it, so a counter without it has a different
    /// name in each format. Histograms are shown as summaries, which have quantiles and no buckets: a program that
    /// wants buckets gives them to a recorder of its own, and feeds it by a [`Sampler`](crate::Sampler).
    /// [`MetricsServer::serve`](crate::MetricsServer::serve) runs the recorder's [upkeep](Self::upkeep).
    ///
    /// ```
    /// # use slab_metrics::{Collector, Exporter};
    /// let exporter = Exporter::new(Collector::new());
    /// exporter.install_global_recorder()?;
    /// metrics::counter!("logins_total", "by" => "password").increment(1);
    /// metrics::histogram!("login_seconds").record(0.5);
    /// let page = exporter.scrape();
    /// assert!(page.contains("logins_total{by=\"password\"} 1\n"));
    /// assert!(page.contains("login_seconds{quantile=\"1\"} 0.5\n"));
    /// # Ok::<(), slab_metrics::GlobalRecorderTaken>(())
    /// ```
    ///
    /// # Errors
    /// A global recorder is already installed.
    pub fn install_global_recorder(&self) -> Result<(), GlobalRecorderTaken> {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::set_global_recorder(recorder).map_err(|_| GlobalRecorderTaken)?;
        // Only one call can install the global recorder, so only one gets here.
        let _ = self.shared.global.set(handle);
        Ok(())
    }

    /// Moves the samples of the program's histograms into their summaries; otherwise they would pile up
    /// between scrapes. A program that has [installed](Self::install_global_recorder) the recorder and
    /// serves the page itself calls this every few seconds. Does nothing if this exporter has installed
    /// none.
    ///
    /// ```
    /// # use slab_metrics::{Collector, Exporter};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), slab_metrics::GlobalRecorderTaken> {
    /// # let exporter = Exporter::new(Collector::new());
    /// exporter.install_global_recorder()?;
    /// let recorder = exporter.clone();
    /// tokio::spawn(async move {
    ///     let mut ticks = tokio::time::interval(Duration::from_secs(5));
    ///     loop {
    ///         ticks.tick().await;
    ///         recorder.upkeep();
    ///     }
    /// });
    /// # metrics::histogram!("login_seconds").record(0.5);
    /// # tokio::task::yield_now().await;
    /// # assert!(exporter.scrape().contains("login_seconds_count 1"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn upkeep(&self) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SourceKind;
    use crate::json::Json;
    use crate::series::{Describe, Source};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    /// A source whose reading and whose end want a page, as may the subscriber of `tracing` to which a pool that ends
    /// reports its leaks; and which a page reads for the last time.
    struct Ends {
        exporter: Exporter,
        was_read: AtomicBool,
    }

    impl Source for Ends {
        fn describe(&self, _: &mut Describe<'_>) {}
        fn read(&self, _: &mut Vec<u64>) {
            if !self.was_read.swap(true, Ordering::Relaxed) {
                assert!(self.exporter.scrape().contains("slab_build_info"));
                let collector = self.exporter.collector();
                assert!(collector.unregister(SourceKind::Pool, "ends"));
            }
        }
        fn write_json(&self, _: &mut Json) {
            self.read(&mut Vec::new());
        }
    }

    impl Drop for Ends {
        fn drop(&mut self) {
            assert!(self.exporter.scrape().contains("slab_build_info"));
        }
    }

    #[test]
    fn what_a_page_reads_may_end_with_that_and_want_a_page() {
        for render in [
            Exporter::scrape,
            Exporter::scrape_openmetrics,
            Exporter::stats_json,
        ] {
            let exporter = Exporter::new(Collector::new());
            let source = Ends {
                exporter: exporter.clone(),
                was_read: AtomicBool::new(false),
            };
            let source = Arc::new(source);
            exporter
                .collector()
                .register(SourceKind::Pool, "ends", source)
                .unwrap();
            let (done, is_done) = mpsc::channel();
            thread::spawn(move || done.send(render(&exporter).len()));
            let limit = Duration::from_secs(60);
            assert!(is_done.recv_timeout(limit).unwrap() > 50);
        }
    }

    #[test]
    fn the_json_has_the_uptime_in_milliseconds() {
        let start = Instant::now();
        let exporter = Exporter::new(Collector::new());
        std::thread::sleep(Duration::from_millis(20));
        let json: serde_json::Value = serde_json::from_str(&exporter.stats_json()).unwrap();
        let uptime = u128::from(json["uptime_ms"].as_u64().unwrap());
        assert!((20..=start.elapsed().as_millis()).contains(&uptime));
    }
}
