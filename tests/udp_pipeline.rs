//! The `udp_pipeline` example end to end: as a process of its own, with real datagrams.

mod common;

use common::{Running, get, metric, run, summary_of, text, wait_until};
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

const RECEIVED: &str = "slab_net_received_datagrams_total{socket=\"0\"}";

#[test]
fn mode_pool_accounts_for_every_packet_and_allocates_for_none() {
    let summary = summary_of(&["--duration", "1s", "--rate", "20000", "--metrics", "off"]);
    assert!(summary.count("received") > 0);
    assert!(summary.count("echoed") > 0);
    assert_eq!(summary.text("heap_allocs_per_packet"), "0.000");
}

#[test]
fn cpu_time_is_shown_only_where_the_system_reports_it() {
    let output = run(&["--duration=500ms", "--rate=20000", "--metrics=off"]);
    let stdout = text(&output.stdout);
    // Some containers have `/proc` without the scheduler's statistics.
    let is_reported = std::fs::exists("/proc/thread-self/schedstat").unwrap();
    assert_eq!(stdout.contains("\nCPU: "), is_reported, "{stdout}");
    assert_eq!(stdout.contains(" cpu_ns_per_packet=n/a\n"), !is_reported);
}

#[test]
fn shards_share_the_address() {
    let summary = summary_of(&[
        "--duration=500ms",
        "--rate=20000",
        "--metrics=off",
        "--shards=2",
        "--consumers=3",
    ]);
    assert!(summary.count("received") > 0);
    assert!(summary.count("echoed") > 0);
}

