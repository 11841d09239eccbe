//! The table, in Markdown and JSON.

use crate::cpu::Distance;
use crate::machine;
use crate::measure::{Comparison, Spread};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Which rows to run.
pub(crate) struct Filter {
    pattern: Option<String>,
}

impl Filter {
    pub(crate) fn new(pattern: Option<String>) -> Self {
        Self { pattern }
    }

    pub(crate) fn pattern(&self) -> Option<&str> {
        self.pattern.as_deref()
    }

    pub(crate) fn matches(&self, case: &str, peer: &str) -> bool {
        let Some(pattern) = &self.pattern else {
            return true;
        };
        format!("{case}/{peer}").contains(pattern.as_str())
    }
}

/// The target that an issue sets for a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) issue: u32,
    pub(crate) bound: Bound,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// Ours is at least this many times better, by the median ratio.
    Ratio(f64),
    /// Ours is at most this, in the row's unit, by the median.
    Ours(f64),
}

/// (issue, case, peers, bound); several may apply to one row.
pub(crate) type TargetRow = (u32, &'static str, &'static [&'static str], Bound);

/// Returns the targets of a table for one row.
pub(crate) fn targets_for(table: &[TargetRow], case: &str, peer: &str) -> Vec<Target> {
    let about = |&&(_, asked, peers, _): &&TargetRow| asked == case && peers.contains(&peer);
    let target = |&(issue, _, _, bound): &TargetRow| Target { issue, bound };
    table.iter().filter(about).map(target).collect()
}

/// Returns each row that a table names.
#[cfg(test)]
pub(crate) fn rows_with_target(
    table: &'static [TargetRow],
) -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows =
        |&(_, case, peers, _): &'static TargetRow| peers.iter().map(move |&peer| (case, peer));
    table.iter().flat_map(rows)
}

impl Target {
    fn is_met(&self, found: &Comparison) -> bool {
        match self.bound {
            Bound::Ratio(least) => found.ratio.median >= least,
            Bound::Ours(most) => found.ours.median <= most,
        }
    }

    fn verdict(&self, found: &Comparison) -> String {
        let asked = match self.bound {
            Bound::Ratio(least) => format!("{}x", figure(least)),
            Bound::Ours(most) => format!("ours <= {}", figure(most)),
        };
        let word = if self.is_met(found) {
            "met"
        } else {
            "**missed**"
        };
        format!("{word}: {asked} (#{})", self.issue)
    }
}

/// One line of the table.
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) case: String,
    pub(crate) peer: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) found: Comparison,
    pub(crate) targets: Vec<Target>,
}

/// Everything that one run reports.
pub(crate) struct Report {
    ours: String,
    rows: Vec<Row>,
    left_out: Vec<(String, String)>,
    /// Why the figures may be unreliable.
    warning: Option<String>,
    /// With `--quick`.
    quick: bool,
}

impl Report {
    pub(crate) fn new(ours: String, quick: bool) -> Self {
        Self {
            ours,
            rows: Vec::new(),
            left_out: Vec::new(),
            warning: None,
            quick,
        }
    }

    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Records why something that was requested is not in the table.
    pub(crate) fn leave_out(&mut self, what: impl Into<String>, reason: impl Into<String>) {
        let (what, reason) = (what.into(), reason.into());
        eprintln!("left out: {what}: {reason}");
        self.left_out.push((what, reason));
    }

