//! The figures in README.md, and in the other pages of [`SECTIONS`], equal the committed JSON in
//! `benches/report`; README.md has no other figures. After new measurements:
//!
//! ```sh
//! UPDATE_README=1 cargo test --test readme_figures
//! ```

use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// A marked section of a page: its file, the name in the marks, and the function that makes its text.
type Section = (&'static str, &'static str, fn() -> String);

const SECTIONS: &[Section] = &[
    (README, "udp_pipeline", || output("udp_pipeline")),
    (README, "udp_pipeline-mode-all", || {
        output("udp_pipeline-mode-all")
    }),
    (README, "versus", || compared(VERSUS)),
    (SLAB_NET, "packet", packets),
    (SLAB_NET, "uring", || compared(URING)),
    (SLAB_NET, "rudp", sessions),
    (BENCHES, "missed", missed),
];
const README: &str = "README.md";
const BENCHES: &str = "benches/README.md";
const SLAB_NET: &str = "crates/slab-net/README.md";

/// Pages of results: what their machine is called, and the folder in `benches/report`.
const MACHINES: &[(&str, &str)] = &[
    ("Intel", ""),
    ("Emerald Rapids", "intel-emerald/"),
    ("Zen 4", "amd-zen4/"),
    ("Zen 3", "amd-zen3/"),
];

/// Rows of a table: group, case, peers, and a description of the case.
type Compared = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
);

const VERSUS: &[Compared] = &[
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
        "CPU to receive a datagram and hand it to a task, sent in bursts",
    ),
    (
        "udp",
        "recv-1200-plain",
        &["tokio-fresh"],
        "CPU to receive a datagram and hand it to a task, sent alone",
    ),
    ("udp", "echo-1200", &["tokio"], "CPU to echo a datagram"),
    (
        "rudp",
        "bulk",
        &["kcp-go", "tokio_kcp", "slab-net-plain"],
        "reliable bulk on loopback",
    ),
    // quinn always encrypts.
    (
        "rudp",
        "aes-bulk",
        &["quinn"],
        "the same, encrypted by both",
    ),
    (
        "rudp",
        "echo-p50",
        &["kcp-go", "tokio_kcp"],
        "1 KiB echoed reliably, median",
    ),
];

const URING: &[Compared] = &[
    (
        "udp",
        "uring-1200-coalesced",
        &["slab-net-readiness"],
        "coalesced, under load",
    ),
    (
        "udp",
        "uring-1200-plain",
        &["slab-net-readiness"],
        "one by one, under load",
    ),
    (
        "udp",
        "uring-paced-1200-plain",
        &["slab-net-readiness", "tokio-fresh"],
        "one each 10 us",
    ),
];

/// Cases of the group `packet`, with descriptions.
const PACKETS: &[(&str, &str)] = &[
    (
        "alloc-write-freeze-drop",
        "alloc 2 KiB, write 64 B, freeze, drop",
    ),
    (
        "alloc-write-freeze-clone-drop",
        "the same, and clone, drop both",
    ),
    ("clone-drop", "clone, drop"),
    ("slice-12", "slice, drop"),
    (
        "split-40",
        "out of 64 KiB 40 times `split_to`, `freeze`; drop all, each",
    ),
    ("prepend-16", "a header of 16 B in front"),
    ("to-bytes", "into `bytes::Bytes`"),
    ("buf-read", "read through `Buf`"),
    ("buf-write", "write through `BufMut`"),
];

/// Peers of the group `rudp`, with descriptions.
const SESSIONS: &[(&str, &str)] = &[
    ("slab-net-plain", "ours without GSO and GRO"),
    ("tokio_kcp", "tokio_kcp"),
    ("kcp-go", "kcp-go"),
    ("quinn", "quinn (with TLS)"),
    ("rusty_enet", "rusty_enet"),
];

