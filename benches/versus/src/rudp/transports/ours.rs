//! slab-net.

use super::super::streams::Transport;
use slab_net::PacketPool;
use slab_net::rudp::crypto::AesGcm;
use slab_net::rudp::fec::FecShards;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig, Stream};
use std::net::SocketAddr;
use std::sync::OnceLock;

/// slab-net by default, or as [`ENCRYPTED`] and [`WITH_FEC`] say; with GSO and GRO, or without.
pub(crate) struct Ours<const KIND: u8 = UNENCRYPTED, const OFFLOAD: bool = true>;

pub(crate) const UNENCRYPTED: u8 = 0;
/// With AES-256-GCM, which is what quinn's ends agree on: rustls prefers it.
pub(crate) const ENCRYPTED: u8 = 1;
/// With two parity shards for two data shards.
pub(crate) const WITH_FEC: u8 = 2;

/// With so many sessions that their windows together exceed any memory.
pub(crate) const MANY_SESSIONS: u8 = 3;

/// As many sessions from one prefix as a scenario opens.
const SESSIONS: usize = 4096;
/// The most sessions of [`MANY_SESSIONS`].
const MAX_SESSIONS: usize = 100_000;

fn config(kind: u8, offload: bool) -> EndpointConfig {
    let config = EndpointConfig::new(SessionConfig::fast().window(1024, 1024).stream(true))
        .offload(offload)
        .max_sessions(SESSIONS)
        .max_half_open(SESSIONS, SESSIONS)
        .backlog(SESSIONS);
    match kind {
        ENCRYPTED => {
            config.aes_gcm(AesGcm::new(b"thirty-two bytes of a secret key").expect("a key"))
        }
        WITH_FEC => config.fec(FecShards::new(2, 2).expect("shards")),
        MANY_SESSIONS => config
            .max_memory(1 << 40)
            .max_sessions(MAX_SESSIONS)
            .max_half_open(MAX_SESSIONS, MAX_SESSIONS),
        _ => config,
    }
}

/// One pool for all ends of all runs, with a cap that 256 sessions with full windows do not reach, as the
/// peers have no cap.
fn pool() -> &'static PacketPool {
    static POOL: OnceLock<PacketPool> = OnceLock::new();
    POOL.get_or_init(|| {
        PacketPool::builder()
            .max_memory(4 << 30)
            .headroom(24)
            .build()
            .expect("4 GiB of address space")
    })
}

impl<const KIND: u8, const OFFLOAD: bool> Transport for Ours<KIND, OFFLOAD> {
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
        Connection::connect(to, pool(), config(KIND, OFFLOAD))
            .expect("a socket")
            .into_stream()
    }

    fn client() -> Endpoint {
        let any = ([127, 0, 0, 1], 0).into();
        Endpoint::bind(any, pool(), config(KIND, OFFLOAD)).expect("a socket")
    }

    async fn connect_from(client: &Endpoint, to: SocketAddr) -> Stream {
        client.connect(to).expect("it has room").into_stream()
    }

    async fn wait_until_delivered(stream: &mut Stream) {
        let finished = stream.connection().finish().await;
        finished.expect("delivered");
    }

    fn pool_bytes_in_use() -> usize {
        let stats = pool().slab().stats();
        let classes = stats.classes().iter();
        let bytes = classes.map(|class| class.in_use as usize * class.chunk_bytes);
        bytes.sum()
    }
}
