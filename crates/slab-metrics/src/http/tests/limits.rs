//! The limits of connections and headers, how connections end, and what is compressed.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream as StdTcpStream;
use std::pin::{Pin, pin};
use std::task::Poll;

/// Runs what can run of `serving` now.
async fn poll_once(serving: &mut Pin<&mut impl Future<Output = ()>>) {
    std::future::poll_fn(|context| {
        assert!(serving.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

async fn for_one_connection() -> MetricsServer {
    MetricsServer::builder(Exporter::new(Collector::new()))
        .address(([127, 0, 0, 1], 0).into())
        .max_connections(1)
        .bind()
        .await
        .unwrap()
}

#[test]
fn a_server_has_the_documented_limits_unless_told_otherwise() {
    let builder = MetricsServer::builder(Exporter::new(Collector::new()));
    let limits = builder.limits;
    assert_eq!(limits.connections, 16);
    assert_eq!(limits.header_read_timeout, Duration::from_secs(10));
    assert_eq!(limits.connection_lifetime, Duration::from_secs(60));
    assert_eq!(limits.final_response_timeout, Duration::from_secs(5));
    assert_eq!(builder.max_connections(0).limits.connections, 1);
}

#[tokio::test]
async fn a_header_may_have_8_kib_and_100_fields_and_no_more() {
    let server = Running::start(|_| ()).await;
    let head = "GET /healthz HTTP/1.1\r\nconnection: close\r\n";
    let long = |bytes: usize| format!("{head}x: {}\r\n\r\n", "a".repeat(bytes - head.len() - 7));
    let many = |fields: usize| format!("{head}{}\r\n", "x: y\r\n".repeat(fields - 1));
    for fits in [long(8100), many(100)] {
        let answer = server.exchange(fits.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    for (count, refused) in (1..).zip([long(8300), many(101)]) {
        let answer = server.exchange(refused.as_bytes()).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431 "),
            "{answer}"
        );
        server.until_ended(End::Malformed, count).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_refusal_is_a_whole_answer_and_no_reset() {
    let server = for_one_connection().await;
    let address = server.local_addr();
    let mut serving = pin!(server.serve(std::future::pending()));
    let _first = TcpStream::connect(address).await.unwrap();
    // The shortest, and about the longest that is not refused for its length.
    for field in [0, 8000] {
        let mut second = TcpStream::connect(address).await.unwrap();
        // Its request is there before it is refused.
        let asks = request("GET", "/metrics").replace("\r\n\r\n", "\r\nx: ");
        let asks = format!("{asks}{}\r\n\r\n", "a".repeat(field));
        second.write_all(asks.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::select! {
            () = &mut serving => unreachable!(),
            read = second.read_to_end(&mut answer) => { read.unwrap(); }
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
        assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    }
}

#[tokio::test]
async fn a_connection_that_has_ended_gives_its_place_to_the_next_at_once() {
    let server = for_one_connection().await;
    let (address, stats) = (server.local_addr(), Arc::clone(&server.stats));
    let mut serving = pin!(server.serve(std::future::pending()));
    let until_open = async |serving: &mut Pin<&mut _>, count| {
        while stats.open() != count {
            poll_once(serving).await;
            assert_eq!(stats.count(End::Limit), 0);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    for _ in 0..20 {
        let first = TcpStream::connect(address).await.unwrap();
        until_open(&mut serving, 1).await;
        drop(first);
        // Nothing joins what has ended meanwhile.
        while stats.open() != 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let second = TcpStream::connect(address).await.unwrap();
        tokio::task::yield_now().await;
        until_open(&mut serving, 1).await;
        drop(second);
        until_open(&mut serving, 0).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_of_its_header_is_counted() {
    let server = Running::start(|_| ()).await;
    let mut client = server.connect().await;
    client.write_all(b"GET /metrics HT").await.unwrap();
    drop(client);
    server.until_ended(End::Error, 1).await;
    server.stop().await;
}

#[tokio::test]
async fn a_connection_that_is_idle_when_its_life_is_over_is_closed_as_usual() {
    let server = Running::start(|builder| {
        builder.limits.connection_lifetime = Duration::from_millis(50);
        // Too long to matter here.
        builder.limits.header_read_timeout = Duration::from_secs(3600);
        builder.limits.final_response_timeout = Duration::from_secs(3600);
    })
    .await;
    let mut client = server.connect().await;
    assert_eq!(read_to_end(&mut client).await, "");
    server.until_ended(End::Closed, 1).await;
    assert_eq!(server.stats.count(End::Lifetime), 0);
    server.stop().await;
}

/// The clock stands still while a blocking task runs, so neither the time for draining nor any other ends.
#[tokio::test]
async fn shutdown_waits_for_the_answer_under_way_and_for_no_idle_connection() {
    let server = Running::start_with(Exporter::new(large()), |_| ()).await;
    let address = server.address;
    let (begun, begins) = oneshot::channel();
    let (stopped, stops) = std::sync::mpsc::channel();
    let client = tokio::task::spawn_blocking(move || {
        let mut idle = StdTcpStream::connect(address).unwrap();
        let mut asks = StdTcpStream::connect(address).unwrap();
        let keeps_open = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
        asks.write_all(keeps_open).unwrap();
        let mut answer = vec![0; 100];
        asks.read_exact(&mut answer).unwrap();
        begun.send(()).unwrap();
        stops.recv().unwrap();
        let mut rest = Vec::new();
        assert_eq!(idle.read_to_end(&mut rest).unwrap(), 0);
        asks.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    });
    begins.await.unwrap();
    server.until_open(2).await;
    tokio::time::pause();
    server.stop.send(()).unwrap();
    stopped.send(()).unwrap();
    let answer = client.await.unwrap();
    server.task.await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(body.len() > 4 << 20, "{}", body.len());
    assert!(head.contains(&format!("content-length: {}", body.len())));
    assert_eq!(server.stats.count(End::Closed), 2);
}

#[tokio::test]
async fn every_page_is_compressed_if_the_client_accepts_that() {
    let collector = Collector::new();
    // More than a compressor takes at once.
    for name in 0..20 {
        let pool = SlabPool::builder().name(name.to_string()).build().unwrap();
        collector.register_pool(&pool).unwrap();
    }
    let server = Running::start_with(Exporter::new(collector), |_| ()).await;
    let get = async |path: &str, accept: &str| server.get_with(path, accept).await;
    let openmetrics = "accept: application/openmetrics-text\r\n";
    for (path, accept) in [
        ("/metrics", ""),
        ("/metrics", openmetrics),
        ("/stats.json", ""),
        ("/", ""),
    ] {
        let (head, plain) = get(path, accept).await;
        assert!(!head.contains("content-encoding"), "{path}: {head}");
        assert!(head.contains("vary: accept, accept-encoding\r\n"));
        let (head, packed) = get(path, &format!("{accept}accept-encoding: gzip\r\n")).await;
        assert!(head.contains("content-encoding: gzip\r\n"), "{path}");
        assert!(packed.len() < plain.len());
        let mut unpacked = Vec::new();
        let mut decoder = flate2::read::GzDecoder::new(&*packed);
        decoder.read_to_end(&mut unpacked).unwrap();
        // Some numbers have changed meanwhile.
        let lines = |page: &[u8]| page.split(|&byte| byte == b'\n').count();
        assert_eq!(lines(&unpacked), lines(&plain), "{path}");
        if path == "/" {
            assert!(unpacked == plain);
        }
    }
    let (head, body) = get("/healthz", "accept-encoding: gzip\r\n").await;
    assert!(!head.contains("content-encoding") && body == b"ok\n");
    server.stop().await;
}

#[tokio::test]
async fn refusals_say_what_is_there_and_are_not_for_guessing() {
    let server = Running::start(|_| ()).await;
    // What is not there is not there by any method.
    for method in ["GET", "HEAD", "POST"] {
        let answer = server.exchange(request(method, "/x").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{method}: {answer}");
        assert!(answer.contains("x-content-type-options: nosniff\r\n"));
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let expected = match method {
            "HEAD" => "",
            _ => "not found; metrics are at /metrics\n",
        };
        assert_eq!(body, expected);
    }
    let answer = server.exchange(request("POST", "/").as_bytes()).await;
    assert!(answer.ends_with("\r\n\r\nonly GET and HEAD\n"), "{answer}");
    for path in ["/metrics", "/stats.json", "/", "/healthz"] {
        let head = server.exchange(request("HEAD", path).as_bytes()).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        assert!(head.contains("content-length: ") && head.ends_with("\r\n\r\n"));
        assert!(!head.contains("content-length: 0\r\n"));
    }
    let page = server.get("/").await;
    let policy = page
        .lines()
        .find_map(|line| line.strip_prefix("content-security-policy: "));
    let parts: Vec<_> = policy.unwrap().split("; ").collect();
    for part in [
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ] {
        assert!(parts.contains(&part), "{part}: {parts:?}");
    }
    server.stop().await;
}