#[test]
fn of_a_rate_that_is_too_high_nothing_is_made_up_for_at_the_end() {
    let output = run(&["--duration=100ms", "--rate=4000000000", "--metrics=off"]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    let sent = stdout.split_once("load: ").unwrap().1;
    let (_, sent) = sent.split_once("\nload: ").unwrap();
    let (sent, _) = sent.split_once(" datagrams sent").unwrap();
    let sent: u64 = sent.replace(' ', "").parse().unwrap();
    // No machine sends as many in that time; ten times as many were due within the longest catch-up.
    assert!(sent < 10_000_000, "{sent}");
}

#[test]
fn a_rate_of_less_than_one_datagram_per_catch_up_is_sent() {
    let summary = summary_of(&["--duration=1s", "--rate=100", "--metrics=off"]);
    assert!(summary.count("received") > 0);
}

#[test]
fn modes_without_a_pool_account_for_every_packet_and_allocate() {
    for (mode, at_least) in [("bytesmut-batch", 0.01), ("bytesmut-packet", 1.0)] {
        let summary = summary_of(&[
            "--mode",
            mode,
            "--duration=500ms",
            "--rate=20000",
            "--metrics=off",
            "--retain=10",
        ]);
        assert!(summary.count("received") > 0, "{mode}");
        assert!(summary.count("echoed") > 0, "{mode}");
        // Shows that allocations are counted at all.
        let allocations: f64 = summary.text("heap_allocs_per_packet").parse().unwrap();
        assert!(allocations >= at_least, "{mode}: {allocations}");
    }
}

#[test]
fn a_slow_consumer_causes_drops_but_memory_stays_below_the_cap() {
    // The program itself checks that the cap was not exceeded (otherwise its status is 1).
    let summary = summary_of(&[
        "--duration=1s",
        "--rate=100000",
        "--metrics=off",
        "--max-memory=2MiB",
        "--slow-consumer=100ms",
        "--retain=3",
    ]);
    assert!(summary.count("dropped") > 0);
    assert!(summary.count("delivered") > 0);
}

#[test]
fn mode_all_prints_a_table_and_last_the_pools_summary() {
    let output = run(&[
        "--mode=all",
        "--duration=400ms",
        "--rate=20000",
        "--metrics=off",
        "--retain=5",
    ]);
    let stdout = text(&output.stdout);
    assert!(
        output.status.success(),
        "{stdout}\n{}",
        text(&output.stderr)
    );
    let lines: Vec<_> = stdout.lines().collect();
    let table = &lines[lines.len() - 5..];
    assert!(table[0].starts_with("mode "), "{stdout}");
    for (row, mode) in table[1..4]
        .iter()
        .zip(["pool ", "bytesmut-batch ", "bytesmut-packet "])
    {
        assert!(row.starts_with(mode), "{stdout}");
        // Each mode kept packets, so on Linux there are ratios.
        if cfg!(target_os = "linux") {
            assert_eq!(row.contains("n/a"), mode != "pool ", "{stdout}");
        }
    }
    let summaries: Vec<_> = lines
        .iter()
        .filter(|line| line.starts_with("summary "))
        .collect();
    assert_eq!(summaries.len(), 4);
    assert_eq!(summaries[0], summaries[3]);
}

#[test]
fn bad_input_is_one_line_and_status_2() {
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp_in_use = &*format!("--listen={}", udp.local_addr().unwrap());
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp_in_use = &*format!("--metrics={}", tcp.local_addr().unwrap());
    let inputs: &[(&[&str], &str)] = &[
        (&["--metrics=off", udp_in_use], "in use"),
        (&["--metrics=off", udp_in_use, "--shards=2"], "in use"),
        (
            &["--metrics=off", udp_in_use, "--mode=bytesmut-batch"],
            "in use",
        ),
        (
            &[
                "--metrics=off",
                udp_in_use,
                "--mode=bytesmut-packet",
                "--shards=2",
            ],
            "in use",
        ),
        (&["--metrics=off", udp_in_use, "--mode=all"], "in use"),
        (&[tcp_in_use], "in use"),
        (&["--metrics=nowhere"], "or off"),
        (
            &["--metrics=off", "--max-memory=1KiB"],
            "does not hold one slab",
        ),
        (
            &["--metrics=off", "--max-memory=1000000GiB"],
            "largest possible",
        ),
        (&["--max-memory=99999999999GiB"], "addressed"),
        (&["--max-memory=64MB"], "64MiB"),
        (&["--metrics=off", "--max-datagram=0"], "datagram length"),
        (
            &["--metrics=off", "--max-datagram=65528"],
            "datagram length",
        ),
        (&["--consumers=0"], "--consumers"),
        (&["--consumers=65"], "--consumers"),
        (&["--shards=0"], "--shards"),
        (&["--retain=0"], "--retain"),
        (&["--payload=0"], "--payload"),
        (&["--payload=65508"], "--payload"),
        (&["--rate=0"], "above 0"),
        (&["--duration=8"], "8s"),
        (&["--duration=s"], "8s"),
        (&["--duration=0s"], "--duration"),
        (&["--duration=-1s"], "--duration"),
        (&["--duration=18446744073709551615h"], "too long"),
        (&["--slow-consumer=often"], "--slow-consumer"),
        (&["--mode=fast"], "bytesmut-packet"),
        (&["--listen=localhost"], "--listen"),
        (&["--listen"], "--listen"),
        (&["--no-such-option"], "--no-such-option"),
        (&["argument"], "argument"),
    ];
    for (arguments, says) in inputs {
        // In case it starts after all.
        let output = run(&[&["--duration=10ms"], *arguments].concat());
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}\n{stdout}{stderr}"
        );
        assert_eq!(stdout, "", "{arguments:?}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}\n{stderr}");
        assert!(
            stderr.starts_with("udp_pipeline: "),
            "{arguments:?}\n{stderr}"
        );
        assert!(stderr.contains(says), "{arguments:?}\n{stderr}");
    }
}

#[test]
fn a_failure_to_start_is_told_with_its_cause() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let refused = UdpSocket::bind(address).unwrap_err();
    for mode in ["pool", "bytesmut-batch"] {
        let listen = format!("--listen={address}");
        let mode = format!("--mode={mode}");
        let output = run(&["--duration=10ms", "--metrics=off", &listen, &mode]);
        assert_eq!(output.status.code(), Some(2));
        let says = format!("udp_pipeline: cannot bind UDP {address}: {refused}\n");
        assert_eq!(text(&output.stderr), says);
    }
}

