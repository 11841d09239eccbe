//! The figures of README.md are those of the committed JSON in `benches/report`, and there are no
//! others. After new measurements:
//!
//! ```sh
//! UPDATE_README=1 cargo test --test readme_figures
//! ```

use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What the table of README.md shows: group, case, peers, and the case in words.
const ROWS: &[(&str, &str, &[&str], &str)] = &[
    (
        "alloc",
        "pair-2048",
        &["glibc", "mimalloc", "jemalloc", "snmalloc"],
        "2 KiB allocated and freed",
    ),
    (
        "alloc",
        "batch-64",
        &["mimalloc", "jemalloc"],
        "64 blocks of 64 bytes, then freed, each",
    ),
    (
        "alloc",
        "remote-free-2048",
        &["mimalloc", "ArrayQueue"],
        "2 KiB freed on another thread",
    ),
    (
        "packet",
        "alloc-write-freeze-clone-drop",
        &["bytes-glibc", "bytes-mimalloc"],
        "a packet filled, frozen, cloned, both dropped",
    ),
    (
        "packet",
        "clone-drop",
        &["bytes-glibc"],
        "a shared packet cloned, the clone dropped",
    ),
    (
        "udp",
        "recv-1200-coalesced",
        &["tokio-fresh", "bytesmut-ring"],
        "a datagram received and handed to another task, CPU",
    ),
    ("udp", "echo-1200", &["tokio"], "a datagram echoed, CPU"),
    (
        "rudp",
        "bulk",
        &["kcp-go", "tokio_kcp", "quinn"],
        "reliable bulk on loopback",
    ),
    (
        "rudp",
        "echo-p50",
        &["kcp-go", "tokio_kcp"],
        "1 KiB echoed reliably, median",
    ),
];

/// Programs whose output README.md shows, by the name of their JSON.
const OUTPUTS: &[&str] = &["udp_pipeline", "udp_pipeline-mode-all"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn json(name: &str) -> Value {
    let file = root().join("benches/report").join(format!("{name}.json"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"))
}

/// Where and when something was measured, in one line.
fn origin(machine: &Value) -> String {
    let text = |name: &str| match &machine[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let quick = if machine["quick"] == true {
        ", short run"
    } else {
        ""
    };
    let busy = match &machine["warning"] {
        Value::String(_) => ", while other programs used the machine: not to be relied on",
        _ => "",
    };
    format!(
        "{}, {} CPUs, kernel {}, {}{quick}{busy}",
        text("cpu"),
        text("cpus"),
        text("kernel"),
        text("date")
    )
}

/// Three significant digits.
fn figure(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The table, from the JSON of the groups.
fn table() -> String {
    let mut text = String::from(
        "| what | against | ours | theirs | ours is better by (range) |\n|---|---|---|---|---|\n",
    );
    let mut origins: Vec<(String, Vec<&str>)> = Vec::new();
    let mut known: Vec<(&str, Value)> = Vec::new();
    for &(group, case, peers, words) in ROWS {
        if known.iter().all(|(name, _)| *name != group) {
            let json = json(group);
            let origin = origin(&json["machine"]);
            match origins.iter_mut().find(|(known, _)| *known == origin) {
                Some((_, groups)) => groups.push(group),
                None => origins.push((origin, vec![group])),
            }
            known.push((group, json));
        }
        let (_, json) = known.iter().find(|(name, _)| *name == group).unwrap();
        for &peer in peers {
            let rows = json["rows"].as_array().unwrap();
            let is_it = |row: &&Value| row["case"] == case && row["peer"] == peer;
            let row = rows.iter().find(is_it);
            let row = row.unwrap_or_else(|| panic!("{group}.json has no row {case}/{peer}"));
            let of = |side: &str, what: &str| figure(row[side][what].as_f64().unwrap());
            let unit = row["unit"].as_str().unwrap();
            writeln!(
                text,
                "| {words} | {peer} | {} {unit} | {} {unit} | {}x ({} .. {}) |",
                of("ours", "median"),
                of("theirs", "median"),
                of("ratio", "median"),
                of("ratio", "min"),
                of("ratio", "max"),
            )
            .unwrap();
        }
    }
    text.push('\n');
    for (origin, groups) in origins {
        writeln!(text, "{}: {origin}.", groups.join(", ")).unwrap();
    }
    text
}

/// What stands between the marks of this name in README.md.
fn block(name: &str) -> String {
    if name == "versus" {
        return table();
    }
    let json = json(&format!("examples/{name}"));
    let lines: Vec<&str> = json["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect();
    let origin = origin(&json["machine"]);
    format!("```text\n{}\n```\n\n{origin}.\n", lines.join("\n"))
}

fn marks(name: &str) -> (String, String) {
    (
        format!("<!-- figures: {name} -->\n"),
        format!("<!-- end of figures: {name} -->\n"),
    )
}

/// The text with the block of this name replaced, and without it.
fn replaced(readme: &str, name: &str, by: &str) -> String {
    let (begin, end) = marks(name);
    let (before, rest) = readme
        .split_once(&begin)
        .unwrap_or_else(|| panic!("README.md has no line {begin}"));
    let (_, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("README.md has no line {end}"));
    format!("{before}{begin}{by}{end}{after}")
}

fn readme() -> PathBuf {
    root().join("README.md")
}

fn names() -> impl Iterator<Item = &'static str> {
    OUTPUTS.iter().copied().chain(["versus"])
}

#[test]
fn the_figures_are_those_of_the_json() {
    let committed = fs::read_to_string(readme()).unwrap();
    let made = names().fold(committed.clone(), |text, name| {
        replaced(&text, name, &block(name))
    });
    if std::env::var_os("UPDATE_README").is_some() {
        fs::write(readme(), &made).unwrap();
        return;
    }
    for (committed, made) in committed.lines().zip(made.lines()) {
        assert_eq!(committed, made, "make it again: UPDATE_README=1");
    }
    assert_eq!(committed, made);
}

/// A claim of speed or size that no JSON stands behind.
fn is_a_figure(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |word: &str| word.starts_with(|first: char| first.is_ascii_digit());
    let units = [
        "ns",
        "us",
        "ms",
        "%",
        "times",
        "MB/s",
        "GB/s",
        "packets/s",
        "s/GB",
    ];
    words.windows(2).any(|pair| {
        number(pair[0])
            && units
                .iter()
                .any(|unit| pair[1].trim_matches(&['.', ',', ';', ')'][..]) == *unit)
    }) || words.iter().any(|word| {
        let word = word.trim_matches(&['.', ',', ';', '(', ')'][..]);
        number(word)
            && (word.ends_with('%')
                || word
                    .strip_suffix('x')
                    .is_some_and(|n| n.parse::<f64>().is_ok()))
    })
}

#[test]
fn there_are_no_other_figures() {
    let text = fs::read_to_string(readme()).unwrap();
    let rest = names().fold(text, |text, name| replaced(&text, name, ""));
    for line in rest.lines() {
        assert!(!is_a_figure(line), "no JSON stands behind: {line}");
    }
}

#[test]
fn what_is_a_figure() {
    for figure in [
        "takes 3 ns.",
        "gives 5 to 20 %.",
        "6x faster",
        "about 2.5x,",
        "(12%)",
    ] {
        assert!(is_a_figure(figure), "{figure}");
    }
    for other in [
        "0x40",
        "`--retain 50`",
        "on 2 cores",
        "--duration 8s",
        "64 KiB slices",
        "x86",
    ] {
        assert!(!is_a_figure(other), "{other}");
    }
}
