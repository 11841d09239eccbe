//! The gateway against a real NATS server, also while that does not read, and against a minimal server made
//! here. The former needs Debian's package `nats-server`; `ci/nats` installs it and runs both:
//!
//!     cargo test -p nats_gateway -- --include-ignored

use futures_util::StreamExt;
use packet_slab::slab_net::PacketPool;
use packet_slab::slab_net::udp::{Transmit, UdpReceiver, UdpSender};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// How long any step may take before the test gives up; no time is asserted.
const TIMEOUT: Duration = Duration::from_secs(60);
const CAP_MIB: u64 = 4;
const PAYLOAD: usize = 1200;

/// A process that is killed when the test ends.
struct Process(Child);

impl Process {
    fn signal(&self, signal: i32) {
        // SAFETY: a system call without pointers; the child has not been waited for, so its id is still its
        // own.
        let result = unsafe { libc::kill(self.0.id() as i32, signal) };
        assert_eq!(result, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server, which must not outlive its output, and where it listens.
fn nats_server() -> (Process, BufReader<ChildStderr>, SocketAddr) {
    let mut server = Command::new("nats-server")
        .args(["--addr", "127.0.0.1", "--port", "-1"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("Debian's package nats-server is not installed: see ci/nats");
    let mut says = BufReader::new(server.stderr.take().unwrap());
    let server = Process(server);
    let (mut line, mut log) = (String::new(), String::new());
    let address = loop {
        line.clear();
        assert!(says.read_line(&mut line).unwrap() > 0, "{log}");
        if let Some((_, address)) = line.split_once("Listening for client connections on ") {
            break address.trim().parse().expect(&line);
        }
        log.push_str(&line);
    };
    (server, says, address)
}

/// What a server sends to a client that connects.
fn info(address: SocketAddr, max_payload: usize) -> String {
    let info = serde_json::json!({
        "server_id": "x", "version": "2.9.10", "go": "go", "host": "127.0.0.1", "headers": true,
        "port": address.port(), "max_payload": max_payload, "proto": 1, "client_id": 1
    });
    format!("INFO {info}\r\n")
}

/// Greets a client and reads nothing after that.
fn greet(mut stream: &TcpStream, info: &str) {
    stream.write_all(info.as_bytes()).unwrap();
    let mut lines = BufReader::with_capacity(1, stream);
    let mut line = String::new();
    while line != "PING\r\n" {
        line.clear();
        lines.read_line(&mut line).unwrap();
    }
    stream.write_all(b"PONG\r\n").unwrap();
}

/// A server that sends its greeting and reads nothing after that.
fn stalled_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        greet(&stream, &info(address, 1 << 20));
        loop {
            std::thread::park();
        }
    });
    address
}

/// A server that accepts payloads of up to so many bytes and sends each to its subscribers.
fn small_server(max_payload: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        serve(stream, &info(address, max_payload), &AtomicU64::new(0));
    });
    address
}

/// Serves one connection until its end, and counts the payloads.
fn serve(mut stream: TcpStream, info: &str, payloads: &AtomicU64) {
    stream.write_all(info.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    let mut subscribed = (String::new(), String::new());
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap_or(0) > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["PING"] => write!(stream, "PONG\r\n").unwrap(),
            ["SUB", subject, .., sid] => subscribed = (subject.into(), sid.into()),
            ["PUB", subject, length] => {
                let mut payload = vec![0; length.parse::<usize>().unwrap() + 2];
                lines.read_exact(&mut payload).unwrap();
                if subject == subscribed.0 {
                    write!(stream, "MSG {subject} {} {length}\r\n", subscribed.1).unwrap();
                    stream.write_all(&payload).unwrap();
                } else {
                    payloads.fetch_add(1, Relaxed);
                }
            }
            _ => {}
        }
        line.clear();
    }
}

/// A server whose first connection reads nothing after the greeting, and ends when `restart` is told to.
fn restarting_server(restart: mpsc::Receiver<()>, payloads: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let info = info(address, 1 << 20);
        let (stream, _) = listener.accept().unwrap();
        greet(&stream, &info);
        restart.recv().unwrap();
        drop(stream);
        let (stream, _) = listener.accept().unwrap();
        serve(stream, &info, &payloads);
    });
    address
}

