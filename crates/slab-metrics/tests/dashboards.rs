//! The dashboard and the rules query only exported metrics, and every alert has a test.
//! `tests/prometheus.rs` checks that a real Prometheus accepts them.

use std::collections::{BTreeMap, BTreeSet};

const README: &str = include_str!("../README.md");
const DASHBOARD: &str = include_str!("../dashboards/grafana.json");
const RULES: &str = include_str!("../dashboards/rules.yml");
const RULES_TEST: &str = include_str!("../dashboards/rules_test.yml");
const LIMITS_TEST: &str = include_str!("../dashboards/rules_limits_test.yml");

/// Every exported metric: `tests/table.rs` keeps the README's table equal to the page.
fn exported() -> BTreeSet<&'static str> {
    let rows = README.lines().filter(|line| line.starts_with("| `slab_"));
    let names: BTreeSet<_> = rows.map(|line| line.split('`').nth(1).unwrap()).collect();
    assert!(names.len() > 30, "{names:?}");
    names
}

/// Returns the words that look like one of our metrics, or like a recording rule's
/// (`level:metric:operation`).
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !is_name(c))
        .filter(|word| word.starts_with("slab_") || word.contains(":slab_"))
        // A histogram is queried by its buckets.
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect()
}

fn strings<'a>(value: &'a serde_json::Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(members) => {
            for (name, member) in members {
                match member.as_str() {
                    Some(text) if name == key => found.push(text),
                    _ => strings(member, key, found),
                }
            }
        }
        serde_json::Value::Array(all) => all.iter().for_each(|v| strings(v, key, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_queries_all_exported_metrics_and_no_others() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    strings(&dashboard, "expr", &mut queries);
    assert!(queries.len() > 30, "{queries:?}");
    let asked: BTreeSet<_> = queries.iter().flat_map(|query| metrics_in(query)).collect();
    let exported = exported();
    let unknown: Vec<_> = asked.difference(&exported).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let mut missing: BTreeSet<_> = exported.difference(&asked).copied().collect();
    // In bytes there, from the other metrics of the same states.
    assert!(missing.remove("slab_pool_chunks"));
    assert!(missing.is_empty(), "not on the dashboard: {missing:?}");

    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
        let title = panel["title"].as_str().unwrap();
        let described = panel["type"] == "row" || panel["description"].as_str().unwrap() != "";
        assert!(described, "{title}");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title}");
    }
}

/// Returns what a panel shows for the query `id`: its own `setting`, or else that of the panel.
fn setting<'a>(
    panel: &'a serde_json::Value,
    id: &serde_json::Value,
    name: &str,
) -> &'a serde_json::Value {
    let fields = &panel["fieldConfig"];
    let overrides = fields["overrides"].as_array().unwrap().iter();
    let of_query = overrides
        .filter(|o| o["matcher"]["id"] == "byFrameRefID" && o["matcher"]["options"] == *id);
    let mut properties = of_query.flat_map(|o| o["properties"].as_array().unwrap());
    let own = properties.find(|property| property["id"] == name);
    let of_all = name
        .split('.')
        .fold(&fields["defaults"], |at, key| &at[key]);
    own.map_or(of_all, |property| &property["value"])
}

#[test]
fn panels_stack_only_what_adds_up_and_show_numbers_in_their_unit() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let (mut stacked, mut in_bytes) = (0, 0);
    for panel in dashboard["panels"].as_array().unwrap() {
        let no_targets = Vec::new();
        for target in panel["targets"].as_array().unwrap_or(&no_targets) {
            let (id, expr) = (&target["refId"], target["expr"].as_str().unwrap());
            // The touched and the resident bytes are a part of the committed ones, not in addition to them.
            if setting(panel, id, "custom.stacking")["mode"] == "normal" {
                stacked += 1;
                for part in ["slab_pool_resident_bytes", "slab_pool_touched_bytes"] {
                    assert!(!expr.contains(part), "{panel:#}");
                }
            }
            if setting(panel, id, "unit") == "bytes" {
                in_bytes += 1;
                assert!(
                    metrics_in(expr).iter().all(|name| name.ends_with("_bytes")),
                    "{expr}"
                );
            }
        }
    }
    assert!(stacked > 5 && in_bytes > 10, "{stacked}, {in_bytes}");
}

/// Type and labels of every metric, from the README.
fn documented() -> BTreeMap<&'static str, (&'static str, &'static str)> {
    let rows = README.lines().filter(|line| line.starts_with("| `slab_"));
    let cells = rows.map(|line| line.split('|').map(|cell| cell.trim().trim_matches('`')));
    cells
        .map(|mut cells| {
            let name = cells.nth(1).unwrap();
            (name, (cells.next().unwrap(), cells.next().unwrap()))
        })
        .collect()
}

