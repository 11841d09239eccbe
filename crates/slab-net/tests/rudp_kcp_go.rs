//! With kcp-go v5.6.72 at the other end, both ways round: `interop/kcp-go`, built with Go and, the first time, its
//! module proxy. Without Go or the proxy the tests say so and run nothing; if `NEED_KCP_GO` is set (`ci/rudp`),
//! that is a failure.
//!
//! ```sh
//! cargo test -p slab-net --features fec,aes-gcm --test rudp_kcp_go
//! ```

#[path = "rudp/common/mod.rs"]
mod common;

use common::proxy;
use common::sockets::{any, bytes, pool};
use slab_net::rudp::{Congestion, Endpoint, EndpointConfig, SessionConfig};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, fs, io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(60);
const LENGTHS: [usize; 6] = [1, 24, 1375, 1377, 9000, 100_000];
const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

#[derive(Debug, Clone, Copy)]
struct Case {
    stream: bool,
    conv: u32,
    mtu: usize,
    interval: u64,
    /// Datagrams lost, repeated and delayed on the way, per thousand each.
    loss: u64,
}

const fn case(stream: bool, conv: u32, mtu: usize, interval: u64) -> Case {
    Case {
        stream,
        conv,
        mtu,
        interval,
        loss: 0,
    }
}

/// The conversation numbers at the limits, each MTU with each interval, each interval in both modes, and a path on
/// which error correction has something to do.
const CASES: [Case; 9] = [
    case(false, 0, 1400, 10),
    case(true, 1, 1200, 40),
    case(false, u32::MAX, 576, 10),
    case(true, 0, 1400, 40),
    case(false, 1, 1200, 10),
    case(true, u32::MAX, 576, 40),
    case(false, 1, 1400, 40),
    case(true, 0, 1200, 10),
    Case {
        loss: 100,
        ..case(false, 1, 1400, 10)
    },
];

/// The protection around the datagrams.
#[derive(Debug, Clone, Copy, Default)]
struct Protection {
    shards: Option<(usize, usize)>,
    /// The length of the key in bytes, from [`KEY`].
    key: Option<usize>,
}

const PLAIN: Protection = Protection {
    shards: None,
    key: None,
};

impl Case {
    fn config(&self, protection: Protection) -> EndpointConfig {
        let eager = self.interval == 10;
        let session = SessionConfig::default()
            .stream(self.stream)
            .mtu(self.mtu)
            .window(256, 256)
            .nodelay(eager)
            .fast_resend(if eager { 2 } else { 0 })
            .congestion(if eager {
                Congestion::Off
            } else {
                Congestion::Reno
            })
            .interval(Duration::from_millis(self.interval))
            .linger(Duration::from_secs(1));
        protection.apply_to(EndpointConfig::new(session))
    }

    fn peer(&self, program: &PathBuf, protection: Protection, mode: &str, address: &str) -> Child {
        let mut command = Command::new(program);
        command
            .arg(format!("-mtu={}", self.mtu))
            .arg(format!("-interval={}", self.interval))
            .arg(format!("-conv={}", self.conv))
            .arg(format!("-stream={}", self.stream))
            .arg("-megabytes=1")
            .arg("-window=256");
        if let Some((data, parity)) = protection.shards {
            command.arg(format!("-shards={data},{parity}"));
        }
        if let Some(bytes) = protection.key {
            command.arg(format!("-key={}", &KEY[..2 * bytes]));
        }
        command
            .args([mode, address])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built")
    }
}

impl Protection {
    #[cfg(not(all(feature = "fec", feature = "aes-gcm")))]
    fn apply_to(self, config: EndpointConfig) -> EndpointConfig {
        config
    }

    #[cfg(all(feature = "fec", feature = "aes-gcm"))]
    fn apply_to(self, mut config: EndpointConfig) -> EndpointConfig {
        use slab_net::rudp::{crypto::AesGcm, fec::FecShards};
        if let Some((data, parity)) = self.shards {
            config = config.fec(FecShards::new(data, parity).unwrap());
        }
        if let Some(bytes) = self.key {
            let digit = |at| u8::from_str_radix(&KEY[at..at + 2], 16).unwrap();
            let key: Vec<u8> = (0..bytes).map(|at| digit(2 * at)).collect();
            config = config.aes_gcm(AesGcm::new(&key).unwrap());
        }
        config
    }
}

