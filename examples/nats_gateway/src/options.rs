//! The command line.

#[path = "../../common/address.rs"]
mod address;

use address::address;
use async_nats::{ConnectOptions, ServerAddr, Subject};
use clap::Parser;
use packet_slab::slab_metrics::DEFAULT_ADDRESS;
use percent_encoding::percent_decode_str;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;

/// Receives UDP datagrams and publishes each of them to a NATS server, until Ctrl-C or SIGTERM.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Address to receive on; port 0 picks any free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4433", value_parser = address)]
    pub(crate) listen: SocketAddr,

    /// Receiving sockets; each has its own connection to the NATS server
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) shards: NonZeroUsize,

    /// Share the UDP address with other gateways on this machine, by SO_REUSEPORT
    #[arg(long)]
    pub(crate) reuse_port: bool,

    /// URL of the NATS server; tls:// insists on TLS, nats:// uses it if the server demands it. USER:PASSWORD@ or
    /// TOKEN@ may precede the host, with reserved characters as %40
    #[arg(long, value_name = "URL", default_value = "nats://127.0.0.1:4222", value_parser = server)]
    pub(crate) nats: ServerAddr,

    /// Subject to publish the datagrams to
    #[arg(long, default_value = "udp.in", value_parser = subject)]
    pub(crate) subject: Subject,

    /// The pool's memory cap in MiB: at most this much data waits for the NATS server
    #[arg(long, value_name = "MIB", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) max_memory: u16,

    /// Address to serve /metrics and the live page on; port 0 picks any free port
    #[arg(long, value_name = "ADDR", default_value_t = DEFAULT_ADDRESS, value_parser = address)]
    pub(crate) metrics: SocketAddr,
}

/// Parses the URL of a server that the client can reach: it is built without WebSockets, and would take their
/// URLs for plain TCP.
fn server(text: &str) -> Result<ServerAddr, String> {
    let server: ServerAddr = text.parse().map_err(|error: io::Error| error.to_string())?;
    // Of USER:@ it keeps no more than of TOKEN@.
    let has_empty_password = server.password().is_none() && text.contains(":@");
    match server.scheme() {
        "nats" | "tls" if has_empty_password => Err("an empty password is not supported".into()),
        "nats" | "tls" => Ok(server),
        other => Err(format!(
            "{other} is not supported; expected nats://HOST:PORT or tls://HOST:PORT"
        )),
    }
}

/// Parses a subject that can be published to.
fn subject(text: &str) -> Result<Subject, String> {
    let subject = Subject::validated(text).map_err(|_| {
        "expected non-empty words without spaces, separated by dots, such as udp.in".to_owned()
    })?;
    if text.split('.').any(|word| matches!(word, "*" | ">")) {
        return Err(
            "the wildcards * and > are for subscribers; a publisher needs one subject".into(),
        );
    }
    Ok(subject)
}

impl Options {
    /// The NATS server, without the name and password that its URL may have.
    pub(crate) fn server(&self) -> String {
        let (scheme, host, port) = (self.nats.scheme(), self.nats.host(), self.nats.port());
        match host.contains(':') {
            true => format!("{scheme}://[{host}]:{port}"),
            false => format!("{scheme}://{host}:{port}"),
        }
    }

    /// How to connect to the NATS server: the client itself ignores the name and password, or the token, in a URL.
    pub(crate) fn connect_options(&self) -> ConnectOptions {
        let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let options = ConnectOptions::new();
        match (self.nats.username(), self.nats.password()) {
            (Some(user), Some(password)) => {
                options.user_and_password(decoded(user), decoded(password))
            }
            (Some(token), None) => options.token(decoded(token)),
            (None, _) => options,
        }
    }

    /// The pool's cap in bytes.
    pub(crate) fn max_memory_bytes(&self) -> usize {
        usize::from(self.max_memory) << 20
    }
}
