//! quinn: QUIC with TLS and its own congestion control (CUBIC), one stream per session.

use super::super::streams::Transport;
use super::socket;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::PrivatePkcs8KeyDer;
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, Incoming};
use quinn::{RecvStream, SendStream};
use quinn::{ServerConfig, TokioRuntime, TransportConfig};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;

pub(crate) struct Quinn;

const NAME: &str = "localhost";
/// As much as the windows of the others hold.
const WINDOW: u32 = 1024 * 1400;

struct Configs {
    server: ServerConfig,
    client: ClientConfig,
}

fn configs() -> &'static Configs {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed([NAME.into()]).expect("a certificate");
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).expect("a certificate");
        let mut server =
            ServerConfig::with_single_cert(vec![certificate], key.into()).expect("a key");
        let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).expect("roots");
        let mut transport = TransportConfig::default();
        transport
            .stream_receive_window(WINDOW.into())
            .receive_window(WINDOW.into())
            .send_window(WINDOW.into());
        let transport = Arc::new(transport);
        server.transport_config(Arc::clone(&transport));
        client.transport_config(transport);
        Configs { server, client }
    })
}

fn endpoint(server: Option<ServerConfig>) -> Endpoint {
    let runtime = Arc::new(TokioRuntime);
    let mut endpoint =
        Endpoint::new(EndpointConfig::default(), server, socket(), runtime).expect("an endpoint");
    endpoint.set_default_client_config(configs().client.clone());
    endpoint
}

async fn open(endpoint: &Endpoint, to: SocketAddr) -> Stream {
    let connection = endpoint.connect(to, NAME).expect("an address");
    let connection = connection.await.expect("a connection");
    let (send, recv) = connection.open_bi().await.expect("a stream");
    Stream {
        send,
        recv,
        _connection: connection,
    }
}

/// Both halves, and what must not be dropped before them.
pub(crate) struct Stream {
    send: SendStream,
    recv: RecvStream,
    _connection: Connection,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        AsyncRead::poll_read(Pin::new(&mut self.recv), cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.send), cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.send), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.send), cx)
    }
}

/// Sessions whose handshakes are done. Each handshake has its own task; otherwise one that loses a datagram
/// would hold up all behind it.
pub(crate) struct Listener {
    ready: mpsc::UnboundedReceiver<Stream>,
}

async fn handshake(incoming: Incoming, ready: mpsc::UnboundedSender<Stream>) {
    let connection = incoming.await.expect("a connection");
    let (send, recv) = connection.accept_bi().await.expect("a stream");
    // Nobody waits for it once a run is over.
    let _ = ready.send(Stream {
        send,
        recv,
        _connection: connection,
    });
}

impl Transport for Quinn {
    type Listener = Listener;
    type Stream = Stream;
    type Client = Endpoint;

    async fn listen() -> (Listener, SocketAddr) {
        let server = endpoint(Some(configs().server.clone()));
        let address = server.local_addr().expect("an address");
        let (done, ready) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(incoming) = server.accept().await {
                tokio::spawn(handshake(incoming, done.clone()));
            }
        });
        (Listener { ready }, address)
    }

    async fn accept(listener: &mut Listener) -> Stream {
        listener.ready.recv().await.expect("it is open")
    }

    async fn connect(to: SocketAddr) -> Stream {
        open(&endpoint(None), to).await
    }

    fn client() -> Endpoint {
        endpoint(None)
    }

    async fn connect_from(client: &Endpoint, to: SocketAddr) -> Stream {
        open(client, to).await
    }
}
