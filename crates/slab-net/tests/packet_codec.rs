//! Packets with tokio: streams read into a `PacketBuf`, frames split off it without a copy, and the codecs
//! of `tokio_util` at the other end.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use slab_net::{Packet, PacketBuf, PacketChain, PacketPool};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

fn pool() -> PacketPool {
    PacketPool::builder()
        .max_memory(8 << 20)
        .headroom(4)
        .build()
        .unwrap()
}

/// Frames after a length of four bytes, as `LengthDelimitedCodec` writes them.
fn next_frame(buf: &mut PacketBuf) -> Option<Packet> {
    let len = u32::from_be_bytes(*buf.first_chunk()?) as usize;
    if buf.len() < 4 + len {
        buf.reserve(4 + len - buf.len());
        return None;
    }
    buf.advance(4);
    Some(buf.split_to(len).freeze())
}

async fn read_frames(mut from: impl AsyncRead + Unpin, pool: &PacketPool) -> Vec<Packet> {
    let mut buf = pool.try_alloc(8192).unwrap();
    let mut frames = Vec::new();
    while from.read_buf(&mut buf).await.unwrap() > 0 {
        while let Some(frame) = next_frame(&mut buf) {
            frames.push(frame);
        }
    }
    assert!(buf.is_empty());
    frames
}

fn payloads() -> Vec<Vec<u8>> {
    (0..60).map(|n| vec![n as u8; n * 37]).collect()
}

#[tokio::test]
async fn a_stream_is_read_into_packets() {
    let pool = pool();
    let (mut there, here) = tokio::io::duplex(1000);
    let sender = tokio::spawn(async move {
        let mut codec = LengthDelimitedCodec::new();
        for payload in payloads() {
            let mut frame = BytesMut::new();
            codec
                .encode(Bytes::copy_from_slice(&payload), &mut frame)
                .unwrap();
            there.write_all_buf(&mut frame).await.unwrap();
        }
    });
    let frames = read_frames(here, &pool).await;
    sender.await.unwrap();
    assert_eq!(frames, payloads());
    drop(frames);
    assert_eq!(pool.slab().stats().in_use(), 0);
    assert_eq!(pool.packet_stats().heap_fallbacks, 0);
}

#[tokio::test]
async fn packets_are_written_behind_their_headers() {
    let pool = pool();
    let (mut here, mut there) = tokio::io::duplex(1000);
    let from = pool.clone();
    let sender = tokio::spawn(async move {
        for (n, payload) in payloads().into_iter().enumerate() {
            let mut buf = from.try_alloc(payload.len()).unwrap();
            buf.put_slice(&payload);
            let header = (payload.len() as u32).to_be_bytes();
            // Both ways to put a header in front without moving the payload.
            if n % 2 == 0 {
                let at = buf.as_ptr();
                buf.prepend(&header);
                assert_eq!(buf.as_ptr(), at.wrapping_sub(4));
                here.write_all_buf(&mut buf).await.unwrap();
            } else {
                let mut chain = PacketChain::from(buf.freeze());
                chain.push_front(from.copy_from_slice(&header)).unwrap();
                here.write_all_buf(&mut chain).await.unwrap();
            }
        }
    });
    let mut codec = LengthDelimitedCodec::new();
    let (mut buf, mut frames) = (BytesMut::new(), Vec::new());
    while there.read_buf(&mut buf).await.unwrap() > 0 {
        while let Some(frame) = codec.decode(&mut buf).unwrap() {
            frames.push(frame);
        }
    }
    sender.await.unwrap();
    assert_eq!(frames, payloads());
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// A codec of `tokio_util` whose frames are packets. The traits fix its buffers as `BytesMut`.
struct PacketCodec {
    inner: LengthDelimitedCodec,
    pool: PacketPool,
}

impl Decoder for PacketCodec {
    type Item = Packet;
    type Error = io::Error;

    fn decode(&mut self, src: &mut BytesMut) -> io::Result<Option<Packet>> {
        let frame = self.inner.decode(src)?;
        let copy = |frame: BytesMut| self.pool.try_copy_from_slice(&frame);
        Ok(frame.map(copy).transpose()?)
    }
}

impl Encoder<Packet> for PacketCodec {
    type Error = io::Error;

    fn encode(&mut self, packet: Packet, dst: &mut BytesMut) -> io::Result<()> {
        self.inner.encode(Bytes::copy_from_slice(&packet), dst)
    }
}

#[tokio::test]
async fn a_tokio_util_codec_can_use_packets_as_frames() {
    let pool = pool();
    let codec = || PacketCodec {
        inner: LengthDelimitedCodec::new(),
        pool: pool.clone(),
    };
    let mut stream = BytesMut::new();
    let mut encoder = codec();
    for payload in payloads() {
        encoder
            .encode(pool.copy_from_slice(&payload), &mut stream)
            .unwrap();
    }
    let mut decoder = codec();
    let mut frames = Vec::new();
    while let Some(frame) = decoder.decode(&mut stream).unwrap() {
        assert!(frame.is_empty() || frame.class().is_some());
        frames.push(frame);
    }
    assert_eq!(frames, payloads());
    drop(frames);
    assert_eq!(pool.slab().stats().in_use(), 0);
}