/// Columns of their table: cases, and headings.
const COLUMNS: &[(&str, &str)] = &[
    ("bulk", "bulk MB/s"),
    ("cpu-per-gb", "CPU s/GB"),
    ("echo-p50", "1 KiB echo p50 us"),
    ("echo-p99", "p99 us"),
    ("loss1", "1 % lost MB/s"),
    ("loss5", "5 % lost MB/s"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn json(name: &str) -> Value {
    let file = root().join("benches/report").join(format!("{name}.json"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"))
}

/// Returns where and when something was measured, in one line.
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

/// Formats with three significant digits.
fn figure(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns one row of a group.
fn row<'a>(json: &'a Value, case: &str, peer: &str) -> &'a Value {
    let rows = json["rows"].as_array().unwrap();
    let is_it = |row: &&Value| row["case"] == case && row["peer"] == peer;
    let row = rows.iter().find(is_it);
    row.unwrap_or_else(|| panic!("there is no row {case}/{peer}"))
}

/// Formats a side of a row as `median (min .. max)`, with the unit behind the median.
fn spread(row: &Value, side: &str, unit: &str) -> String {
    let of = |what: &str| figure(row[side][what].as_f64().unwrap());
    format!("{}{unit} ({} .. {})", of("median"), of("min"), of("max"))
}

/// Makes a line for each peer of each row, and where they were measured.
fn compared(rows: &[Compared]) -> String {
    let mut text = String::from(
        "| what | against | ours | theirs | ours is better by (range) |\n|---|---|---|---|---|\n",
    );
    let mut origins: Vec<(String, Vec<&str>)> = Vec::new();
    let mut known: Vec<(&str, Value)> = Vec::new();
    for &(group, case, peers, words) in rows {
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
            let row = row(json, case, peer);
            let of = |side: &str| figure(row[side]["median"].as_f64().unwrap());
            let unit = row["unit"].as_str().unwrap();
            writeln!(
                text,
                "| {words} | {peer} | {} {unit} | {} {unit} | {} |",
                of("ours"),
                of("theirs"),
                spread(row, "ratio", "x"),
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

/// Makes the table of the group `packet` against `bytes` on two allocators.
fn packets() -> String {
    let json = json("packet");
    let mut text =
        String::from("| | packets | `bytes` on glibc | | on mimalloc |\n|---|---|---|---|---|\n");
    for (case, words) in PACKETS {
        let glibc = row(&json, case, "bytes-glibc");
        let mimalloc = row(&json, case, "bytes-mimalloc");
        writeln!(
            text,
            "| {words} | {} | {} | {} | {} |",
            spread(glibc, "ours", ""),
            spread(glibc, "theirs", ""),
            spread(glibc, "ratio", "x"),
            spread(mimalloc, "ratio", "x"),
        )
        .unwrap();
    }
    writeln!(text, "\n{}.", origin(&json["machine"])).unwrap();
    text
}

/// Makes the table of the group `rudp`, with a line for each library.
fn sessions() -> String {
    let json = json("rudp");
    let mut text = String::from("|");
    for (_, words) in COLUMNS {
        write!(text, " | {words}").unwrap();
    }
    writeln!(text, " |\n|{}", "---|".repeat(COLUMNS.len() + 1)).unwrap();
    let first = SESSIONS[0].0;
    let ours = [(first, "ours", "ours")];
    let theirs = SESSIONS
        .iter()
        .map(|&(peer, words)| (peer, words, "theirs"));
    for (peer, words, side) in ours.into_iter().chain(theirs) {
        write!(text, "| {words}").unwrap();
        for (case, _) in COLUMNS {
            write!(text, " | {}", spread(row(&json, case, peer), side, "")).unwrap();
        }
        text.push_str(" |\n");
    }
    let sink = |peer| row(&json, "to-kcp-go", peer);
    writeln!(
        text,
        "\nCPU of our end with a sink of kcp-go: {} s/GB, {} without GSO, kcp-go's own {}.\n\n{}.",
        spread(sink("kcp-go"), "ours", ""),
        spread(sink(first), "theirs", ""),
        spread(sink("kcp-go"), "theirs", ""),
        origin(&json["machine"])
    )
    .unwrap();
    text
}

/// What a page of results says of a row with a target.
struct Outcome {
    case: String,
    peer: String,
    asked: String,
    found: String,
    is_missed: bool,
}

/// Returns what a page of results says of its targets.
fn outcomes(folder: &str) -> Vec<Outcome> {
    let file = root()
        .join("benches/report")
        .join(folder)
        .join("RESULTS.md");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
    let cells = text.lines().map(|line| line.split('|').map(str::trim));
    let mut outcomes = Vec::new();
    for cells in cells.map(Iterator::collect::<Vec<_>>) {
        let &["", case, peer, unit, ours, _, ratio, targets, ""] = &cells[..] else {
            continue;
        };
        let median = |cell: &str| cell.split(' ').next().unwrap().to_owned();
        // `met: 1.60x (#3); **missed**: ours <= 5.00 (#6)`
        for target in targets.split("; ") {
            let Some((word, asked)) = target.split_once(": ") else {
                continue;
            };
            let (asked, _issue) = asked.split_once(" (#").unwrap();
            let (asked, found) = match asked.strip_prefix("ours ") {
                Some(most) => (format!("{most} {unit}"), median(ours)),
                None => (asked.to_owned(), median(ratio) + "x"),
            };
            outcomes.push(Outcome {
                // Without how near the two CPUs were.
                case: median(case),
                peer: peer.to_owned(),
                asked,
                found,
                is_missed: word == "**missed**",
            });
        }
    }
    assert!(!outcomes.is_empty(), "{file:?} has no targets");
    let missed = outcomes.iter().filter(|outcome| outcome.is_missed).count();
    assert_eq!(missed, text.matches("**missed**").count(), "{file:?}");
    outcomes
}

/// Makes the table of the rows that miss what an issue asks on any machine.
fn missed() -> String {
    let pages: Vec<_> = MACHINES
        .iter()
        .map(|(_, folder)| outcomes(folder))
        .collect();
    let mut text = String::from("| row | asked |");
    for (machine, _) in MACHINES {
        write!(text, " {machine} |").unwrap();
    }
    writeln!(text, "\n|{}", "---|".repeat(MACHINES.len() + 2)).unwrap();
    let is_same = |one: &Outcome, other: &Outcome| {
        (&one.case, &one.peer, &one.asked) == (&other.case, &other.peer, &other.asked)
    };
    for row in pages[1..].iter().flatten().filter(|row| row.is_missed) {
        let there = pages[0].iter().any(|first| is_same(first, row));
        assert!(there, "{}/{} is missed, and left out", row.case, row.peer);
    }
    for row in &pages[0] {
        let of_page = |page| <[Outcome]>::iter(page).find(|of| is_same(of, row));
        let found: Vec<Option<&Outcome>> = pages.iter().map(|page| of_page(page)).collect();
        if !found.iter().flatten().any(|of| of.is_missed) {
            continue;
        }
        write!(text, "| {} / {} | {} |", row.case, row.peer, row.asked).unwrap();
        for of in found {
            match of {
                Some(of) if of.is_missed => write!(text, " **{}** |", of.found).unwrap(),
                Some(of) => write!(text, " {} |", of.found).unwrap(),
                None => text.push_str(" |"),
            }
        }
        text.push('\n');
    }
    text
}

/// Makes the section of what a program printed.
fn output(name: &str) -> String {
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

/// Returns the text with the block of this name replaced.
fn replaced(page: &str, name: &str, by: &str) -> String {
    let (begin, end) = marks(name);
    let (before, rest) = page
        .split_once(&begin)
        .unwrap_or_else(|| panic!("there is no line {begin}"));
    let (_, after) = rest
        .split_once(&end)
        .unwrap_or_else(|| panic!("there is no line {end}"));
    format!("{before}{begin}{by}{end}{after}")
}

fn page(file: &str) -> PathBuf {
    root().join(file)
}

#[test]
fn the_readmes_figures_match_the_json() {
    for &file in &[README, SLAB_NET, BENCHES] {
        let committed = fs::read_to_string(page(file)).unwrap();
        let sections = SECTIONS.iter().filter(|(of, ..)| *of == file);
        let made = sections.fold(committed.clone(), |text, (_, name, make)| {
            replaced(&text, name, &make())
        });
        if std::env::var_os("UPDATE_README").is_some() {
            fs::write(page(file), &made).unwrap();
            continue;
        }
        for (committed, made) in committed.lines().zip(made.lines()) {
            assert_eq!(committed, made, "{file}: make it again: UPDATE_README=1");
        }
        assert_eq!(committed, made);
    }
}

/// Returns whether a line claims a speed or size.
fn is_a_figure(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let in_words = [
        "two", "three", "four", "five", "six", "eight", "ten", "twenty",
    ];
    let number = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_digit()) || in_words.contains(&word)
    };
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
fn the_readmes_have_no_figures_outside_the_marks() {
    let text = fs::read_to_string(page(README)).unwrap();
    let sections = SECTIONS.iter().filter(|(of, ..)| *of == README);
    let rest = sections.fold(text, |text, (_, name, _)| replaced(&text, name, ""));
    for line in rest.lines() {
        assert!(!is_a_figure(line), "no JSON stands behind: {line}");
    }
}

#[test]
fn figures_are_recognised() {
    for figure in [
        "takes 3 ns.",
        "gives 5 to 20 %.",
        "6x faster",
        "about 2.5x,",
        "takes three times as long",
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
