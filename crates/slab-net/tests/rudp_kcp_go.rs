//! With kcp-go at the other end, both ways round. Needs Go, and its module proxy for the first
//! time, so it runs only when asked for:
//!
//! ```sh
//! cargo test -p slab-net --test rudp_kcp_go -- --ignored
//! ```

use slab_net::PacketPool;
use slab_net::rudp::{Congestion, Connection, Endpoint, EndpointConfig, SessionConfig};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{fs, io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(60);
const LENGTHS: [usize; 6] = [1, 24, 1375, 1377, 9000, 100_000];

#[derive(Debug, Clone, Copy)]
struct Case {
    stream: bool,
    conv: u32,
    mtu: usize,
    interval: u64,
}

/// Both modes; the conversations at the edges; each MTU; each interval.
const CASES: [Case; 4] = [
    Case {
        stream: false,
        conv: 0,
        mtu: 1400,
        interval: 10,
    },
    Case {
        stream: true,
        conv: 1,
        mtu: 1200,
        interval: 40,
    },
    Case {
        stream: false,
        conv: u32::MAX,
        mtu: 576,
        interval: 10,
    },
    Case {
        stream: true,
        conv: 77,
        mtu: 1400,
        interval: 10,
    },
];

impl Case {
    fn config(&self) -> EndpointConfig {
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
        EndpointConfig::new(session)
    }

    fn peer(&self, mode: &str, address: &str) -> Child {
        Command::new(peer())
            .args([
                &format!("-mtu={}", self.mtu),
                &format!("-interval={}", self.interval),
            ])
            .args([
                &format!("-conv={}", self.conv),
                &format!("-stream={}", self.stream),
            ])
            .args(["-window=256", mode, address])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was just built")
    }
}

/// The Go program, built once.
fn peer() -> &'static PathBuf {
    static PEER: OnceLock<PathBuf> = OnceLock::new();
    PEER.get_or_init(|| {
        let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../interop/kcp-go");
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kcp-go-peer");
        fs::create_dir_all(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let built = Command::new("go")
            .current_dir(sources)
            .args(["build", "-o"])
            .args([&program, &PathBuf::from(".")])
            .status();
        assert!(built.expect("Go is needed").success(), "go build");
        program
    })
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pool() -> PacketPool {
    PacketPool::builder()
        .max_memory(32 << 20)
        .headroom(24)
        .build()
        .unwrap()
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251 + seed) as u8).collect()
}

#[tokio::test]
#[ignore = "needs Go"]
async fn our_client_with_their_server() {
    for case in CASES {
        let mut server = Killed(case.peer("echo", "127.0.0.1:0"));
        let mut line = String::new();
        let out = server.0.stdout.as_mut().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(out), &mut line).unwrap();
        let address = line.trim().parse().unwrap();
        let pool = pool();
        let client = Connection::connect_as(address, case.conv, &pool, case.config()).unwrap();
        let exchange = async {
            for (seed, len) in LENGTHS.into_iter().enumerate() {
                let data = bytes(seed, len);
                client.send_slice(&data).await.unwrap();
                // It sends each segment as a message of its own.
                let mut answer = Vec::new();
                while answer.len() < len {
                    answer.extend_from_slice(&client.recv().await.unwrap().unwrap());
                }
                assert!(answer == data, "{case:?}: {len} bytes");
            }
        };
        timeout(SOON, exchange).await.expect("in time");
        assert_eq!(client.stats().rejected_datagrams(), 0);
        assert!(!client.stats().sent_datagrams.eq(&0));
    }
}

#[tokio::test]
#[ignore = "needs Go"]
async fn their_client_with_our_server() {
    for case in CASES {
        let pool = pool();
        let server = Endpoint::bind("127.0.0.1:0".parse().unwrap(), &pool, case.config()).unwrap();
        let mut client = case.peer("ask", &server.local_addr().to_string());
        let echo = tokio::spawn(async move {
            let connection = server.accept().await.unwrap();
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
        let status = tokio::task::spawn_blocking(move || client.wait().unwrap());
        let status = timeout(SOON, status).await.expect("in time").unwrap();
        assert!(
            status.success(),
            "{case:?}: it tells why on its standard error"
        );
        echo.abort();
    }
}
