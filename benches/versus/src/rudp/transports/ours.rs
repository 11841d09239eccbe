//! slab-net.

use super::super::streams::Transport;
use slab_net::PacketPool;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig, Stream};
use std::net::SocketAddr;
use std::sync::OnceLock;

pub(crate) struct Ours;

/// As many sessions from one prefix as a scenario opens.
const SESSIONS: usize = 4096;

pub(crate) fn config() -> EndpointConfig {
    EndpointConfig::new(SessionConfig::fast().window(1024, 1024).stream(true))
        .max_sessions(SESSIONS)
        .max_half_open(SESSIONS, SESSIONS)
        .backlog(SESSIONS)
}

/// One for all ends of all runs.
pub(crate) fn pool() -> &'static PacketPool {
    static POOL: OnceLock<PacketPool> = OnceLock::new();
    POOL.get_or_init(|| {
        PacketPool::builder()
            .max_memory(512 << 20)
            .headroom(24)
            .build()
            .expect("512 MiB of address space")
    })
}

impl Transport for Ours {
    type Listener = Endpoint;
    type Stream = Stream;
    type Client = Endpoint;

    async fn listen() -> (Endpoint, SocketAddr) {
        let server = Self::client();
        let address = server.local_addr();
        (server, address)
    }

    async fn accept(listener: &mut Endpoint) -> Stream {
        listener.accept().await.expect("it is open").into_stream()
    }

    async fn connect(to: SocketAddr) -> Stream {
        Connection::connect(to, pool(), config())
            .expect("a socket")
            .into_stream()
    }

    fn client() -> Endpoint {
        let any = ([127, 0, 0, 1], 0).into();
        Endpoint::bind(any, pool(), config()).expect("a socket")
    }

    async fn connect_from(client: &Endpoint, to: SocketAddr) -> Stream {
        client.connect(to).expect("it has room").into_stream()
    }

    fn beside_the_heap() -> usize {
        let stats = pool().slab().stats();
        let classes = stats.classes().iter();
        let bytes = classes.map(|class| class.in_use as usize * class.chunk_bytes);
        bytes.sum()
    }
}
