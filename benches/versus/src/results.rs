//! The results page: tables of what `--json` wrote earlier. The page is made from the JSON and nothing
//! else, so the two cannot differ.

use crate::report::{Report, Target, origin};
use crate::{alloc, machine, metrics, packet, rudp, udp};
use serde_json::json;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Makes the page of these files.
///
/// # Errors
/// A file cannot be read, or does not have the form that `--json` writes.
pub(crate) fn page(files: &[PathBuf]) -> Result<String, String> {
    let mut page = String::from(HEAD);
    for file in files {
        let in_file = |problem: String| format!("{}: {problem}", file.display());
        let text = fs::read_to_string(file).map_err(|error| in_file(error.to_string()))?;
        let json = serde_json::from_str(&text).map_err(|error| in_file(error.to_string()))?;
        let report = Report::from_json(&json, targets_of)
            .ok_or_else(|| in_file("it is not of the form that --json writes".into()))?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        // Writing to a String cannot fail.
        let _ = writeln!(page, "\n## {name}\n\n{}", origin(&json["machine"]));
        page.push_str(&report.markdown());
    }
    Ok(page)
}

/// Copies lines from stdin to stdout, and writes them to a file together with the machine.
///
/// # Errors
/// Something cannot be read or written, or the input is empty.
pub(crate) fn keep_output(file: &Path) -> Result<(), String> {
    let lines: Vec<String> = std::io::stdin()
        .lines()
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    if lines.is_empty() {
        return Err("stdin is empty".into());
    }
    println!("{}", lines.join("\n"));
    let json = json!({ "machine": machine::describe(), "output": lines });
    fs::write(file, format!("{json:#}\n")).map_err(|e| format!("{}: {e}", file.display()))
}

const HEAD: &str = "\
# Results of versus

Made from the JSON files beside it by `cargo run --release -p versus -- --page FILE.. > RESULTS.md`; do not
edit it. How to read it, and what each row is: `benches/README.md`.
";

fn targets_of(group: &str, case: &str, peer: &str) -> Vec<Target> {
    match group {
        "alloc" => alloc::targets_of(case, peer),
        "packet" => packet::targets_of(case, peer),
        "udp" => udp::targets_of(case, peer),
        "rudp" => rudp::targets_of(case, peer),
        "metrics" => metrics::targets_of(case, peer),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_page_matches_the_committed_json() {
        let report = Path::new(env!("CARGO_MANIFEST_DIR")).join("../report");
        for machine in [".", "intel-emerald", "amd-zen4", "amd-zen3"] {
            assert_page_matches_json(&report.join(machine));
        }
    }

    fn assert_page_matches_json(folder: &Path) {
        let mut files: Vec<PathBuf> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
            .collect();
        files.sort();
        assert!(!files.is_empty());
        let committed = fs::read_to_string(folder.join("RESULTS.md")).unwrap();
        assert!(
            page(&files).unwrap() == committed,
            "make it again in {folder:?}: cargo run -p versus -- --page *.json > RESULTS.md"
        );
    }

    #[test]
    fn a_file_of_another_format_is_refused() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(page(&[file]).is_err());
    }
}
