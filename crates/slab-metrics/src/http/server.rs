//! [`MetricsServer`]: accepts connections, enforces their limits, ends them.

use super::respond::respond;
use super::stats::{End, ServerStats};
use crate::error::SourceKind;
use crate::exporter::Exporter;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Where a server listens unless told otherwise: port 9465 of the loopback interface.
pub const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9465));

/// The most bytes of a request's header: the smallest limit that hyper accepts.
const HEADER_BYTES: usize = 8 << 10;
/// How long the answer under way may take once a connection's lifetime is over.
const FINAL_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long open connections may take to finish when the server shuts down.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
const UPKEEP_PERIOD: Duration = Duration::from_secs(5);
/// The pause after a failed accept: such failures (no file descriptor left) last a while.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Serves an [`Exporter`]'s page over HTTP/1.
///
/// | path | what |
/// |---|---|
/// | `/metrics` | for Prometheus: its text format, or OpenMetrics if the client accepts it |
/// | `/` | a live page for people, which requests `/stats.json` each second and nothing else |
/// | `/stats.json` | the statistics that the live page shows |
/// | `/healthz` | `ok` |
///
/// Pages are compressed if the client accepts gzip. A client that closes its sending side after the
/// request still gets the whole answer. A connection lives for one minute, plus up to five seconds for an
/// answer that is then under way; one without a (further) request is closed after ten seconds. Other paths
/// get 404, methods other than GET and HEAD 405.
///
/// There is no authentication and no TLS: listen on loopback (the default) or behind something that has
/// both.
///
/// ```
/// use slab_metrics::{Collector, Exporter, MetricsServer};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
///
/// let server = MetricsServer::builder(Exporter::new(Collector::new()))
///     .address(([127, 0, 0, 1], 0).into())
///     .bind()
///     .await?;
/// println!("http://{}/metrics", server.local_addr());
///
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let serving = tokio::spawn(server.serve(async { drop(stopped.await) }));
/// drop(stop);
/// serving.await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MetricsServer {
    listener: TcpListener,
    local_addr: SocketAddr,
    exporter: Exporter,
    limits: Limits,
    pub(super) stats: Arc<ServerStats>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) connections: usize,
    pub(super) header_read_timeout: Duration,
    pub(super) connection_lifetime: Duration,
    pub(super) final_response_timeout: Duration,
}

/// The configuration of a [`MetricsServer`].
#[derive(Debug, Clone)]
#[must_use]
pub struct MetricsServerBuilder {
    exporter: Exporter,
    address: SocketAddr,
    pub(super) limits: Limits,
}

impl MetricsServerBuilder {
    /// Sets the address to listen on; port 0 takes any free port. Default: [`DEFAULT_ADDRESS`].
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Sets the most concurrent connections; one more is answered with 503, closed and counted. 0 is
    /// taken as 1. Default: 16.
    ///
    /// ```
    /// # use slab_metrics::{Collector, Exporter, MetricsServer};
    /// # use tokio::{io::AsyncReadExt, net::TcpStream};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let exporter = Exporter::new(Collector::new());
    /// let server = MetricsServer::builder(exporter).address(([127, 0, 0, 1], 0).into()).max_connections(1);
    /// let server = server.bind().await?;
    /// let address = server.local_addr();
    /// tokio::spawn(server.serve(std::future::pending()));
    /// let first = TcpStream::connect(address).await?;
    /// let (mut second, mut answer) = (TcpStream::connect(address).await?, String::new());
    /// second.read_to_string(&mut answer).await?;
    /// assert!(answer.starts_with("HTTP/1.1 503"));
    /// # drop(first);
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.limits.connections = connections.max(1);
        self
    }

    /// Starts to listen. Connections wait in the kernel's backlog until
    /// [`serve`](MetricsServer::serve) runs.
    ///
    /// # Errors
    /// One of the system's kind, such as [`io::ErrorKind::AddrInUse`] if something listens there already;
    /// [`io::ErrorKind::AlreadyExists`] if the exporter's collector already has a server, whose series
    /// would be the same; [`io::ErrorKind::QuotaExceeded`] if the collector is full.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub async fn bind(self) -> io::Result<MetricsServer> {
        let listener = TcpListener::bind(self.address).await.map_err(|error| {
            let address = self.address;
            // A program has other sockets, too.
            io::Error::new(
                error.kind(),
                format!("cannot serve metrics at {address}: {error}"),
            )
        })?;
        let local_addr = listener.local_addr()?;
        let stats = Arc::<ServerStats>::default();
        self.exporter
            .collector()
            .register(SourceKind::Server, "", stats.clone())?;
        Ok(MetricsServer {
            listener,
            local_addr,
            exporter: self.exporter,
            limits: self.limits,
            stats,
        })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.exporter.collector().remove(SourceKind::Server, "");
    }
}