/// A gateway, its output, and the addresses where it receives and shows its metrics.
fn gateway(nats: SocketAddr) -> (Process, BufReader<ChildStdout>, SocketAddr, SocketAddr) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nats_gateway"))
        .args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
        .args(["--nats", &format!("nats://{nats}")])
        .args(["--max-memory", &CAP_MIB.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    let words: Vec<&str> = line.split([' ', '/', ',']).collect();
    let mut addresses = words.iter().filter_map(|word| word.parse().ok());
    let udp = addresses.next().expect(&line);
    let metrics = addresses.next_back().expect(&line);
    (Process(child), says, udp, metrics)
}

fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn get(metrics: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(metrics).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}

fn stats(metrics: SocketAddr) -> serde_json::Value {
    serde_json::from_str(&get(metrics, "/stats.json")).unwrap()
}

fn in_use_bytes(stats: &serde_json::Value) -> u64 {
    let classes = stats["pools"][0]["classes"].as_array().unwrap();
    let bytes =
        |c: &serde_json::Value| c["in_use"].as_u64().unwrap() * c["chunk_bytes"].as_u64().unwrap();
    classes.iter().map(bytes).sum()
}

/// Returns a number of the summary.
fn field(summary: &str, name: &str) -> u64 {
    let (_, rest) = summary.split_once(&format!(" {name}=")).expect(summary);
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

fn received(metrics: SocketAddr) -> u64 {
    stats(metrics)["sockets"][0]["received_datagrams"]
        .as_u64()
        .unwrap()
}

/// Makes datagrams that begin with their number.
struct Load {
    socket: UdpSocket,
    to: SocketAddr,
    sent: u64,
}

impl Load {
    fn send(&mut self, count: u64) {
        for _ in 0..count {
            let mut payload = [0; PAYLOAD];
            payload[..8].copy_from_slice(&self.sent.to_be_bytes());
            self.socket.send_to(&payload, self.to).unwrap();
            self.sent += 1;
        }
    }
}

#[test]
fn oversized_payloads_are_dropped_and_counted_and_the_others_published() {
    let (mut gateway, mut says, udp, metrics) = gateway(small_server(1000));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for bytes in [10, 5000, 1000, 1001, 10] {
        socket.send_to(&vec![7; bytes], udp).unwrap();
    }
    until("all but two are taken", || {
        let page = get(metrics, "/metrics");
        let refused = page.contains("\ngateway_refused_datagrams_total 2\n");
        (refused && received(metrics) == 5).then_some(())
    });
    // As a service manager would.
    gateway.signal(libc::SIGTERM);
    let mut summary = String::new();
    says.read_line(&mut summary).unwrap();
    let expected = "summary received=5 published=3 unconfirmed=0 refused=2 dropped=0\n";
    assert_eq!(summary, expected);
    assert!(gateway.0.wait().unwrap().success());
}

/// With batches of many datagrams, one of which is half published when the gateway gives up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_datagram_is_accounted_for_if_the_server_never_reads_again() {
    let (mut gateway, mut says, udp, metrics) = gateway(stalled_server());
    let socket = UdpSender::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let fifty = [7; 50 * PAYLOAD];
    let start = Instant::now();
    while stats(metrics)["sockets"][0]["dropped_no_memory"] == 0 {
        assert!(start.elapsed() < TIMEOUT, "never full");
        let fifty = Transmit::new(&fifty, udp).segment_size(PAYLOAD);
        socket.send(&fifty).await.unwrap();
    }
    gateway.signal(libc::SIGTERM);
    let mut summary = String::new();
    says.read_line(&mut summary).unwrap();
    assert!(gateway.0.wait().unwrap().success(), "{summary}");
    assert!(summary.contains(" published=0 "), "{summary}");
}

#[test]
fn what_was_sent_to_a_lost_connection_is_not_confirmed() {
    let (restart, told) = mpsc::channel();
    let payloads = Arc::new(AtomicU64::new(0));
    let server = restarting_server(told, Arc::clone(&payloads));
    let (mut gateway, mut says, udp, metrics) = gateway(server);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sent = 0;
    let mut send = || {
        socket.send_to(&[7; 10], udp).unwrap();
        sent += 1;
        until("taken from the queue", || {
            let queue = &stats(metrics)["queues"][0];
            (queue["delivered"] == sent).then_some(())
        });
    };
    for _ in 0..5 {
        send();
    }
    restart.send(()).unwrap();
    // The client notices when it writes, and connects again.
    until("a payload read", || {
        send();
        (payloads.load(Relaxed) > 0).then_some(())
    });
    send();
    gateway.signal(libc::SIGTERM);
    let mut summary = String::new();
    says.read_line(&mut summary).unwrap();
    assert!(gateway.0.wait().unwrap().success(), "{summary}");
    let (read, published) = (payloads.load(Relaxed), field(&summary, "published"));
    assert!((1..=read).contains(&published), "{read} read: {summary}");
    assert_eq!(
        field(&summary, "unconfirmed"),
        sent - published,
        "{summary}"
    );
}

#[test]
fn the_server_is_named_and_its_password_is_not_shown() {
    let command = |server: SocketAddr| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nats_gateway"));
        command.args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
        command.args(["--nats", &format!("nats://user:secret@{server}")]);
        command
    };
    let server = small_server(1 << 20);
    let mut child = command(server).stdout(Stdio::piped()).spawn().unwrap();
    let mut says = BufReader::new(child.stdout.take().unwrap());
    let gateway = Process(child);
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    assert!(line.contains(&server.to_string()), "{line}");
    assert!(!line.contains("secret"), "{line}");
    drop(gateway);

    // A port that is taken and on which nobody listens.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let server = nobody.local_addr().unwrap();
    let run = command(server).output().unwrap();
    assert_eq!(run.status.code(), Some(2));
    let said = String::from_utf8(run.stderr).unwrap();
    let last = said.lines().last().unwrap();
    assert!(
        last.starts_with("nats_gateway: ") && last.contains(&server.to_string()),
        "{said}"
    );
    assert!(!said.contains("secret"), "{said}");
}

