//! The mode `bytesmut-batch`: what programs, quinn among them, do today after reading with GRO.
//!
//! Each kernel buffer is copied to a `BytesMut`, from which packets are split and frozen. They share its
//! memory: keeping one of them keeps all of it.

use crate::channels::{Consumer, Mode, Shard};
use crate::options::Options;
use crate::server::{ECHO_EVERY, MAX_READS_AFTER_STOP, stop_requested};
use bytes::{Bytes, BytesMut};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::watch;

/// The most bytes that the kernel coalesces.
const SUPER_BUFFER: usize = 64 << 10;
/// Super-buffers in one call, as many as the mode `pool` offers.
const SLOTS: usize = 8;

/// What one kernel buffer held.
pub(crate) struct Batch {
    contents: BytesMut,
    stride: usize,
    source: SocketAddr,
    destination: Option<IpAddr>,
}

impl Batch {
    fn datagrams(&self) -> u64 {
        self.contents.len().div_ceil(self.stride.max(1)).max(1) as u64
    }
}

pub(crate) struct BytesMutBatches {
    io: UdpSocket,
    state: UdpSocketState,
}

impl BytesMutBatches {
    async fn recv(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        let read = || self.state.recv((&self.io).into(), buffers, metas);
        self.io.async_io(Interest::READABLE, read).await
    }

    async fn reply(&self, batch: &Batch) -> io::Result<()> {
        let transmit = Transmit {
            destination: batch.source,
            ecn: None,
            contents: &batch.contents,
            segment_size: Some(batch.stride).filter(|_| batch.datagrams() > 1),
            src_ip: batch.destination,
        };
        let send = || self.state.try_send((&self.io).into(), &transmit);
        self.io.async_io(Interest::WRITABLE, send).await
    }
}

impl Mode for BytesMutBatches {
    type Item = Batch;

    fn open(socket: std::net::UdpSocket, _: &Options) -> io::Result<Self> {
        let io = UdpSocket::from_std(socket)?;
        let state = UdpSocketState::new((&io).into())?;
        Ok(Self { io, state })
    }

    async fn receive(mut shard: Shard<Self>, mut stop: watch::Receiver<bool>) {
        let mut memory = vec![0; SLOTS * SUPER_BUFFER];
        let mut metas = [RecvMeta::default(); SLOTS];
        let mut last_reads = MAX_READS_AFTER_STOP;
        let mut stopping = false;
        while !stopping || last_reads > 0 {
            let mut slots = memory.chunks_exact_mut(SUPER_BUFFER);
            let mut buffers: [_; SLOTS] =
                std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
            let read = if stopping {
                last_reads -= 1;
                tokio::select! {
                    biased;
                    read = shard.socket.recv(&mut buffers, &mut metas) => read,
                    () = std::future::ready(()) => return,
                }
            } else {
                tokio::select! {
                    biased;
                    () = stop_requested(&mut stop) => {
                        stopping = true;
                        continue;
                    }
                    read = shard.socket.recv(&mut buffers, &mut metas) => read,
                }
            };
            let Ok(read) = read else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            };
            for (meta, buffer) in metas.iter().zip(&buffers).take(read) {
                let batch = Batch {
                    contents: BytesMut::from(&buffer[..meta.len]),
                    stride: meta.stride,
                    source: meta.addr,
                    destination: meta.dst_ip,
                };
                let datagrams = batch.datagrams();
                shard.hand_over(batch, datagrams, meta.len);
            }
        }
    }

    async fn consume(mut consumer: Consumer<Self>) -> VecDeque<Bytes> {
        let mut number = 0;
        while let Some(mut batch) = consumer.items.recv().await {
            number += 1;
            if number % ECHO_EVERY == 0 {
                let sent = consumer.echo.reply(&batch).await;
                consumer.count_echo(sent.is_ok(), batch.datagrams());
            }
            for _ in 0..batch.datagrams() {
                let len = batch.stride.min(batch.contents.len());
                consumer.consume(batch.contents.split_to(len).freeze());
            }
            drop(batch);
            consumer.pause().await;
        }
        consumer.retainer.into_packets()
    }
}
