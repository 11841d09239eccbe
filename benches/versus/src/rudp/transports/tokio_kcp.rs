//! tokio_kcp.

use super::super::streams::Transport;
use super::socket;
use std::net::SocketAddr;
use tokio::net::UdpSocket;
use tokio_kcp::{KcpConfig, KcpListener, KcpNoDelayConfig, KcpStream};

pub(crate) struct TokioKcp;

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

fn socket_in_runtime() -> UdpSocket {
    UdpSocket::from_std(socket()).expect("a runtime")
}

impl Transport for TokioKcp {
    type Listener = KcpListener;
    type Stream = KcpStream;
    type Client = ();

    async fn listen() -> (KcpListener, SocketAddr) {
        let listener = KcpListener::from_socket(config(), socket_in_runtime())
            .await
            .expect("a listener");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    async fn accept(listener: &mut KcpListener) -> KcpStream {
        listener.accept().await.expect("a session").0
    }

    async fn connect(to: SocketAddr) -> KcpStream {
        KcpStream::connect_with_socket(&config(), socket_in_runtime(), to)
            .await
            .expect("a session")
    }

    fn client() {}

    async fn connect_from((): &(), to: SocketAddr) -> KcpStream {
        Self::connect(to).await
    }
}