/// What the gateway says to a server whose URL begins with these credentials.
fn said_to_server(credentials: &str) -> serde_json::Value {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_nats_gateway"))
        .args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
        .args(["--nats", &format!("nats://{credentials}@{address}")])
        .spawn();
    let _gateway = Process(child.unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(info(address, 1 << 20).as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(line.strip_prefix("CONNECT ").expect(&line)).unwrap()
}

#[test]
fn the_server_is_told_the_credentials_of_its_url() {
    let said = said_to_server("user:p%40ss");
    assert_eq!(
        (&said["user"], &said["pass"]),
        (&"user".into(), &"p@ss".into()),
        "{said}"
    );
    let said = said_to_server("secret%2Ftoken");
    assert_eq!(said["auth_token"], "secret/token", "{said}");
}

/// SO_REUSEPORT, which several shards need, would share it.
#[test]
fn an_address_that_another_program_has_is_refused_without_reuse_port() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let builder = UdpReceiver::builder(&pool);
    let any = "127.0.0.1:0".parse().unwrap();
    let other = builder.bind_shards(any, 1.try_into().unwrap()).unwrap();
    let address = other[0].local_addr().to_string();
    let run = Command::new(env!("CARGO_BIN_EXE_nats_gateway"))
        .args(["--listen", &address, "--shards", "2"])
        .args(["--nats", "nats://127.0.0.1:1", "--metrics", "127.0.0.1:0"])
        .output()
        .unwrap();
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(!run.status.success());
    assert!(said.contains(&address), "{said}");
}

/// The client is built without WebSockets, and takes their URLs for plain TCP; and a name whose password is empty for
/// a token.
#[test]
fn a_server_that_the_client_would_mistake_is_refused_on_the_command_line() {
    for server in [
        "ws://127.0.0.1:1",
        "http://127.0.0.1:1",
        "nats://user:@127.0.0.1:1",
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_nats_gateway"))
            .args(["--nats", server])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(2), "{server}");
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(said.contains("--nats <URL>"), "{said}");
    }
}

/// It greets like any other, so the URL does not tell. A client without a provider of cryptography would panic.
#[test]
fn a_server_that_demands_tls_is_spoken_to_in_tls() {
    for scheme in ["nats", "tls"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let first_byte = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let info = info(address, 1 << 20).replacen('{', "{\"tls_required\":true,", 1);
            stream.write_all(info.as_bytes()).unwrap();
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            stream.write_all(b"this is no TLS").unwrap();
            byte[0]
        });
        let run = Command::new(env!("CARGO_BIN_EXE_nats_gateway"))
            .args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
            .args(["--nats", &format!("{scheme}://{address}")])
            .output()
            .unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        assert_eq!(run.status.code(), Some(2), "{said}");
        let error = said.lines().find(|line| line.starts_with("nats_gateway: "));
        let server = format!("{scheme}://{address}");
        assert!(error.is_some_and(|line| line.contains(&server)), "{said}");
        // A handshake record.
        assert_eq!(first_byte.join().unwrap(), 22);
    }
}

