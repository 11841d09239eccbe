//! tokio_kcp.

use crate::cpu::Meter;
use crate::{Bulk, ECHOES, Echo};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_kcp::{KcpConfig, KcpListener, KcpNoDelayConfig, KcpStream};

const PIECE: usize = 64 << 10;

fn config() -> KcpConfig {
    KcpConfig {
        nodelay: KcpNoDelayConfig::fastest(),
        wnd_size: (1024, 1024),
        stream: true,
        flush_write: true,
        flush_acks_input: true,
        ..KcpConfig::default()
    }
}

async fn pair() -> (KcpListener, KcpStream) {
    let listener = KcpListener::bind(config(), "127.0.0.1:0")
        .await
        .expect("a socket");
    let address = listener.local_addr().expect("an address");
    let client = KcpStream::connect(&config(), address)
        .await
        .expect("a socket");
    (listener, client)
}

pub(crate) async fn bulk(megabytes: usize) -> Bulk {
    let (mut listener, mut client) = pair().await;
    let total = megabytes << 20;
    let reading = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a session");
        let (mut buf, mut left) = (vec![0; PIECE], total);
        while left > 0 {
            left -= stream.read(&mut buf).await.expect("bytes");
        }
    });
    let piece = vec![7; PIECE];
    let meter = Meter::start();
    tokio::spawn(async move {
        for _ in 0..total / PIECE {
            client.write_all(&piece).await.expect("written");
        }
        // What is on its way goes with the stream.
        std::future::pending::<()>().await;
    });
    reading.await.expect("read");
    meter.stop(total)
}

pub(crate) async fn echo() -> Echo {
    let (mut listener, mut client) = pair().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a session");
        let mut buf = [0; 1024];
        while stream.read_exact(&mut buf).await.is_ok() {
            stream.write_all(&buf).await.expect("written");
        }
    });
    let (mut times, mut buf) = (Vec::with_capacity(ECHOES), [0; 1024]);
    for _ in 0..ECHOES {
        let begin = Instant::now();
        client.write_all(&buf).await.expect("written");
        client.read_exact(&mut buf).await.expect("read");
        times.push(begin.elapsed());
    }
    Echo::of(times)
}