#[test]
fn queries_of_the_dashboard_rate_counters_alone_and_select_by_the_variables() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut queries = Vec::new();
    strings(&dashboard, "expr", &mut queries);
    let documented = documented();
    for query in queries {
        let names = query.match_indices("slab_").map(|(at, _)| at);
        // Some have this in the middle as well.
        for at in names.filter(|&at| !query[..at].ends_with('_')) {
            let (name, rest) = query[at..].split_once('{').expect(query);
            let (selector, after) = rest.split_once('}').expect(query);
            let name = name.strip_suffix("_bucket").unwrap_or(name);
            let (kind, labels) = *documented.get(name).expect(query);
            for variable in ["job", "instance", "pool"] {
                let selects = selector.contains(&format!("{variable}=~\"${variable}\""));
                let expected = variable != "pool" || labels.split(", ").any(|l| l == "pool");
                assert_eq!(selects, expected, "{variable} of {name}: {query}");
            }
            let is_rate = query[..at].ends_with("rate(");
            assert_eq!(is_rate, kind != "gauge", "{name}: {query}");
            let range = after.starts_with("[$__rate_interval])");
            assert_eq!(range, is_rate, "{name}: {query}");
        }
        // What a sum is by must be a label of what it sums, and a quantile needs the buckets' bounds.
        let names = metrics_in(query).into_iter();
        let labels: BTreeSet<_> = names
            .flat_map(|name| documented[name].1.split(", "))
            .chain(["job", "instance"])
            .collect();
        let sums = query.split(" by (").skip(1);
        let by: Vec<_> = sums
            .flat_map(|sum| sum.split_once(')').unwrap().0.split(", "))
            .collect();
        assert_eq!(by.contains(&"le"), query.contains("_bucket{"), "{query}");
        let mut by = by.iter().filter(|&&label| label != "le");
        assert!(by.all(|label| labels.contains(label)), "{query}");
    }
}

#[test]
fn panels_have_the_units_of_what_they_query() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let no_targets = Vec::new();
        for target in panel["targets"].as_array().unwrap_or(&no_targets) {
            let expr = target["expr"].as_str().unwrap();
            let unit = setting(panel, &target["refId"], "unit").as_str().unwrap();
            let is_bits = expr.starts_with("8 * ");
            assert_eq!(unit == "bps", is_bits, "{unit}: {expr}");
            assert!(!is_bits || expr.contains("_bytes_total{"), "{expr}");
            let is_time = expr.contains("histogram_quantile(");
            assert_eq!(unit == "s", is_time, "{unit}: {expr}");
            // No query multiplies by a hundred.
            assert_ne!(unit, "percent", "{expr}");
            let is_share = unit == "percentunit";
            assert!(!is_share || expr.contains(" / "), "{unit}: {expr}");
        }
    }
}

#[test]
fn queries_of_the_readme_keep_the_labels_of_the_target() {
    // A target can have more labels than job and instance. What is divided by a result of `on (job, instance)`
    // has them and that result has not, so the two do not match.
    let queries = README
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let queries: Vec<_> = queries
        .filter(|query| query.contains("rate(slab_"))
        .collect();
    assert!(queries.len() > 5, "{queries:?}");
    for query in queries {
        assert!(!query.contains(" on (job"), "{query}");
        // Nor are two programs whose pools have the same name one.
        assert!(!query.contains(" by ("), "{query}");
    }
}

#[test]
fn the_rules_query_only_exported_metrics() {
    // Annotations name metrics as well, so search the whole file.
    let mut known = exported();
    known.extend(RULES.lines().filter_map(|line| {
        let (_, name) = line.split_once("- record: ")?;
        Some(name)
    }));
    let unknown: Vec<_> = metrics_in(RULES).difference(&known).copied().collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    for tests in [RULES_TEST, LIMITS_TEST] {
        let unknown: Vec<_> = metrics_in(tests).difference(&known).copied().collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}

#[test]
fn every_alert_has_advice_and_is_tested_firing_and_clearing() {
    // Alert -> has it been seen firing, and quiet after that?
    let mut seen: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
    for alert in RULES.split("- alert: ").skip(1) {
        let (name, body) = alert.split_once('\n').unwrap();
        for part in ["severity: ", "summary: ", "runbook: "] {
            assert_eq!(body.matches(part).count(), 1, "{name}: {part}");
        }
        assert!(seen.insert(name, (false, false)).is_none(), "{name} twice");
    }
    assert!(seen.len() > 10);
    for case in RULES_TEST.split("- alertname: ").skip(1) {
        let (name, body) = case.split_once('\n').unwrap();
        let (fired, cleared) = seen.get_mut(name).expect(name);
        let (_, expected) = body.split_once("exp_alerts:").unwrap();
        match expected.starts_with(" []") {
            true => *cleared |= *fired,
            false => *fired = true,
        }
    }
    for (name, state) in seen {
        assert_eq!(state, (true, true), "{name}: (fires, clears) in rules_test");
    }
}
