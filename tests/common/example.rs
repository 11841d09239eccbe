//! Where the examples are, for tests that run them.

use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

/// The path of an example. Cargo builds a package's examples before it runs its tests, into a folder beside
/// theirs, but not if it is told which tests to run. Failing is better than testing an old build.
pub(crate) fn example(name: &str) -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("examples");
    path.push(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples")
        .join(name);
    let changed = |entry: io::Result<DirEntry>| entry?.metadata()?.modified();
    let files = std::fs::read_dir(sources).unwrap();
    let newest = files.map(|entry| changed(entry).unwrap()).max();
    let built = path.metadata().and_then(|binary| binary.modified()).ok();
    assert!(
        built >= newest,
        "{} is not up to date: build it by `cargo build --example {name}`",
        path.display()
    );
    path
}