#[test]
fn a_failure_to_start_names_the_address() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    let server = format!("nats://{}", small_server(1 << 20));
    for (server, metrics, named) in [
        (server.as_str(), metrics.as_str(), metrics.as_str()),
        ("nats://[::1]:1", "127.0.0.1:0", "nats://[::1]:1"),
    ] {
        let run = Command::new(env!("CARGO_BIN_EXE_nats_gateway"))
            .args(["--listen", "127.0.0.1:0", "--metrics", metrics])
            .args(["--nats", server])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(2), "{named}");
        let said = String::from_utf8(run.stderr).unwrap();
        // The client's last events may be logged after it.
        let error = said.lines().find(|line| line.starts_with("nats_gateway: "));
        assert!(error.unwrap().contains(named), "{said}");
    }
}

#[test]
fn an_invalid_subject_is_refused_on_the_command_line() {
    for subject in ["", "a b", ".a", "a.", "udp.>", "*.in"] {
        let run = Command::new(env!("CARGO_BIN_EXE_nats_gateway"))
            .args(["--subject", subject])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(2), "{subject:?}");
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(said.contains("--subject <SUBJECT>"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs nats-server: ci/nats"]
async fn datagrams_reach_nats_and_a_stalled_server_costs_no_memory() {
    let (nats, _says, at) = nats_server();
    let client = async_nats::connect(format!("nats://{at}")).await.unwrap();
    let mut arriving = client.subscribe("udp.in").await.unwrap();
    client.flush().await.unwrap();
    let (gateway, mut says, udp, metrics) = gateway(at);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut load = Load {
        socket,
        to: udp,
        sent: 0,
    };

    // In small steps, so that the kernel drops nothing: everything arrives, in order and whole.
    for _ in 0..50 {
        load.send(40);
        until("received", || {
            (received(metrics) == load.sent).then_some(())
        });
    }
    for number in 0..load.sent {
        let message = tokio::time::timeout(TIMEOUT, arriving.next()).await;
        let payload = message.expect("lost").unwrap().payload;
        assert_eq!(payload.len(), PAYLOAD);
        assert_eq!(payload[..8], number.to_be_bytes());
    }

    let in_steps = load.sent;

    // A server that does not read: the pool fills to its cap and no further, and datagrams that find no
    // memory are dropped and counted.
    nats.signal(libc::SIGSTOP);
    let start = Instant::now();
    let dropped = loop {
        load.send(200);
        let stats = stats(metrics);
        let (used, cap) = (in_use_bytes(&stats), CAP_MIB << 20);
        assert!(used <= cap, "{used} of {cap}");
        let dropped = stats["sockets"][0]["dropped_no_memory"].as_u64().unwrap();
        let queue = stats["queues"][0]["dropped_queue_full"].as_u64().unwrap();
        if dropped + queue > 0 {
            assert!(used > cap / 2, "{used} of {cap}");
            break dropped + queue;
        }
        assert!(start.elapsed() < TIMEOUT, "never full: {stats}");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(dropped > 0);

    // The server reads again: the backlog is published, the memory comes back.
    nats.signal(libc::SIGCONT);
    let arrived = Arc::new(AtomicU64::new(in_steps));
    tokio::spawn({
        let arrived = Arc::clone(&arrived);
        async move {
            while let Some(message) = arriving.next().await {
                assert_eq!(message.payload.len(), PAYLOAD);
                arrived.fetch_add(1, Relaxed);
            }
        }
    });
    until("the backlog is through", || {
        let stats = stats(metrics);
        let waiting = stats["queues"][0]["datagrams"].as_u64().unwrap();
        (waiting == 0).then_some(())
    });
    load.send(40);

    // Ctrl-C: what is left is published, and everything is accounted for.
    gateway.signal(libc::SIGINT);
    let mut summary = String::new();
    says.read_line(&mut summary).unwrap();
    let field = |name| field(&summary, name);
    assert_eq!(field("unconfirmed"), 0, "{summary}");
    assert_eq!(
        field("received"),
        field("published") + field("dropped"),
        "{summary}"
    );
    assert!(field("received") <= load.sent);
    assert!(field("dropped") >= dropped, "{summary}");

    // The subscriber has every message that was published.
    let published = field("published");
    until("the subscriber has it", || {
        (arrived.load(Relaxed) >= published).then_some(())
    });
    assert_eq!(arrived.load(Relaxed), published, "{summary}");
}
