//! The output of `--json` has the form that issue 9 promises; no time is asserted.
#![allow(missing_docs)]

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn versus(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_versus"))
        .args(arguments)
        .output()
        .unwrap()
}

/// Runs the rows of a group that match the pattern, and returns the JSON.
fn json_of(group: &str, only: &str) -> Value {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{group}.json"));
    let file = path.to_str().unwrap();
    let output = versus(&[group, "--quick", "--only", only, "--json", file]);
    assert!(output.status.success(), "{output:?}");
    let json = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    fs::remove_file(path).unwrap();
    json
}

fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect()
}

fn assert_json_format(json: &Value) {
    assert_eq!(keys(json), ["machine", "rows"]);
    for known in [
        "kernel",
        "cpus",
        "unix_time",
        "ours",
        "distance",
        "left_out",
    ] {
        assert!(
            json["machine"].get(known).is_some(),
            "machine has no {known}"
        );
    }
    for row in json["rows"].as_array().unwrap() {
        let order = ["group", "case", "peer", "unit", "ours", "theirs", "ratio"];
        assert_eq!(keys(row), order, "{row}");
        for name in ["group", "case", "peer", "unit"] {
            assert!(!row[name].as_str().unwrap().is_empty(), "{row}");
        }
        for side in ["ours", "theirs", "ratio"] {
            assert_eq!(keys(&row[side]), ["median", "min", "max"], "{row}");
            let of = |figure: &str| row[side][figure].as_f64().unwrap();
            assert!(0.0 <= of("min") && of("min") <= of("median"), "{row}");
            assert!(of("median") <= of("max"), "{row}");
        }
        assert!(row["ratio"]["median"].as_f64().unwrap() > 0.0, "{row}");
    }
}

fn rows(json: &Value) -> Vec<(&str, &str)> {
    let rows = json["rows"].as_array().unwrap().iter();
    rows.map(|row| (row["case"].as_str().unwrap(), row["peer"].as_str().unwrap()))
        .collect()
}

#[test]
fn an_alloc_row_has_the_specified_json() {
    let json = json_of("alloc", "pair-2048/glibc");
    assert_json_format(&json);
    assert_eq!(rows(&json), [("pair-2048", "glibc")]);
}

#[test]
fn packet_rows_come_from_child_processes() {
    let json = json_of("packet", "clone-drop/bytes-");
    assert_json_format(&json);
    let found = rows(&json);
    assert!(found.contains(&("clone-drop", "bytes-glibc")), "{found:?}");
    assert!(found.contains(&("alloc-write-freeze-clone-drop", "bytes-glibc")));
}

/// Ours allocates nothing, so the ratio is to the smallest value that can be told from zero.
#[test]
fn a_count_of_zero_has_a_ratio() {
    let json = json_of("packet", "allocs-alloc-write-freeze-drop");
    assert_json_format(&json);
    let row = &json["rows"][0];
    assert_eq!(row["ours"]["max"], 0.0);
    assert_eq!(row["theirs"]["median"], 2.0);
}

#[test]
fn a_resident_scenario_runs_in_a_child() {
    let json = json_of("alloc", "trim-rss/glibc");
    assert_json_format(&json);
    assert_eq!(rows(&json), [("trim-rss", "glibc")]);
}

#[test]
fn metrics_rows_come_from_one_or_two_processes() {
    let json = json_of("metrics", "scrape-allocs/one-class");
    assert_json_format(&json);
    assert_eq!(json["rows"][0]["ours"], json["rows"][0]["theirs"]);
    let json = json_of("metrics", "scrape/recorder");
    assert_json_format(&json);
    assert_eq!(rows(&json), [("scrape", "recorder")]);
}

#[test]
fn an_unknown_peer_is_one_line_and_status_2() {
    let output = versus(&["alloc", "--ours", "nobody"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "versus: no peer is called nobody\n");
}
