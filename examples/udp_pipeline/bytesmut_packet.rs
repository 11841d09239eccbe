//! The mode `bytesmut-packet`: what tokio's documentation suggests, a fresh `BytesMut` for each datagram,
//! frozen and sent through a channel.

use crate::channels::{Consumer, Mode, Shard};
use crate::options::Options;
use crate::server::{ECHO_EVERY, MAX_READS_AFTER_STOP, stop_requested};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::watch;

/// Holds a datagram of any Ethernet MTU. The system cuts a longer one, and tokio does not say so.
const BUFFER: usize = 2048;
/// Packets taken from the channel at once; a slow consumer pauses after as many.
const PACKETS_PER_BATCH: usize = 32;

pub(crate) struct Datagram {
    packet: Bytes,
    source: SocketAddr,
}

pub(crate) struct BytesMutPackets {
    io: UdpSocket,
    buffer_bytes: usize,
}

impl BytesMutPackets {
    /// As many bytes as the other modes may queue, in buffers of this mode's size.
    pub(crate) fn queued_packets(options: &Options) -> usize {
        options.max_memory / Self::buffer_bytes(options)
    }

    fn buffer_bytes(options: &Options) -> usize {
        BUFFER.max(usize::from(options.payload))
    }
}

impl Shard<BytesMutPackets> {
    fn hand_over_packet(&mut self, buffer: BytesMut, source: SocketAddr) {
        let packet = buffer.freeze();
        let len = packet.len();
        self.hand_over(Datagram { packet, source }, 1, len);
    }
}

impl Mode for BytesMutPackets {
    type Item = Datagram;

    fn open(socket: std::net::UdpSocket, options: &Options) -> io::Result<Self> {
        Ok(Self {
            io: UdpSocket::from_std(socket)?,
            buffer_bytes: Self::buffer_bytes(options),
        })
    }

    async fn receive(mut shard: Shard<Self>, mut stop: watch::Receiver<bool>) {
        let buffer_bytes = shard.socket.buffer_bytes;
        loop {
            let mut buffer = BytesMut::with_capacity(buffer_bytes);
            let read = tokio::select! {
                biased;
                () = stop_requested(&mut stop) => break,
                read = shard.socket.io.recv_buf_from(&mut buffer) => read,
            };
            match read {
                Ok((_, source)) => shard.hand_over_packet(buffer, source),
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        for _ in 0..MAX_READS_AFTER_STOP * PACKETS_PER_BATCH {
            let mut buffer = BytesMut::with_capacity(buffer_bytes);
            match shard.socket.io.try_recv_buf_from(&mut buffer) {
                Ok((_, source)) => shard.hand_over_packet(buffer, source),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {}
            }
        }
    }

    async fn consume(mut consumer: Consumer<Self>) -> VecDeque<Bytes> {
        let mut number = 0;
        let mut batch = Vec::with_capacity(PACKETS_PER_BATCH);
        while consumer
            .items
            .recv_many(&mut batch, PACKETS_PER_BATCH)
            .await
            > 0
        {
            for Datagram { packet, source } in batch.drain(..) {
                number += 1;
                if number % ECHO_EVERY == 0 {
                    let sent = consumer.echo.io.send_to(&packet, source).await;
                    consumer.count_echo(sent.is_ok(), 1);
                }
                consumer.consume(packet);
            }
            consumer.pause().await;
        }
        consumer.retainer.into_packets()
    }
}
