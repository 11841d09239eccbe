//! With the crates `kcp` and `tokio_kcp` at the other end, both ways round.

use crate::common::proxy;
use crate::common::sockets::{any, bytes, pool};
use slab_net::Packet;
use slab_net::rudp::{Congestion, Connection, Endpoint, EndpointConfig, SendError, SessionConfig};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_kcp::{KcpConfig, KcpListener, KcpNoDelayConfig, KcpStream};

const TIMEOUT: Duration = Duration::from_secs(30);
const LENGTHS: [usize; 6] = [1, 24, 1375, 1377, 9000, 100_000];

#[derive(Debug, Clone, Copy)]
struct Case {
    stream: bool,
    conv: u32,
    mtu: usize,
    interval: u64,
    loss: u64,
}

/// Each MTU with each interval, and each interval in both modes. Only kcp-go is tried with conversation 0: to
/// tokio_kcp it means that there is none yet. Its server draws another number and answers with that, and its client
/// sends no more than one segment before it has seen another number.
const CASES: [Case; 7] = [
    Case {
        stream: true,
        conv: 80,
        mtu: 576,
        interval: 10,
        loss: 0,
    },
    Case {
        stream: false,
        conv: 81,
        mtu: 1200,
        interval: 40,
        loss: 0,
    },
    Case {
        stream: false,
        conv: 1,
        mtu: 1400,
        interval: 10,
        loss: 0,
    },
    Case {
        stream: true,
        conv: u32::MAX,
        mtu: 1400,
        interval: 40,
        loss: 0,
    },
    Case {
        stream: false,
        conv: 77,
        mtu: 576,
        interval: 40,
        loss: 0,
    },
    Case {
        stream: true,
        conv: 78,
        mtu: 1200,
        interval: 10,
        loss: 0,
    },
    Case {
        stream: false,
        conv: 79,
        mtu: 1400,
        interval: 10,
        loss: 30,
    },
];

impl Case {
    /// The crate accepts no more than 127 segments at a time.
    fn lengths(&self) -> impl Iterator<Item = (usize, usize)> {
        let most = 127 * (self.mtu - 24);
        LENGTHS
            .into_iter()
            .map(move |len| len.min(most))
            .enumerate()
    }

    fn ours(&self) -> EndpointConfig {
        let session = SessionConfig::default()
            .stream(self.stream)
            .mtu(self.mtu)
            .window(256, 256)
            .nodelay(self.interval == 10)
            .fast_resend(if self.interval == 10 { 2 } else { 0 })
            .congestion(if self.interval == 10 {
                Congestion::Off
            } else {
                Congestion::Reno
            })
            .interval(Duration::from_millis(self.interval))
            .linger(Duration::from_secs(1));
        EndpointConfig::new(session)
    }

    fn theirs(&self) -> KcpConfig {
        KcpConfig {
            mtu: self.mtu,
            nodelay: if self.interval == 10 {
                KcpNoDelayConfig::fastest()
            } else {
                KcpNoDelayConfig::normal()
            },
            wnd_size: (256, 256),
            stream: self.stream,
            flush_write: true,
            ..KcpConfig::default()
        }
    }
}

/// Exchanges messages of all lengths with a peer that echoes them.
async fn exchange(client: Connection, case: Case) {
    if case.stream {
        let mut stream = client.into_stream();
        for (seed, len) in case.lengths() {
            let data = bytes(seed as u64, len);
            stream.write_all(&data).await.unwrap();
            let mut answer = vec![0; len];
            stream.read_exact(&mut answer).await.unwrap();
            assert!(answer == data, "{case:?}: {len} bytes");
        }
    } else {
        for (seed, len) in case.lengths() {
            let data = bytes(seed as u64, len);
            client.send_slice(&data).await.unwrap();
            let answer = client.recv().await.unwrap().unwrap();
            assert!(answer == data[..], "{case:?}: {len} bytes");
        }
        assert!(!case.stream && client.stats().rejected_datagrams() == 0);
    }
}

#[tokio::test]
async fn our_client_with_their_server() {
    for case in CASES {
        let mut listener = KcpListener::bind(case.theirs(), any()).await.unwrap();
        let mut address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buf = vec![0; 200_000];
            while let Ok(len) = stream.recv(&mut buf).await {
                if len == 0 || stream.send(&buf[..len]).await.is_err() {
                    break;
                }
            }
        });
        if case.loss > 0 {
            address = proxy::lossy(address, case.loss, 5).await;
        }
        let pool = pool();
        let client = Connection::connect_as(address, case.conv, &pool, case.ours()).unwrap();
        timeout(TIMEOUT, exchange(client, case))
            .await
            .expect("in time");
        server.abort();
    }
}

