//! The live page in a real browser, with a running pipeline under load: its numbers move, its bars sum to
//! the cap, it describes problems in words, it requests nothing from other hosts, and the browser reports
//! no errors. Leaves screenshots (light, dark, wide, narrow) to be looked at. Needs Debian's package
//! `chromium`; `ci/page` installs it and runs this:
//!
//!     cargo test -p slab-metrics --test browser -- --ignored

#![cfg(feature = "net")]
#![allow(clippy::print_stdout)]

#[path = "common/chromium.rs"]
mod chromium;

use chromium::Chromium;
use serde_json::{Value, json};
use slab_core::{Chunk, SlabPool};
use slab_metrics::{Collector, Exporter, MetricsServer};
use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, queue};
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
use slab_net::udp::{Transmit, UdpReceiver};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// How long any step may take before the test gives up; no time is asserted.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A pipeline with everything that a page can show, under load and with two problems: nobody returns
/// memory to the pool `full`, for which a task waits, and hardly anything is taken out of the queue `slow`.
struct Pipeline {
    page: SocketAddr,
    server: JoinHandle<()>,
    full: SlabPool,
}

impl Pipeline {
    fn start(runtime: &Runtime) -> Self {
        let _entered = runtime.enter();
        let any = "127.0.0.1:0".parse().unwrap();
        let rx = PacketPool::builder()
            .name("rx")
            .max_memory(16 << 20)
            .headroom(24)
            .compact_ratio(u32::MAX)
            .build()
            .unwrap();
        let full = SlabPool::builder()
            .name("full")
            .max_memory(1 << 20)
            .build()
            .unwrap();
        let mut receiver = UdpReceiver::bind(any, &rx).unwrap();
        let (fast, batches) = queue(64.try_into().unwrap(), Overflow::DropNewest);
        let (slow, kept) = queue(8.try_into().unwrap(), Overflow::DropNewest);
        let config = EndpointConfig::new(SessionConfig::fast());
        let endpoint = Endpoint::bind(any, &rx, config.clone()).unwrap();

        let collector = Collector::new();
        collector.register_packet_pool(&rx).unwrap();
        collector.register_pool(&full).unwrap();
        collector.register_socket("0", receiver.monitor()).unwrap();
        collector.register_queue("fast", batches.monitor()).unwrap();
        collector.register_queue("slow", kept.monitor()).unwrap();
        collector
            .register_rudp_endpoint("0", endpoint.monitor())
            .unwrap();
        let server = MetricsServer::builder(Exporter::new(collector)).address(any);
        let server = runtime.block_on(server.bind()).unwrap();
        let page = server.local_addr();
        let server = runtime.spawn(server.serve(std::future::pending()));

        let (sender, to) = (receiver.sender(), receiver.local_addr());
        runtime.spawn(async move {
            let payload = [7; 12_000];
            loop {
                let ten = Transmit::new(&payload, to).segment_size(1200);
                sender.send(&ten).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        runtime.spawn(async move {
            let mut number = 0;
            while let Ok(batch) = receiver.recv_batch().await {
                number += 1;
                let queue = if number % 4 == 0 { &slow } else { &fast };
                queue.send(batch).await.unwrap();
            }
        });
        runtime.spawn(async move {
            let mut held = Vec::new();
            while let Some(batch) = batches.recv().await {
                let mut packets = batch.into_packets();
                // Some are kept, and said to be: ten of a buffer, which is pinned once.
                if held.len() < 300 {
                    held.extend(packets.by_ref().take(10).map(|packet| rx.hold(packet)));
                }
            }
        });
        runtime.spawn(async move {
            // Never empties the queue `slow`.
            let _kept = kept;
            std::future::pending::<()>().await;
        });
        runtime.spawn({
            let full = full.clone();
            async move {
                let _all: Vec<_> = std::iter::from_fn(|| full.try_alloc(2048).ok()).collect();
                drop(full.alloc(2048).await);
            }
        });
        runtime.spawn(async move {
            let pool = PacketPool::builder().name("peer").build().unwrap();
            let client = Connection::connect(endpoint.local_addr(), &pool, config).unwrap();
            client
                .send(pool.try_copy_from_slice(b"x").unwrap())
                .await
                .unwrap();
            let accepted = endpoint.accept().await.unwrap();
            let echo = async {
                while let Ok(Some(packet)) = accepted.recv().await {
                    accepted.send(packet).await.unwrap();
                }
            };
            let ask = async {
                while let Ok(Some(packet)) = client.recv().await {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    client.send(packet).await.unwrap();
                }
            };
            tokio::join!(echo, ask);
        });
        Self { page, server, full }
    }
}

/// The page as the browser shows it.
const READ: &str = r#"(() => {
  const text = node => node ? node.innerText : "";
  const bars = [...document.querySelectorAll(".pool > .bar")].map(bar => ({
    title: bar.title,
    whole: bar.getBoundingClientRect().width,
    parts: [...bar.children].map(part => part.getBoundingClientRect().width),
    bytes: [...bar.children].map(part => Number(part.dataset.amount)),
    cap: Number(bar.dataset.whole),
  }));
  const tables = Object.fromEntries([...document.querySelectorAll("table")].map(table => [
    table.querySelector("th").innerText,
    [...table.querySelectorAll("tbody tr")].map(row => [...row.cells].map(text)),
  ]));
  return {
    health: text(document.getElementById("health")), spoken: document.querySelector("[role=status]").textContent, bad: document.getElementById("health").className,
    when: text(document.getElementById("when")), pools: [...document.querySelectorAll("h2")].map(text),
    facts: [...document.querySelectorAll(".pool")].map(text), bars, tables,
    curves: [...document.querySelectorAll("main svg path:last-child")].map(path => path.getAttribute("d").length),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
})()"#;

fn wait_until(browser: &mut Chromium, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let page = browser.evaluate(READ);
        if condition(&page) {
            return page;
        }
        assert!(
            start.elapsed() < TIMEOUT,
            "not within {TIMEOUT:?}: {what}\n{page:#}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The parts of each pool's bar sum to the cap, to the byte, and fill its length.
fn assert_bars_are_full(page: &Value) {
    let bars = page["bars"].as_array().unwrap();
    assert_eq!(bars.len(), 2, "{page:#}");
    assert_eq!(bars[0]["cap"], 16 << 20);
    for bar in bars {
        let bytes = bar["bytes"].as_array().unwrap().iter();
        let bytes: u64 = bytes.map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(bar["cap"], bytes, "{bar:#}");
        // The same as drawn.
        let parts = bar["parts"].as_array().unwrap().iter();
        let sum: f64 = parts.map(|part| part.as_f64().unwrap()).sum();
        let whole = bar["whole"].as_f64().unwrap();
        assert!(whole > 100.0 && (sum - whole).abs() < 0.5, "{bar:#}");
    }
}

/// The same in bytes, from the JSON that the page reads.
fn assert_bytes_are_the_cap(stats: &Value) {
    for pool in stats["pools"].as_array().unwrap() {
        let number = |of: &Value, key: &str| of[key].as_u64().expect(key);
        let mut assigned = 0;
        for class in pool["classes"].as_array().unwrap() {
            let states = ["in_use", "magazine", "depot", "free"];
            let chunks: u64 = states.iter().map(|state| number(class, state)).sum();
            let bytes = chunks * number(class, "chunk_bytes");
            let committed = number(class, "committed_bytes");
            // The unused rest at the end of each slab is smaller than a chunk.
            assert!(bytes <= committed, "{class}");
            assert!(committed == 0 || chunks > 0, "{class}");
            assigned += committed;
        }
        let committed = number(pool, "committed_bytes");
        assert!(assigned <= committed, "{pool:#}");
        assert!(committed <= number(pool, "capacity_bytes"), "{pool:#}");
    }
}

fn screenshot_directory() -> PathBuf {
    let directory = match std::env::var_os("PAGE_SCREENSHOTS") {
        Some(directory) => directory.into(),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("page"),
    };
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
#[ignore = "needs chromium: ci/page"]
fn the_page_shows_a_running_pipeline_and_its_problems() {
    let runtime = Runtime::new().unwrap();
    let pipeline = Pipeline::start(&runtime);
    let origin = format!("http://{}/", pipeline.page);
    let mut browser = Chromium::start("pipeline");
    browser.view(1280, 900, "light");
    browser.open(&origin);

    // Everything is shown, with rates.
    let first = wait_until(&mut browser, "rates of all sources", |page| {
        let cell = |table: &str, column: usize| page["tables"][table][0][column].as_str();
        let is_rate = |cell: Option<&str>| cell.is_some_and(|c| c.ends_with("/s") && c != "0/s");
        is_rate(cell("socket", 1)) && is_rate(cell("queue", 4)) && is_rate(cell("endpoint", 2))
    });
    let headings = ["pool rx", "pool full", "sockets", "queues", "RUDP"];
    assert_eq!(first["pools"], json!(headings), "{first:#}");
    assert_bars_are_full(&first);
    let facts = first["facts"][0].as_str().unwrap();
    assert!(facts.contains("resident"), "{facts}");

    // Problems are described in words: who, what, since when, how much.
    let page = wait_until(&mut browser, "descriptions of the problems", |page| {
        let health = page["health"].as_str().unwrap();
        health.contains("pool full: class 2 KiB at the cap (for ")
            && health.contains("queue slow: consumers are too slow or gone (for ")
            && page["facts"][0].as_str().unwrap().contains("packets held")
    });
    assert_eq!(page["bad"], "bad");
    assert_eq!(
        page["tables"]["queue"][1][1], "100 %",
        "how full the queue is"
    );
    assert!(page["health"].as_str().unwrap().contains("1 waiting"));
    assert!(!page["health"].as_str().unwrap().contains("pool rx"));
    // A screen reader hears of them once, not of each number that changes.
    let spoken = page["spoken"].as_str().unwrap();
    assert!(spoken.contains("pool full: class 2 KiB at the cap"));
    assert!(!spoken.contains("(for ") && !spoken.contains("waiting"));

    // Numbers and curves move.
    let later = wait_until(&mut browser, "numbers that move", |later| {
        let queue = |page: &Value| page["tables"]["queue"][1][6].clone();
        later["when"] != page["when"]
            && queue(later) != queue(&page)
            && later["curves"][0].as_u64() > page["curves"][0].as_u64()
    });
    assert_bars_are_full(&later);
    for _ in 0..10 {
        let fetched = browser.evaluate("fetch('stats.json').then(answer => answer.json())");
        assert_bytes_are_the_cap(&fetched);
    }

    // The button can be reached and used by keyboard.
    browser.press("Tab", 9);
    let focus = "document.activeElement.id";
    assert_eq!(browser.evaluate(focus), "pause");
    browser.press("Enter", 13);
    let pressed = "document.getElementById('pause').getAttribute('aria-pressed')";
    assert_eq!(browser.evaluate(pressed), "true");
    browser.press("Enter", 13);
    assert_eq!(browser.evaluate(pressed), "false");

    // Nothing lies beyond the edge at any width. The screenshots are to be looked at.
    let screenshot_directory = screenshot_directory();
    for (width, height, name) in [(1280, 900, "wide"), (390, 844, "narrow")] {
        for colours in ["light", "dark"] {
            browser.view(width, height, colours);
            let page = wait_until(&mut browser, "no overflow", |page| {
                page["overflow"].as_i64() == Some(0)
            });
            assert_bars_are_full(&page);
            let path = screenshot_directory.join(format!("{name}-{colours}.png"));
            std::fs::write(&path, browser.screenshot()).unwrap();
            println!("screenshot: {}", path.display());
        }
    }

    // No other host was contacted, and the browser reported no errors.
    let console_errors = browser.console_errors();
    assert!(console_errors.is_empty(), "{console_errors:#?}");
    let requests = browser.requests();
    assert!(
        requests
            .iter()
            .filter(|r| r.ends_with("stats.json"))
            .count()
            > 3
    );
    for request in &requests {
        let ours = request.starts_with(&origin) || request.starts_with("data:");
        assert!(ours, "{request}");
    }

    // The page says that the program has ended.
    assert_eq!(pipeline.full.stats().in_use_bytes(), 1 << 20);
    pipeline.server.abort();
    let page = wait_until(&mut browser, "that there is no answer", |page| {
        let health = page["health"].as_str().unwrap();
        health.contains("No answer from the program") && health.contains("s old")
    });
    assert_eq!(page["spoken"], "No answer from the program.");
}

/// A program with one pool of this name, which has been allocated from so often. Some of it is in use.
struct Program {
    pool: SlabPool,
    _held: Chunk,
    server: JoinHandle<()>,
    page: SocketAddr,
}

impl Program {
    fn start(runtime: &Runtime, page: SocketAddr, name: &str, allocations: u32) -> Self {
        let pool = SlabPool::builder().name(name).build().unwrap();
        let held = pool.try_alloc(100).unwrap();
        let collector = Collector::new();
        collector.register_pool(&pool).unwrap();
        let server = MetricsServer::builder(Exporter::new(collector)).address(page);
        let server = runtime.block_on(server.bind()).unwrap();
        let this = Self {
            pool,
            _held: held,
            page: server.local_addr(),
            server: runtime.spawn(server.serve(std::future::pending())),
        };
        this.allocate(allocations);
        this
    }

    fn allocate(&self, times: u32) {
        (0..times).for_each(|_| drop(self.pool.try_alloc(100).unwrap()));
    }

    /// Ends; returns where it listened.
    fn end(self, runtime: &Runtime) -> SocketAddr {
        self.server.abort();
        assert!(runtime.block_on(self.server).unwrap_err().is_cancelled());
        self.page
    }
}

/// What happened while nobody watched is in no rate afterwards, and in no curve.
#[test]
#[ignore = "needs chromium: ci/page"]
fn the_page_knows_for_how_long_it_was_paused() {
    let runtime = Runtime::new().unwrap();
    let name = &"long".repeat(40);
    let any = "127.0.0.1:0".parse().unwrap();
    let first = Program::start(&runtime, any, name, 0);
    let mut browser = Chromium::start("pause");
    browser.view(390, 844, "light");
    browser.open(&format!("http://{}/", first.page));
    let rate = |page: &Value| page["tables"]["class"][0][5].clone();
    let is_idle = |page: &Value| rate(page) == "0/s";
    let page = wait_until(&mut browser, "a rate", is_idle);
    assert_eq!(page["overflow"], 0, "a long name goes on in the next line");

    // Restarted meanwhile, and up for longer than the first.
    let pause = "document.getElementById('pause').click()";
    let uptime = "history.at(-1).uptime_ms";
    browser.evaluate(pause);
    let was_up = Duration::from_millis(browser.evaluate(uptime).as_u64().unwrap());
    let address = first.end(&runtime);
    let second = Program::start(&runtime, address, name, 5000);
    std::thread::sleep(was_up + Duration::from_secs(1));
    let resume_and_see_it_idle = |browser: &mut Chromium| {
        let before = browser.evaluate(READ)["when"].clone();
        browser.evaluate(pause);
        wait_until(browser, "the rate of an idle pool", |page| {
            let goes_on = page["when"] != before;
            assert!(!goes_on || is_idle(page) || rate(page) == "–", "{page:#}");
            goes_on && is_idle(page)
        });
    };
    resume_and_see_it_idle(&mut browser);

    // Busy at the start of a pause that is longer than rates look back.
    browser.evaluate(pause);
    second.allocate(5000);
    std::thread::sleep(Duration::from_secs(7));
    resume_and_see_it_idle(&mut browser);
    let curve = "document.querySelector('.plots path:last-child').getAttribute('d')";
    let curve = browser.evaluate(curve);
    let parts = curve.as_str().unwrap().matches('M').count();
    assert_eq!(parts, 2, "before and after the pause: {curve}");
}
