//! [`Shard`]: one of several sockets at one address, each with a task of its own.

use super::builder::{UdpReceiverBuilder, UnstartedReceiver};
use super::error::BindError;
use super::receiver::UdpReceiver;
use super::sys;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::thread::{self, JoinHandle};

impl UdpReceiverBuilder {
    /// Binds `count` sockets to one address (`SO_REUSEPORT`; an error elsewhere than on Unix). The kernel chooses one by a
    /// hash of a datagram's source and destination, so that one peer's datagrams stay in order. A peer that changes its
    /// address, as QUIC allows, may come to another of them. What is
    /// sent to a multicast group or to all (broadcast) reaches each of them: use one socket for that.
    ///
    /// The address is shared with every other socket that has the option, and so with another program of
    /// the same user: the kernel then gives each of them a part of the datagrams. To be sure that the address
    /// is free, bind a plain socket to it first, and close that again.
    ///
    /// Needs no runtime: each shard is [started](Shard::start) in the runtime that is to drive it, all
    /// in one or each in its own. Until then datagrams queue in the kernel.
    ///
    /// # Errors
    /// The same as [`bind`](Self::bind). All sockets are then closed again.
    pub fn bind_shards(
        self,
        address: SocketAddr,
        count: NonZeroUsize,
    ) -> Result<Vec<Shard>, BindError> {
        let builder = self.reuse_port(true);
        // Grows: a number that is far too large is then the system's error for sockets.
        let mut shards = Vec::new();
        // With port 0 the system chooses a port for the first socket; the others use it too.
        let mut address = address;
        for index in 0..count.get() {
            let receiver = builder.clone().open(address)?;
            address = receiver.bound.address;
            shards.push(Shard { index, receiver });
        }
        Ok(shards)
    }
}

/// A bound receiver that no runtime drives yet, one of several at one address; made by
/// [`UdpReceiverBuilder::bind_shards`].
///
/// ```
/// use slab_net::PacketPool;
/// use slab_net::udp::{Transmit, UdpReceiver, UdpSender};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// let shards = UdpReceiver::builder(&pool).bind_shards("127.0.0.1:0".parse()?, 2.try_into()?)?;
/// let address = shards[0].local_addr();
///
/// // A thread and a runtime for each; it may be pinned to a CPU.
/// let mut threads = Vec::new();
/// for shard in shards {
///     threads.push(shard.spawn_thread(None, |mut receiver| async move {
///         receiver.recv_batch().await.map(|batch| batch.datagrams())
///     })?);
/// }
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
/// # runtime.block_on(async {
/// #     while threads.iter().any(|thread| !thread.is_finished()) {
/// #         let sender = UdpSender::bind("127.0.0.1:0".parse().unwrap()).unwrap();
/// #         sender.send(&Transmit::new(b"x", address)).await.unwrap();
/// #     }
/// # });
/// for thread in threads {
///     assert!(thread.join().unwrap()?? > 0);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Shard {
    index: usize,
    receiver: UnstartedReceiver,
}

impl Shard {
    /// The index of this shard, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// The address that all shards are bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.receiver.bound.address
    }

    /// Registers the socket with the current runtime.
    ///
    /// ```
    /// # use slab_net::PacketPool;
    /// # use slab_net::udp::{Transmit, UdpReceiver, UdpSender};
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// // While the process may still bind ports below 1024, and has no other threads.
    /// let shards = UdpReceiver::builder(&pool).bind_shards("127.0.0.1:0".parse()?, 2.try_into()?)?;
    /// # let address = shards[0].local_addr();
    /// let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
    /// runtime.block_on(async {
    ///     let mut tasks = tokio::task::JoinSet::new();
    ///     for shard in shards {
    ///         let (index, mut receiver) = (shard.index(), shard.start()?);
    ///         tasks.spawn(async move { (index, receiver.recv_batch().await) });
    ///     }
    ///     # let sender = UdpSender::bind("127.0.0.1:0".parse()?)?;
    ///     # sender.send(&Transmit::new(b"x", address)).await?;
    ///     let (index, received) = tasks.join_next().await.expect("there are two")?;
    ///     assert!(index < 2 && received?.contents() == b"x");
    ///     Ok::<(), Box<dyn std::error::Error>>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn start(self) -> Result<UdpReceiver, BindError> {
        self.receiver.start()
    }

    /// Starts a thread with a runtime of its own, which runs the future that `task` makes of the
    /// receiver. On Linux the thread can be restricted to one CPU, by its number;
    /// elsewhere, to ask for that is a failure.
    ///
    /// Four shards that fill one queue until they are told to stop:
    ///
    /// ```
    /// use slab_net::PacketPool;
    /// use slab_net::pipeline::{Overflow, forward, queue};
    /// use slab_net::udp::UdpReceiver;
    /// use tokio::sync::watch;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let shards = UdpReceiver::builder(&pool).bind_shards("127.0.0.1:0".parse()?, 4.try_into()?)?;
    /// let (sender, batches) = queue(64.try_into()?, Overflow::DropOldest);
    /// let (stop, stopped) = watch::channel(false);
    /// let mut threads = Vec::new();
    /// for shard in shards {
    ///     let (sender, mut stopped) = (sender.clone(), stopped.clone());
    ///     threads.push(shard.spawn_thread(None, |receiver| {
    ///         forward(receiver, sender, async move { drop(stopped.wait_for(|&stop| stop).await) })
    ///     })?);
    /// }
    /// drop(sender); // the queue ends with the shards
    /// let consumer = tokio::spawn(async move {
    ///     while let Some(batch) = batches.recv().await {
    ///         println!("{} datagrams from {}", batch.datagrams(), batch.source());
    ///     }
    /// });
    ///
    /// stop.send(true)?;
    /// consumer.await?;
    /// for thread in threads {
    ///     println!("{:?}", thread.join().expect("it did not panic")?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The system cannot start a thread. Other failures (no such CPU, no runtime) are in the thread's
    /// result.
    pub fn spawn_thread<F, T>(
        self,
        cpu: Option<usize>,
        task: F,
    ) -> io::Result<JoinHandle<io::Result<T::Output>>>
    where
        F: FnOnce(UdpReceiver) -> T + Send + 'static,
        T: Future<Output: Send + 'static>,
    {
        let run = move || {
            if let Some(cpu) = cpu {
                sys::pin_thread(cpu).map_err(|error| {
                    let message = format!("cannot restrict the thread to CPU {cpu}: {error}");
                    io::Error::new(error.kind(), message)
                })?;
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let receiver = self.receiver.start()?;
                Ok(task(receiver).await)
            })
        };
        thread::Builder::new()
            .name(format!("udp-shard-{}", self.index))
            .spawn(run)
    }
}

/// For options that have to be set before anything is received, such as `SO_INCOMING_CPU`. Otherwise as
/// [`UdpReceiver`]'s.
#[cfg(unix)]
impl std::os::fd::AsFd for Shard {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.receiver.bound.socket.as_fd()
    }
}

/// As `AsFd` on Unix.
#[cfg(windows)]
impl std::os::windows::io::AsSocket for Shard {
    fn as_socket(&self) -> std::os::windows::io::BorrowedSocket<'_> {
        self.receiver.bound.socket.as_socket()
    }
}
