//! The `rudp_transfer` example as a process of its own.

#[path = "common/example.rs"]
mod example;

use example::example;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn a_reader_that_is_gone_is_one_line_and_leaves_no_file() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rudp_transfer");
    std::fs::create_dir_all(&folder).unwrap();
    let mut transfer = Command::new(example("rudp_transfer"))
        .args(["--size=1", "--loss=0", "--reorder=0", "--delay=1ms"])
        // Where temporary files are, on Unix.
        .env("TMPDIR", &folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(transfer.stdout.take());
    let ended = transfer.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    // After the two progress bars.
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.lines().last().unwrap().starts_with("rudp_transfer: "));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_opened_is_named() {
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nowhere");
    let file = format!("--file={}", nowhere.join("file").display());
    for argument in ["--size=1", &file] {
        let mut transfer = Command::new(example("rudp_transfer"));
        let ended = transfer.arg(argument).env("TMPDIR", &nowhere).output();
        let ended = ended.unwrap();
        assert_eq!(ended.status.code(), Some(2));
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(nowhere.to_str().unwrap()), "{said}");
    }
}
