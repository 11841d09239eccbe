//! tokio_kcp.

use crate::cpu::Meter;
use crate::{Bulk, ECHOES, Echo};
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
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

/// With the same buffers as the others; its own sockets have the system's.
fn socket() -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
    socket.set_recv_buffer_size(4 << 20).expect("a buffer");
    socket.set_send_buffer_size(4 << 20).expect("a buffer");
    socket.set_nonblocking(true).expect("nonblocking");
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&any.into()).expect("an address");
    UdpSocket::from_std(socket.into()).expect("a runtime")
}

async fn pair() -> (KcpListener, KcpStream) {
    let listener = KcpListener::from_socket(config(), socket())
        .await
        .expect("a listener");
    let address = listener.local_addr().expect("an address");
    let config = config();
    let client = KcpStream::connect_with_socket(&config, socket(), address);
    (listener, client.await.expect("a session"))
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
    // A task, as the other end is: the main thread would have to be woken each time.
    let asking = tokio::spawn(async move {
        let (mut times, mut buf) = (Vec::with_capacity(ECHOES), [0; 1024]);
        for _ in 0..ECHOES {
            let begin = Instant::now();
            client.write_all(&buf).await.expect("written");
            client.read_exact(&mut buf).await.expect("read");
            times.push(begin.elapsed());
        }
        times
    });
    Echo::of(asking.await.expect("answered"))
}