impl MetricsServer {
    /// Starts the configuration of a server for this exporter's page.
    pub fn builder(exporter: Exporter) -> MetricsServerBuilder {
        MetricsServerBuilder {
            exporter,
            address: DEFAULT_ADDRESS,
            limits: Limits {
                connections: 16,
                header_read_timeout: Duration::from_secs(10),
                connection_lifetime: Duration::from_secs(60),
                final_response_timeout: FINAL_RESPONSE_TIMEOUT,
            },
        }
    }

    /// Returns the address that the server listens on, with the port that the system chose if 0 was given.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` completes, then gives the answers under way one second to finish.
    ///
    /// Dropping the future ends all connections at once and leaves no task behind.
    ///
    /// # Panics
    /// Outside of a tokio runtime with time enabled.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut upkeep = interval(UPKEEP_PERIOD);
        upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (stop, stopped) = watch::channel(());
        let mut connections = JoinSet::new();
        // Did the last accept fail? Said once, however often it is tried.
        let mut fails = false;
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                _ = upkeep.tick() => self.exporter.upkeep(),
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        if mem::take(&mut fails) {
                            tracing::info!("metrics server: connections are accepted again");
                        }
                        // Connections that have ended but are not joined yet do not count.
                        if self.join_ended(&mut connections) < self.limits.connections {
                            connections.spawn(self.connection(stream, stopped.clone()));
                        } else {
                            self.stats.refused();
                            refuse(stream);
                        }
                    }
                    Err(error) => {
                        self.stats.accept_failed();
                        if !mem::replace(&mut fails, true) {
                            tracing::warn!(%error, "metrics server: accept failed");
                        }
                        sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        }
        drop(stop);
        let drained = async { while connections.join_next().await.is_some() {} };
        if timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::debug!("metrics server: open connections closed at shutdown");
        }
    }

    /// Joins ended connections; returns how many are open.
    fn join_ended(&self, connections: &mut JoinSet<()>) -> usize {
        while connections.try_join_next().is_some() {}
        connections.len()
    }

    fn connection(
        &self,
        stream: TcpStream,
        stop: watch::Receiver<()>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let open = OpenConnection::new(Arc::clone(&self.stats));
        let exporter = self.exporter.clone();
        let limits = self.limits;
        async move {
            let end = serve_requests(stream, stop, &exporter, &open.stats, limits).await;
            tracing::debug!(?end, "metrics server: connection ended");
            open.end(end);
        }
    }
}

/// Counts a connection as open until it ends, even if its task is dropped.
struct OpenConnection {
    stats: Arc<ServerStats>,
    end: End,
}

impl OpenConnection {
    fn new(stats: Arc<ServerStats>) -> Self {
        stats.opened();
        Self {
            stats,
            end: End::Closed,
        }
    }

    fn end(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.stats.ended(self.end);
    }
}

/// One connection from its first byte to its end.
async fn serve_requests(
    stream: TcpStream,
    mut stop: watch::Receiver<()>,
    exporter: &Exporter,
    stats: &ServerStats,
    limits: Limits,
) -> End {
    // From then on, a connection without a further header is an idle one.
    let answered = AtomicBool::new(false);
    let service = service_fn(async |request: hyper::Request<hyper::body::Incoming>| {
        let response = respond(
            exporter,
            request.method(),
            request.uri().path(),
            request.headers(),
        );
        stats.answered(response.status());
        answered.store(true, Ordering::Relaxed);
        Ok::<_, Infallible>(response)
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_read_timeout)
            // A client that has closed its sending side still waits for its answer.
            .half_close(true)
            .max_buf_size(HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service)
    );
    let result = tokio::select! {
        result = &mut connection => Some(result),
        // In both cases: finish the answer under way, take no further request.
        _ = stop.changed() => None,
        () = sleep(limits.connection_lifetime) => None,
    };
    let result = match result {
        Some(result) => result,
        None => {
            connection.as_mut().graceful_shutdown();
            match timeout(limits.final_response_timeout, connection).await {
                Ok(result) => result,
                Err(_) => return End::Lifetime,
            }
        }
    };
    match result {
        Ok(()) => End::Closed,
        Err(error) if error.is_parse() => End::Malformed,
        Err(error) if error.is_timeout() && answered.load(Ordering::Relaxed) => End::Closed,
        Err(error) if error.is_timeout() => End::Timeout,
        Err(_) => End::Error,
    }
}

/// Answers 503, if that is possible without waiting, and closes.
fn refuse(stream: TcpStream) {
    const ANSWER: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let Ok(mut stream) = stream.into_std() else {
        return;
    };
    let _ = stream.write(ANSWER);
    // Closing with a request unread would make the kernel discard the answer: all of the longest header.
    let _ = stream.read(&mut [0; HEADER_BYTES]);
}
