//! The `udp_peers` example as a process of its own.

#[path = "common/example.rs"]
mod example;

use example::example;
use std::process::Command;

/// The number behind `name=` in the last line.
fn count(said: &str, name: &str) -> u64 {
    let last = said.lines().last().unwrap();
    let (_, rest) = last.split_once(&format!(" {name}=")).unwrap();
    let number = rest.split(' ').next().unwrap();
    number.parse().unwrap()
}

#[test]
fn its_clients_get_their_echoes() {
    let ended = Command::new(example("udp_peers")).output().unwrap();
    assert!(ended.status.success());
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains("1000 echoes for 1000 datagrams"), "{said}");
    assert_eq!(count(&said, "peers"), 100);
    assert_eq!(count(&said, "echoed"), 1000);
    assert_eq!(count(&said, "pool_in_use"), 0);
}

#[test]
fn a_failure_is_one_line_with_its_reason() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let reason = std::net::UdpSocket::bind(address).unwrap_err();
    let ended = Command::new(example("udp_peers"))
        .args(["--listen", &address.to_string()])
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(2));
    let said = String::from_utf8(ended.stderr).unwrap();
    let expected = format!("udp_peers: cannot bind UDP {address}: {reason}\n");
    assert_eq!(said, expected);
}

#[cfg(unix)]
#[test]
fn a_peer_too_many_is_refused_until_another_is_silent() {
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader, Read};
    use std::net::UdpSocket;
    use std::process::Stdio;
    use std::time::{Duration, Instant};

    let mut server = Command::new(example("udp_peers"))
        .args(["--listen=127.0.0.1:0", "--max-peers=2", "--idle=2"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(server.stdout.take().unwrap());
    let mut said = String::new();
    out.read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("serving ").unwrap();
    let peers = [(); 3].map(|()| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address).unwrap();
        let timeout = Some(Duration::from_millis(100));
        socket.set_read_timeout(timeout).unwrap();
        socket
    });
    let is_echoed = |socket: &UdpSocket| {
        socket.send(b"hello").unwrap();
        socket.recv(&mut [0; 5]).is_ok()
    };
    // Limits only how long a broken test takes to fail.
    let hang = Instant::now() + Duration::from_secs(60);
    // One of them is refused time and again while the others are served: no accident.
    let (mut refused, mut times) = (0, 0);
    while times < 3 {
        assert!(Instant::now() < hang);
        let echoed = peers.each_ref().map(is_echoed);
        let missing: Vec<_> = (0..3).filter(|&peer| !echoed[peer]).collect();
        times = if missing == [refused] { times + 1 } else { 0 };
        refused = missing.first().copied().unwrap_or(refused);
    }
    while !is_echoed(&peers[refused]) {
        assert!(Instant::now() < hang);
    }
    let pid = Pid::from_child(&server);
    kill_process(pid, Signal::INT).unwrap();
    out.read_to_string(&mut said).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(count(&said, "refused") >= 3);
    assert!(
        count(&said, "peers") >= 3,
        "after one of them was forgotten"
    );
    let ends = ["refused", "dropped", "echoed", "unsent", "lost_by_receiver"];
    let handled = ends.map(|name| count(&said, name)).iter().sum();
    assert_eq!(count(&said, "received"), handled);
    assert_eq!(count(&said, "pool_in_use"), 0);
}
