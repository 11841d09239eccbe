//! [`Collector`]: what is to be read at a scrape.

use crate::build::BuildSource;
use crate::error::{RegisterError, SourceKind};
use crate::pool::{PoolSource, ReadPool};
use crate::series::{NeverFalling, Source};
#[cfg(feature = "allocator-api2")]
use slab_core::SlabAllocator;
use slab_core::{Slab, SlabPool};
#[cfg(feature = "net")]
use slab_net::{PacketPool, pipeline::QueueMonitor, udp::SocketMonitor};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most sources that a collector holds, of all kinds together.
pub const MAX_SOURCES: usize = 1024;

/// The pools, sockets, queues and RUDP endpoints whose statistics are read at a scrape.
///
/// Cloning gives another handle to the same collector. Nothing is read, and no code of this crate
/// runs, between scrapes.
///
/// A registered pool stays open: the collector holds a handle to it, so that its series do not end
/// without notice. They end when [`unregister`](Self::unregister) gives the handle back.
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
    build: Arc<dyn Source>,
    entries: Vec<Entry>,
    /// Of the last one registered. They ascend, in the list too, so that whoever remembers them
    /// finds what is new to it at the end of the list.
    last_serial: u64,
}

impl Default for Sources {
    fn default() -> Self {
        Self {
            build: Arc::new(BuildSource),
            entries: Vec::new(),
            last_serial: 0,
        }
    }
}

struct Entry {
    kind: SourceKind,
    name: String,
    serial: u64,
    source: Arc<dyn Source>,
}

impl Collector {
    /// A collector with nothing registered.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pool, under its own name as the label `pool`.
    ///
    /// # Errors
    /// Another pool has this name, or the collector is full.
    pub fn register_pool(&self, pool: &SlabPool) -> Result<(), RegisterError> {
        self.register_as_pool(pool.name(), pool.clone())
    }

    /// Adds a typed slab, under its own name as the label `pool`: the same series as a pool's, of
    /// its one size class, but for the resident bytes.
    ///
    /// ```
    /// # use slab_core::Slab;
    /// # use slab_metrics::{Collector, Exporter};
    /// let sessions = Slab::<[u64; 8]>::builder().name("sessions").build()?;
    /// let collector = Collector::new();
    /// collector.register_slab(&sessions)?;
    /// let one = sessions.try_insert([0; 8])?;
    /// let page = Exporter::new(collector).scrape();
    /// assert!(page.contains("slab_pool_in_use_bytes{pool=\"sessions\",size_class=\"64\"} 64\n"));
    /// # drop(one);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Another pool has this name, or the collector is full.
    pub fn register_slab<T: 'static, Tag: 'static>(
        &self,
        slab: &Slab<T, Tag>,
    ) -> Result<(), RegisterError> {
        self.register_as_pool(slab.name(), slab.clone())
    }

    /// Adds the pool of a collection's allocator, under `name` as the label `pool`: the same series
    /// as a pool's, but for the resident bytes.
    ///
    /// # Errors
    /// Another pool has this name, or the collector is full.
    #[cfg(feature = "allocator-api2")]
    pub fn register_allocator(
        &self,
        name: &str,
        allocator: &SlabAllocator,
    ) -> Result<(), RegisterError> {
        self.register_as_pool(name, allocator.clone())
    }

    fn register_as_pool(
        &self,
        name: &str,
        pool: impl ReadPool + 'static,
    ) -> Result<(), RegisterError> {
        let source = PoolSource::new(name, pool);
        self.register(SourceKind::Pool, name, source)
    }

    /// Adds a packet pool, under the name of its slab pool: that one's series and those of the
    /// packets. The slab pool need not be registered as well, and cannot be.
    ///
    /// # Errors
    /// Another pool has this name, or the collector is full.
    #[cfg(feature = "net")]
    pub fn register_packet_pool(&self, pool: &PacketPool) -> Result<(), RegisterError> {
        let source = crate::net::PacketPoolSource::new(pool.clone());
        self.register(SourceKind::Pool, pool.slab().name(), source)
    }

    /// Adds a UDP socket. `name` is the label `socket`; it should come from a small fixed set, as
    /// the number of a shard does, and never be an address.
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
        self.register(SourceKind::Socket, &name, source)
    }

    /// Adds a hand-off queue. `name` is the label `queue`.
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
        self.register(SourceKind::Queue, &name, source)
    }

    /// Adds an RUDP endpoint. `name` is the label `endpoint`. It stays open, as a pool
    /// does, until it is unregistered and the program's own handles are gone.
    ///
    /// A scrape locks each session of the endpoint for a moment.
    ///
    /// # Errors
    /// Another endpoint has this name, or the collector is full.
    #[cfg(feature = "net")]
    pub fn register_rudp_endpoint(
        &self,
        name: impl Into<String>,
        endpoint: &slab_net::rudp::Endpoint,
    ) -> Result<(), RegisterError> {
        let name = name.into();
        let source = crate::rudp::EndpointSource {
            name: name.clone(),
            endpoint: endpoint.clone(),
        };
        self.register(SourceKind::RudpEndpoint, &name, source)
    }

    pub(crate) fn register(
        &self,
        kind: SourceKind,
        name: &str,
        source: impl Source + 'static,
    ) -> Result<(), RegisterError> {
        let source = Arc::new(NeverFalling::new(source));
        let mut sources = self.lock();
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
            source,
        });
        Ok(())
    }

    /// Takes a source out and gives its handle back; false if there was none of this name.
    ///
    /// Its series are gone from the next scrape of an [`Exporter`](crate::Exporter). In a recorder
    /// fed by a [`Sampler`](crate::Sampler) its gauges go to 0 at the next sample.
    pub fn unregister(&self, kind: SourceKind, name: &str) -> bool {
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

    /// The sources of one kind with their names, to be read without holding the lock.
    pub(crate) fn of_kind(&self, kind: SourceKind) -> Vec<(String, Arc<dyn Source>)> {
        let sources = self.lock();
        let of_kind = sources.entries.iter().filter(|entry| entry.kind == kind);
        of_kind
            .map(|entry| (entry.name.clone(), Arc::clone(&entry.source)))
            .collect()
    }

    /// Every source with its serial number, in ascending order, to be read without holding the
    /// lock; in front the one that is always there. Allocates nothing if `to` has the room.
    pub(crate) fn copy_sources(&self, to: &mut Vec<(u64, Arc<dyn Source>)>) {
        to.clear();
        let sources = self.lock();
        to.push((0, Arc::clone(&sources.build)));
        let registered = sources.entries.iter();
        to.extend(registered.map(|entry| (entry.serial, Arc::clone(&entry.source))));
    }

    fn lock(&self) -> MutexGuard<'_, Sources> {
        // Every change is one push or one remove: a panic elsewhere leaves nothing half-done.
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