    /// Records why the figures may be unreliable.
    pub(crate) fn warn(&mut self, warning: Option<String>) {
        self.warning = warning;
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        if let Some(warning) = &self.warning {
            let _ = writeln!(text, "\n**{warning}**");
        }
        let _ = writeln!(
            text,
            "\n`ours` is {}; median (min .. max); a ratio is how many times better ours is.\n",
            self.ours
        );
        text.push_str("| case | peer | unit | ours | theirs | ratio | target |\n");
        text.push_str("|---|---|---|---|---|---|---|\n");
        for row in &self.rows {
            let found = &row.found;
            let distance = found
                .distance
                .map(|d| format!(" ({d})"))
                .unwrap_or_default();
            let verdicts: Vec<_> = row.targets.iter().map(|t| t.verdict(found)).collect();
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "| {}{distance} | {} | {} | {} | {} | {} | {} |",
                row.case,
                row.peer,
                row.unit,
                cell(&found.ours),
                cell(&found.theirs),
                cell(&found.ratio),
                verdicts.join("; "),
            );
        }
        let asked = self.rows.iter().flat_map(|row| {
            let verdict = |target: &Target| target.is_met(&row.found);
            row.targets.iter().map(verdict)
        });
        let (met, all) = asked.fold((0, 0), |(met, all), is_met| {
            (met + usize::from(is_met), all + 1)
        });
        let _ = writeln!(text, "\n{met} of {all} targets met.");
        for (reason, rows) in self.left_out_by_reason() {
            let _ = writeln!(text, "- left out, because {reason}: {}", rows.join(", "));
        }
        text
    }

    /// Parses what [`json`](Self::json) wrote, which does not include the targets of a row (group, case,
    /// peer).
    pub(crate) fn from_json(
        json: &Value,
        targets: impl Fn(&str, &str, &str) -> Vec<Target>,
    ) -> Option<Self> {
        let machine = &json["machine"];
        let text = |value: &Value| value.as_str().map(String::from);
        let row = |row: &Value| {
            let (case, peer) = (text(&row["case"])?, text(&row["peer"])?);
            let group = text(&row["group"])?;
            let distance = &machine["distance"][format!("{case}/{peer}")];
            let mut found = Comparison::from_json(row)?;
            found.distance = distance.as_str().and_then(Distance::of_name);
            Some(Row {
                targets: targets(&group, &case, &peer),
                found,
                case,
                // There are few names and the program ends soon: leak them, since elsewhere they are
                // constants.
                group: group.leak(),
                peer: peer.leak(),
                unit: text(&row["unit"])?.leak(),
            })
        };
        let left_out = machine["left_out"].as_object()?.iter();
        Some(Self {
            ours: text(&machine["ours"])?,
            rows: json["rows"]
                .as_array()?
                .iter()
                .map(row)
                .collect::<Option<_>>()?,
            left_out: left_out
                .map(|(what, reason)| Some((what.clone(), text(reason)?)))
                .collect::<Option<_>>()?,
            warning: text(&machine["warning"]),
            quick: machine["quick"].as_bool().unwrap_or_default(),
        })
    }

    fn left_out_by_reason(&self) -> Vec<(&str, Vec<&str>)> {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for (what, reason) in &self.left_out {
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, rows)) => rows.push(what),
                None => reasons.push((reason, vec![what])),
            }
        }
        reasons
    }

    /// The rows have exactly the keys that issue 9 gives; everything else (near or far, what was left out)
    /// is in `machine`.
    pub(crate) fn json(&self) -> String {
        let mut machine = machine::describe();
        machine.insert("ours".into(), json!(self.ours));
        machine.insert("quick".into(), json!(self.quick));
        if let Some(warning) = &self.warning {
            machine.insert("warning".into(), json!(warning));
        }
        let distances: Map<String, Value> = self
            .rows
            .iter()
            .filter_map(|row| {
                let distance = row.found.distance?.to_string();
                Some((format!("{}/{}", row.case, row.peer), json!(distance)))
            })
            .collect();
        machine.insert("distance".into(), Value::Object(distances));
        let left_out: Map<String, Value> = self
            .left_out
            .iter()
            .map(|(what, reason)| (what.clone(), json!(reason)))
            .collect();
        machine.insert("left_out".into(), Value::Object(left_out));
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "group": row.group,
                    "case": row.case,
                    "peer": row.peer,
                    "unit": row.unit,
                    "ours": spread(&row.found.ours),
                    "theirs": spread(&row.found.theirs),
                    "ratio": spread(&row.found.ratio),
                })
            })
            .collect();
        let whole = json!({ "machine": machine, "rows": rows });
        format!("{whole:#}\n")
    }
}

impl Comparison {
    /// Parses a row as [`Report::json`] wrote it.
    pub(crate) fn from_json(row: &Value) -> Option<Self> {
        let spread = |side: &str| {
            let figure = |name: &str| row[side][name].as_f64();
            Some(Spread {
                median: figure("median")?,
                min: figure("min")?,
                max: figure("max")?,
            })
        };
        Some(Self {
            ours: spread("ours")?,
            theirs: spread("theirs")?,
            ratio: spread("ratio")?,
            distance: None,
        })
    }
}