/// The Go program, built once; `None` if it cannot be built.
fn program() -> Option<&'static PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(build).as_ref()
}

fn build() -> Option<PathBuf> {
    let go = || {
        let mut go = Command::new("go");
        go.current_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../interop/kcp-go"));
        go
    };
    let works =
        |args: &[&str]| matches!(go().args(args).output(), Ok(output) if output.status.success());
    if !works(&["version"]) {
        return skip("Go is not installed");
    }
    if !works(&["mod", "download"]) {
        return skip("Go's module proxy is out of reach");
    }
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kcp-go-peer");
    fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let built = go()
        // The checkout may belong to somebody else, and then git tells Go nothing about it.
        .args(["build", "-buildvcs=false", "-o"])
        .args([&program, &PathBuf::from(".")])
        .status();
    assert!(built.expect("Go is there").success(), "go build");
    Some(program)
}

fn skip(why: &str) -> Option<PathBuf> {
    assert!(env::var_os("NEED_KCP_GO").is_none(), "{why}");
    // `eprintln!` would be captured by the test harness.
    let _ = writeln!(
        io::stderr(),
        "skipped: nothing was tried with kcp-go, as {why}"
    );
    None
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn our_client_with_their_server(protection: Protection) {
    let Some(program) = program() else { return };
    for case in CASES {
        let mut server = Killed(case.peer(program, protection, "echo", &any().to_string()));
        let mut line = String::new();
        let out = server.0.stdout.as_mut().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(out), &mut line).unwrap();
        let mut address = line.trim().parse().unwrap();
        if case.loss > 0 {
            address = proxy::lossy(address, case.loss, 3).await;
        }
        let (pool, config) = (pool(), case.config(protection));
        let endpoint = Endpoint::bind(any(), &pool, config).unwrap();
        let client = endpoint.connect_as(address, case.conv).unwrap();
        let exchange = async {
            for (seed, len) in LENGTHS.into_iter().enumerate() {
                let data = bytes(seed as u64, len);
                client.send_slice(&data).await.unwrap();
                // kcp-go sends each segment as a message of its own.
                let mut answer = Vec::new();
                while answer.len() < len {
                    answer.extend_from_slice(&client.recv().await.unwrap().unwrap());
                }
                assert!(answer == data, "{case:?} {protection:?}: {len} bytes");
            }
        };
        timeout(TIMEOUT, exchange).await.expect("in time");
        assert_eq!(client.stats().rejected_datagrams(), 0);
        assert!(client.stats().sent_datagrams > 0);
        assert_recovered(&endpoint, case, protection);
    }
}

/// Checks that our end recovered something, if it had to.
fn assert_recovered(endpoint: &Endpoint, case: Case, protection: Protection) {
    #[cfg(feature = "fec")]
    if case.loss > 0 && protection.shards.is_some() {
        let stats = endpoint.stats().fec;
        assert!(stats.recovered > 0, "{case:?} {protection:?}: {stats:?}");
    }
    let _ = (endpoint, case, protection);
}

