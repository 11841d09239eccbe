//! [`Collector`]: the sources that a scrape reads.

use crate::build::BuildSource;
use crate::error::{RegisterError, SourceKind};
use crate::pool::PoolSource;
use crate::series::{Registered, Source};
use slab_core::SlabPool;
#[cfg(feature = "net")]
use slab_net::{PacketPool, pipeline::QueueMonitor, rudp::EndpointMonitor, udp::SocketMonitor};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most sources that a collector holds, of all kinds together.
pub const MAX_SOURCES: usize = 1024;

/// The pools, sockets, queues and RUDP endpoints whose statistics a scrape reads.
///
/// Cloning returns another handle to the same collector. Between scrapes nothing is read.
///
/// The collector holds a handle to each registered pool, so the pool stays open and its series do not
/// end without notice, until [`unregister`](Self::unregister) drops the handle. It keeps no socket open.
///
/// ```
/// use slab_core::SlabPool;
/// use slab_metrics::{Collector, Exporter, SourceKind};
///
/// let pool = SlabPool::builder().name("rx").max_memory(8 << 20).build()?;
/// let collector = Collector::new();
/// collector.register_pool(&pool)?;
///
/// let exporter = Exporter::new(collector.clone());
/// let capacity = format!("slab_pool_capacity_bytes{{pool=\"rx\"}} {}\n", 8 << 20);
/// assert!(exporter.scrape().contains(&capacity));
///
/// assert!(collector.unregister(SourceKind::Pool, "rx"));
/// assert!(!exporter.scrape().contains("rx"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Collector {
    sources: Arc<Mutex<Sources>>,
}

struct Sources {
    build: Arc<Registered>,
    entries: Vec<Entry>,
    /// The serial number of the last source registered. Serial numbers ascend, also along the list, so
    /// a reader that remembers them finds new sources at the end of the list.
    last_serial: u64,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            build: Arc::new(Registered::new(Arc::new(BuildSource))),
            entries: Vec::new(),
            last_serial: 0,
        }
    }
}

struct Entry {
    kind: SourceKind,
    name: String,
    serial: u64,
    registered: Arc<Registered>,
}

impl Collector {
    /// Creates a collector with nothing registered.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a pool, with its own name as the label `pool`; also that of a typed slab or of a collection's
    /// allocator:
    ///
    /// ```
    /// # use slab_core::Slab;
    /// # use slab_metrics::{Collector, Exporter};
    /// let sessions = Slab::<[u64; 8]>::builder().name("sessions").build()?;
    /// let collector = Collector::new();
    /// collector.register_pool(sessions.pool())?;
    /// let one = sessions.try_insert([0; 8])?;
    /// let page = Exporter::new(collector).scrape();
    /// assert!(page.contains("slab_pool_in_use_bytes{pool=\"sessions\",size_class=\"64\"} 64\n"));
    /// # drop(one);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another pool has this name (`default`, unless the pool was given one), or the collector is full.
    pub fn register_pool(&self, pool: &SlabPool) -> Result<(), RegisterError> {
        let source = PoolSource::new(pool.clone());
        self.register(SourceKind::Pool, pool.name(), Arc::new(source))
    }

    /// Registers a packet pool under the name of its slab pool, with the series of both. The slab pool
    /// cannot be registered as well.
    ///
    /// ```
    /// # use slab_metrics::{Collector, Exporter};
    /// # use slab_net::PacketPool;
    /// let pool = PacketPool::builder().name("rx").build()?;
    /// let collector = Collector::new();
    /// collector.register_packet_pool(&pool)?;
    /// let kept = pool.hold(pool.try_copy_from_slice(b"datagram")?);
    /// let page = Exporter::new(collector).scrape();
    /// assert!(page.contains("slab_pool_in_use_bytes{pool=\"rx\",size_class=\"64\"} 64\n"));
    /// assert!(page.contains("slab_net_held_bytes{pool=\"rx\"} 8\n"));
    /// # drop(kept);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another pool has this name, or the collector is full.
    #[cfg(feature = "net")]
    pub fn register_packet_pool(&self, pool: &PacketPool) -> Result<(), RegisterError> {
        let source = crate::net::PacketPoolSource::new(pool.clone());
        self.register(SourceKind::Pool, pool.slab().name(), Arc::new(source))
    }