pub(crate) fn spread(of: &Spread) -> Value {
    json!({ "median": rounded(of.median), "min": rounded(of.min), "max": rounded(of.max) })
}

/// Formats four significant digits: more would be noise.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn cell(of: &Spread) -> String {
    format!(
        "{} ({} .. {})",
        figure(of.median),
        figure(of.min),
        figure(of.max)
    )
}

/// Formats at least three significant digits, without an exponent.
pub(crate) fn figure(value: f64) -> String {
    if value >= 1000.0 {
        format!("{value:.0}")
    } else if value >= 100.0 {
        // One more digit: the difference from 100 % matters there.
        format!("{value:.1}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Formats where and when, in one line.
pub(crate) fn origin(machine: &Value) -> String {
    let known = |name: &str| match &machine[name] {
        Value::Null => None,
        // The text contains the name.
        Value::String(text) if name == "rustc" => Some(text.clone()),
        Value::String(text) => Some(format!("{name} {text}")),
        other => Some(format!("{name} {other}")),
    };
    let names = ["date", "commit", "quick", "cpu", "cpus", "kernel", "rustc"];
    names
        .into_iter()
        .filter_map(known)
        .collect::<Vec<_>>()
        .join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let flat = |value| Spread::of([value]);
        let mut report = Report::new("slab-core".into(), true);
        report.add(Row {
            group: "alloc",
            case: "cross-2048".into(),
            peer: "mimalloc",
            unit: "ns/op",
            found: Comparison {
                ours: flat(2.0),
                theirs: flat(5.0),
                ratio: flat(2.5),
                distance: Some(Distance::Near),
            },
            targets: vec![
                Target {
                    issue: 3,
                    bound: Bound::Ratio(3.0),
                },
                Target {
                    issue: 3,
                    bound: Bound::Ours(2.0),
                },
            ],
        });
        report
    }

    #[test]
    fn a_missed_target_is_marked() {
        let text = report().markdown();
        assert!(
            text.contains("| cross-2048 (near) | mimalloc | ns/op |"),
            "{text}"
        );
        assert!(
            text.contains("**missed**: 3.00x (#3); met: ours <= 2.00 (#3)"),
            "{text}"
        );
        assert!(text.contains("1 of 2 targets met"), "{text}");
    }

    #[test]
    fn left_out_rows_are_grouped_by_reason() {
        let mut report = report();
        report.leave_out("a/x", "it is too large");
        report.leave_out("b/y", "it is too old");
        report.leave_out("c/x", "it is too large");
        let text = report.markdown();
        assert!(
            text.contains("because it is too large: a/x, c/x\n"),
            "{text}"
        );
        assert!(text.contains("because it is too old: b/y\n"), "{text}");
    }

    #[test]
    fn json_rows_have_exactly_the_specified_keys() {
        let json: Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(
            json.as_object().unwrap().keys().collect::<Vec<_>>(),
            ["machine", "rows"]
        );
        let row = &json["rows"][0];
        assert_eq!(
            row.as_object().unwrap().keys().collect::<Vec<_>>(),
            ["group", "case", "peer", "unit", "ours", "theirs", "ratio"]
        );
        for side in ["ours", "theirs", "ratio"] {
            assert_eq!(
                row[side].as_object().unwrap().keys().collect::<Vec<_>>(),
                ["median", "min", "max"]
            );
        }
        assert_eq!(json["machine"]["distance"]["cross-2048/mimalloc"], "near");
    }

    #[test]
    fn a_report_read_from_json_prints_the_same() {
        let mut report = report();
        report.warn(Some("others were here".into()));
        assert!(report.markdown().contains("**others were here**"));
        let json = serde_json::from_str(&report.json()).unwrap();
        let targets = |_: &str, _: &str, _: &str| report.rows[0].targets.clone();
        let again = Report::from_json(&json, targets).unwrap();
        assert_eq!(again.markdown(), report.markdown());
    }

    #[test]
    fn filter_matches_case_and_peer() {
        let filter = Filter::new(Some("2048/mi".into()));
        assert!(filter.matches("pair-2048", "mimalloc"));
        assert!(!filter.matches("pair-2048", "glibc"));
        assert!(Filter::new(None).matches("anything", "at all"));
    }
}