/// A peer whose address is not proved is sent little, and may send messages of 32 segments. It proves its address
/// before it is sent anything.
#[tokio::test]
async fn their_client_with_a_server_that_sends_little_or_much() {
    let case = CASES[2];
    for (there, back) in [(1, 100_000), (100_000, 1)] {
        let pool = pool();
        let server = Endpoint::bind(any(), &pool, case.ours()).unwrap();
        let config = case.theirs();
        let address = server.local_addr();
        let mut client = KcpStream::connect_with_conv(&config, case.conv, address)
            .await
            .unwrap();
        let talk = async {
            assert_eq!(client.send(&bytes(1, there)).await.unwrap(), there);
            let connection = server.accept().await.unwrap();
            let message = connection.recv().await.unwrap().unwrap();
            assert!(message == bytes(1, there)[..]);
            connection.send_slice(&bytes(2, back)).await.unwrap();
            let mut answer = vec![0; 200_000];
            let len = client.recv(&mut answer).await.unwrap();
            assert!(answer[..len] == bytes(2, back));
            connection.ready().await.unwrap();
            let refused = connection.send_datagram(Packet::from_static(b"x"));
            assert_eq!(refused.unwrap_err().error, SendError::UnsupportedByPeer);
        };
        timeout(TIMEOUT, talk).await.expect("in time");
        let stats = server.stats();
        assert_eq!((stats.sessions, stats.half_open), (1, 0), "{there}, {back}");
    }
}

#[tokio::test]
async fn their_client_with_our_server() {
    for case in CASES {
        let pool = pool();
        let server = Endpoint::bind(any(), &pool, case.ours()).unwrap();
        let mut address = server.local_addr();
        let echo = tokio::spawn(async move {
            let connection = server.accept().await.unwrap();
            assert_eq!(connection.conv(), case.conv);
            if case.stream {
                let mut stream = connection.into_stream();
                while let Ok(Some(bytes)) = stream.read_packet().await {
                    stream.write_all(&bytes).await.unwrap();
                }
            } else {
                while let Ok(Some(message)) = connection.recv().await {
                    connection.send(message).await.unwrap();
                }
            }
        });
        if case.loss > 0 {
            address = proxy::lossy(address, case.loss, 6).await;
        }
        let mut client = KcpStream::connect_with_conv(&case.theirs(), case.conv, address)
            .await
            .unwrap();
        let talk = async {
            for (seed, len) in case.lengths() {
                let data = bytes(seed as u64, len);
                let mut sent = 0;
                while sent < len {
                    sent += client.send(&data[sent..]).await.unwrap();
                }
                let (mut answer, mut buf) = (Vec::new(), vec![0; 200_000]);
                while answer.len() < len {
                    let got = client.recv(&mut buf).await.unwrap();
                    answer.extend_from_slice(&buf[..got]);
                    assert!(
                        case.stream || answer.len() == len,
                        "{case:?}: boundaries kept"
                    );
                }
                assert!(answer == data, "{case:?}: {len} bytes");
            }
        };
        timeout(TIMEOUT, talk).await.expect("in time");
        echo.abort();
    }
}

/// A peer that assumes a window of 128, as tokio_kcp and C's ikcp do, puts more messages than the 32 that a session
/// begins with into its first datagram.
#[tokio::test]
async fn their_client_begins_with_a_datagram_beyond_the_first_window() {
    let (case, pool) = (CASES[2], pool());
    let server = Endpoint::bind(any(), &pool, case.ours()).unwrap();
    let config = KcpConfig {
        flush_write: false,
        ..case.theirs()
    };
    let mut client = KcpStream::connect_with_conv(&config, case.conv, server.local_addr())
        .await
        .unwrap();
    let talk = async {
        for n in 0..100_u8 {
            client.send(&[n]).await.unwrap();
        }
        let connection = server.accept().await.unwrap();
        for n in 0..100_u8 {
            let message = connection.recv().await.unwrap().unwrap();
            assert_eq!(message, [n][..]);
        }
    };
    timeout(TIMEOUT, talk).await.expect("in time");
}