    /// Registers a UDP socket, with `name` as the label `socket`. Names should come from a small fixed
    /// set, such as shard numbers, and never be addresses. The series stay when the socket is closed:
    /// [unregister](Self::unregister) it before its successor takes the name.
    ///
    /// ```
    /// # use slab_metrics::{Collector, Exporter};
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut receiver = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let collector = Collector::new();
    /// collector.register_socket("0", receiver.monitor())?;
    /// # let hello = Transmit::new(b"hello", receiver.local_addr());
    /// # receiver.sender().send(&hello).await?;
    /// let batch = receiver.recv_batch().await?;
    /// let page = Exporter::new(collector).scrape();
    /// assert!(page.contains("slab_net_received_datagrams_total{socket=\"0\"} 1\n"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another socket has this name, or the collector is full.
    #[cfg(feature = "net")]
    pub fn register_socket(
        &self,
        name: impl Into<String>,
        monitor: SocketMonitor,
    ) -> Result<(), RegisterError> {
        let name = name.into();
        let source = crate::net::SocketSource {
            name: name.clone(),
            monitor,
        };
        self.register(SourceKind::Socket, &name, Arc::new(source))
    }

    /// Registers a hand-off queue, with `name` as the label `queue`. The series stay when the queue has
    /// ended, as those of a socket do.
    ///
    /// ```
    /// # use slab_metrics::{Collector, Exporter};
    /// # use slab_net::pipeline::{Overflow, queue};
    /// let (sender, consumer) = queue(256.try_into()?, Overflow::DropNewest);
    /// let collector = Collector::new();
    /// collector.register_queue("handoff", consumer.monitor())?;
    /// let page = Exporter::new(collector).scrape();
    /// assert!(page.contains("slab_net_queue_capacity_batches{queue=\"handoff\"} 256\n"));
    /// # drop(sender);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another queue has this name, or the collector is full.
    #[cfg(feature = "net")]
    pub fn register_queue(
        &self,
        name: impl Into<String>,
        monitor: QueueMonitor,
    ) -> Result<(), RegisterError> {
        let name = name.into();
        let source = crate::net::QueueSource {
            name: name.clone(),
            monitor,
        };
        self.register(SourceKind::Queue, &name, Arc::new(source))
    }

    /// Registers an RUDP endpoint, with `name` as the label `endpoint`. The collector does not keep it open,
    /// and drops it once it is gone: the program's handles are dropped, and its sessions have ended.
    ///
    /// A scrape locks each session of the endpoint briefly. The endpoint's socket, whose series have what
    /// the kernel dropped, is another source, and stays until it is unregistered:
    ///
    /// ```
    /// # use slab_metrics::{Collector, Exporter};
    /// # use slab_net::PacketPool;
    /// # use slab_net::rudp::{Endpoint, EndpointConfig};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// # let collector = Collector::new();
    /// let endpoint = Endpoint::bind("127.0.0.1:0".parse()?, &pool, EndpointConfig::default())?;
    /// collector.register_rudp_endpoint("chat", endpoint.monitor())?;
    /// collector.register_socket("chat", endpoint.socket_monitor())?;
    /// # assert!(Exporter::new(collector).scrape().contains("socket=\"chat\""));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Another endpoint has this name, or the collector is full.
    #[cfg(feature = "net")]
    pub fn register_rudp_endpoint(
        &self,
        name: impl Into<String>,
        monitor: EndpointMonitor,
    ) -> Result<(), RegisterError> {
        let name = name.into();
        let source = crate::rudp::EndpointSource {
            name: name.clone(),
            monitor,
        };
        self.register(SourceKind::RudpEndpoint, &name, Arc::new(source))
    }

    pub(crate) fn register(
        &self,
        kind: SourceKind,
        name: &str,
        source: Arc<dyn Source>,
    ) -> Result<(), RegisterError> {
        let registered = Arc::new(Registered::new(source));
        let mut sources = self.lock_live();
        if sources.position(kind, name).is_some() {
            return Err(RegisterError::DuplicateName {
                kind,
                name: name.to_owned(),
            });
        }
        if sources.entries.len() >= MAX_SOURCES {
            return Err(RegisterError::TooManySources);
        }
        sources.last_serial += 1;
        let serial = sources.last_serial;
        sources.entries.push(Entry {
            kind,
            name: name.to_owned(),
            serial,
            registered,
        });
        Ok(())
    }

    /// Removes a source and drops its handle; returns `false` if there is no source of this kind and name. A
    /// [server](SourceKind::Server) is removed by its own end only: here, `false`.
    ///
    /// Its series are missing from the next scrape of an [`Exporter`](crate::Exporter). In a recorder
    /// fed by a [`Sampler`](crate::Sampler), its gauges go to 0 at the next sample.
    pub fn unregister(&self, kind: SourceKind, name: &str) -> bool {
        // A server is removed by its own end, as long as it serves.
        kind != SourceKind::Server && self.remove(kind, name)
    }