async fn their_client_with_our_server(protection: Protection) {
    let Some(program) = program() else { return };
    for case in CASES {
        let (pool, config) = (pool(), case.config(protection));
        let server = Endpoint::bind(any(), &pool, config).unwrap();
        let mut address = server.local_addr();
        if case.loss > 0 {
            address = proxy::lossy(address, case.loss, 4).await;
        }
        let client = case.peer(program, protection, "ask", &address.to_string());
        let echoing = server.clone();
        let echo = tokio::spawn(async move {
            let connection = echoing.accept().await.unwrap();
            assert_eq!(connection.conv(), case.conv);
            if case.stream {
                let mut stream = connection.into_stream();
                let mut buf = vec![0; 64 << 10];
                while let Ok(len) = stream.read(&mut buf).await {
                    if stream.write_all(&buf[..len]).await.is_err() {
                        break;
                    }
                }
            } else {
                while let Ok(Some(message)) = connection.recv().await {
                    connection.send(message).await.unwrap();
                }
            }
        });
        let output = tokio::task::spawn_blocking(move || client.wait_with_output().unwrap());
        let output = timeout(TIMEOUT, output).await.expect("in time").unwrap();
        assert!(
            output.status.success(),
            "{case:?} {protection:?}: it tells why on its standard error"
        );
        let said = String::from_utf8(output.stdout).unwrap();
        let recovered = said.trim().strip_prefix("recovered ");
        let recovered: u64 = recovered.and_then(|n| n.parse().ok()).expect(&said);
        let lossy = case.loss > 0 && protection.shards.is_some();
        assert!(!lossy || recovered > 0, "{case:?} {protection:?}");
        assert_recovered(&server, case, protection);
        let stats = server.stats();
        assert_eq!((stats.unopened, stats.total.rejected_datagrams()), (0, 0));
        #[cfg(feature = "fec")]
        {
            assert_eq!(stats.fec.received_parity > 0, protection.shards.is_some());
            assert_eq!(stats.fec.rejected, 0);
        }
        echo.abort();
    }
}

/// A server that sends nothing still learns that its peer is at the address that it claims.
#[tokio::test]
async fn their_client_with_our_server_that_only_receives() {
    let Some(program) = program() else { return };
    for case in CASES {
        let (pool, config) = (pool(), case.config(PLAIN));
        let server = Endpoint::bind(any(), &pool, config).unwrap();
        let mut address = server.local_addr();
        if case.loss > 0 {
            address = proxy::lossy(address, case.loss, 4).await;
        }
        let mut client = Killed(case.peer(program, PLAIN, "fill", &address.to_string()));
        let receive = async {
            let mut stream = server.accept().await.unwrap().into_stream();
            let mut received = 0;
            while received < 1 << 20 {
                received += stream.read_packet().await.unwrap().unwrap().len();
            }
            // The server asks again if that was lost.
            while server.stats().half_open > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            stream.write_all(b"all of it").await.unwrap();
            stream
        };
        let _stream = timeout(TIMEOUT, receive).await.expect("in time");
        let status = tokio::task::spawn_blocking(move || client.0.wait().unwrap());
        let status = timeout(TIMEOUT, status).await.expect("in time").unwrap();
        assert!(status.success(), "{case:?}");
    }
}

#[tokio::test]
async fn our_client_with_their_server_plain() {
    our_client_with_their_server(PLAIN).await;
}

#[tokio::test]
async fn their_client_with_our_server_plain() {
    their_client_with_our_server(PLAIN).await;
}

#[cfg(all(feature = "fec", feature = "aes-gcm"))]
mod protected {
    use super::*;

    const FEC: Protection = Protection {
        shards: Some((10, 3)),
        key: None,
    };
    const AES: Protection = Protection {
        shards: None,
        key: Some(16),
    };
    const BOTH: Protection = Protection {
        shards: Some((2, 2)),
        key: Some(32),
    };

    #[tokio::test]
    async fn our_client_with_their_server_and_error_correction() {
        our_client_with_their_server(FEC).await;
    }

    #[tokio::test]
    async fn their_client_with_our_server_and_error_correction() {
        their_client_with_our_server(FEC).await;
    }

    #[tokio::test]
    async fn our_client_with_their_server_and_aes_gcm() {
        our_client_with_their_server(AES).await;
    }

    #[tokio::test]
    async fn their_client_with_our_server_and_aes_gcm() {
        their_client_with_our_server(AES).await;
    }

    #[tokio::test]
    async fn our_client_with_their_server_and_both() {
        our_client_with_their_server(BOTH).await;
    }

    #[tokio::test]
    async fn their_client_with_our_server_and_both() {
        their_client_with_our_server(BOTH).await;
    }
}