#[test]
fn help_exits_with_status_0() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("--max-memory"));
}

#[cfg(unix)]
#[test]
fn the_metrics_page_shows_the_pool_while_it_runs() {
    let mut running = Running::start(&["--duration=60s", "--rate=20000", "--metrics=127.0.0.1:0"]);
    let page = running.address("metrics: http://", "/metrics");
    assert_eq!(
        metric(page, "slab_pool_capacity_bytes{pool=\"rx\"}"),
        f64::from(64 << 20)
    );
    wait_until("a datagram received", || metric(page, RECEIVED) > 0.0);
    let served = "slab_net_queue_delivered_datagrams_total{queue=\"handoff\"}";
    wait_until("a datagram delivered", || metric(page, served) > 0.0);
    // The live page.
    assert!(get(page, "/").contains("text/html"));
    let summary = running.interrupt();
    assert!(summary.count("received") > 0);
}

#[cfg(unix)]
#[test]
fn datagrams_of_any_length_are_delivered() {
    let mut running = Running::start(&["--no-load", "--metrics=127.0.0.1:0", "--consumers=1"]);
    let server = running.address("receiving at ", " ");
    let page = running.address("metrics: http://", "/metrics");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let lengths = [0, 1, 1200, 65_507];
    for (sent, len) in (1..).zip(lengths) {
        socket.send_to(&vec![7; len], server).unwrap();
        // One at a time: the largest would displace others in a small kernel queue.
        wait_until("received", || metric(page, RECEIVED) == f64::from(sent));
    }
    let bytes = metric(page, "slab_net_received_bytes_total{socket=\"0\"}");
    assert_eq!(bytes, lengths.iter().sum::<usize>() as f64);
    let summary = running.interrupt();
    assert_eq!(summary.count("received"), lengths.len() as u64);
    assert_eq!(summary.count("delivered"), lengths.len() as u64);
}

#[cfg(target_os = "linux")]
#[test]
fn a_datagram_longer_than_its_buffer_is_counted_as_truncated() {
    let mut running = Running::start(&["--no-load", "--metrics=127.0.0.1:0", "--max-datagram=100"]);
    let server = running.address("receiving at ", " ");
    let page = running.address("metrics: http://", "/metrics");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for len in [100, 101, 60_000] {
        socket.send_to(&vec![7; len], server).unwrap();
    }
    wait_until("received", || metric(page, RECEIVED) == 3.0);
    let truncated = "slab_net_dropped_datagrams_total{socket=\"0\",reason=\"truncated\"}";
    assert_eq!(metric(page, truncated), 2.0);
    let summary = running.interrupt();
    assert_eq!(summary.count("delivered"), 1);
    assert_eq!(summary.count("dropped"), 2);
}

#[cfg(unix)]
#[test]
fn some_datagrams_are_echoed_unchanged() {
    let mut running = Running::start(&["--no-load", "--metrics=off", "--listen=127.0.0.1:0"]);
    let server = running.address("receiving at ", " ");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(5)))
        .unwrap();
    let mut buffer = [0; 2048];
    let mut sent: u32 = 0;
    wait_until("an echo", || {
        socket
            .send_to(&sent.to_le_bytes().repeat(100), server)
            .unwrap();
        sent += 1;
        match socket.recv_from(&mut buffer) {
            Ok((len, from)) => {
                assert_eq!((len, from), (400, server));
                let number = u32::from_le_bytes(buffer[..4].try_into().unwrap());
                assert!(number < sent);
                assert_eq!(buffer[..400], *number.to_le_bytes().repeat(100));
                true
            }
            Err(_) => false,
        }
    });
    let summary = running.interrupt();
    assert_eq!(summary.count("received"), u64::from(sent));
    assert!(summary.count("echoed") >= 1);
}