    pub(crate) fn remove(&self, kind: SourceKind, name: &str) -> bool {
        let mut sources = self.lock();
        let Some(index) = sources.position(kind, name) else {
            return false;
        };
        let entry = sources.entries.remove(index);
        // Dropping the last handle of a pool unmaps its memory: not under the lock.
        drop(sources);
        drop(entry);
        true
    }

    /// Returns the sources of one kind with their names, to be read without holding the lock.
    pub(crate) fn sources_of_kind(&self, kind: SourceKind) -> Vec<(String, Arc<Registered>)> {
        let sources = self.lock_live();
        let sources_of_kind = sources.entries.iter().filter(|entry| entry.kind == kind);
        sources_of_kind
            .map(|entry| (entry.name.clone(), Arc::clone(&entry.registered)))
            .collect()
    }

    /// Copies every source with its serial number to `to`, in ascending order and with the build source
    /// first, to be read without holding the lock. Allocates nothing if `to` has the capacity.
    pub(crate) fn copy_sources(&self, to: &mut Vec<(u64, Arc<Registered>)>) {
        to.clear();
        let sources = self.lock_live();
        to.push((0, Arc::clone(&sources.build)));
        let registered = sources.entries.iter();
        to.extend(registered.map(|entry| (entry.serial, Arc::clone(&entry.registered))));
    }

    /// As `lock`, with the sources dropped that are gone.
    fn lock_live(&self) -> MutexGuard<'_, Sources> {
        let mut sources = self.lock();
        sources
            .entries
            .retain(|entry| !entry.registered.source.is_gone());
        sources
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        // Every change leaves the list valid: a panic elsewhere leaves nothing half-done.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sources {
    fn position(&self, kind: SourceKind, name: &str) -> Option<usize> {
        self.entries
            .iter()
            .position(|entry| entry.kind == kind && entry.name == name)
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources = self.lock();
        f.debug_list()
            .entries(sources.entries.iter().map(|e| (e.kind, e.name.as_str())))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::Describe;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// A source without series that is gone once that is said.
    #[derive(Default)]
    struct Ends(AtomicBool);

    impl Source for Ends {
        fn describe(&self, _: &mut Describe<'_>) {}
        fn read(&self, _: &mut Vec<u64>) {}
        fn is_gone(&self) -> bool {
            self.0.load(Relaxed)
        }
    }

    #[test]
    fn a_source_that_is_gone_keeps_neither_its_name_nor_a_place() {
        let collector = Collector::new();
        let kind = SourceKind::RudpEndpoint;
        let sources: Vec<_> = (0..MAX_SOURCES).map(|_| Arc::<Ends>::default()).collect();
        for (name, source) in sources.iter().enumerate() {
            let name = name.to_string();
            collector.register(kind, &name, source.clone()).unwrap();
        }
        sources[7].0.store(true, Relaxed);
        let successor = Arc::<Ends>::default();
        collector.register(kind, "7", successor.clone()).unwrap();
        assert_eq!(collector.sources_of_kind(kind).len(), MAX_SOURCES);
        successor.0.store(true, Relaxed);
        let left = collector.sources_of_kind(kind);
        assert_eq!(left.len(), MAX_SOURCES - 1);
        assert!(left.iter().all(|(name, _)| name != "7"));
    }

    #[test]
    fn sources_of_different_kinds_may_have_the_same_name() {
        let collector = Collector::new();
        for kind in [SourceKind::Pool, SourceKind::Socket] {
            let source = Arc::<Ends>::default();
            collector.register(kind, "rx", source).unwrap();
        }
        assert_eq!(
            format!("{collector:?}"),
            "[(Pool, \"rx\"), (Socket, \"rx\")]"
        );
        assert!(!collector.unregister(SourceKind::Queue, "rx"));
        assert!(collector.unregister(SourceKind::Socket, "rx"));
        assert_eq!(format!("{collector:?}"), "[(Pool, \"rx\")]");
    }

    #[test]
    fn a_source_is_dropped_without_the_lock() {
        struct Asks(Collector, Arc<AtomicBool>);
        impl Source for Asks {
            fn describe(&self, _: &mut Describe<'_>) {}
            fn read(&self, _: &mut Vec<u64>) {}
        }
        impl Drop for Asks {
            fn drop(&mut self) {
                self.1.store(self.0.sources.try_lock().is_ok(), Relaxed);
            }
        }
        let collector = Collector::new();
        let was_free = Arc::<AtomicBool>::default();
        let source = Asks(collector.clone(), was_free.clone());
        let kind = SourceKind::Pool;
        collector.register(kind, "rx", Arc::new(source)).unwrap();
        assert!(collector.unregister(kind, "rx"));
        assert!(was_free.load(Relaxed));
    }
}
