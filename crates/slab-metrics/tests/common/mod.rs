//! A parser of Prometheus' text format, strict about everything that this crate writes.

#![allow(dead_code)] // each test binary uses a part

use std::collections::BTreeMap;

/// A page: families by name.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) families: BTreeMap<String, Family>,
}

#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Debug)]
pub(crate) struct Sample {
    /// The family's name, with a suffix if it is a histogram.
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Page {
    pub(crate) fn parse(text: &str) -> Self {
        assert!(text.is_empty() || text.ends_with('\n'));
        let mut page = Self::default();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect(line);
                let family = page.families.entry(name.into()).or_default();
                assert!(family.help.is_empty(), "help twice: {line}");
                family.help = help.into();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect(line);
                let family = page.families.entry(name.into()).or_default();
                assert!(family.kind.is_empty(), "type twice: {line}");
                assert!(family.samples.is_empty(), "type after samples: {line}");
                family.kind = kind.into();
            } else {
                let (series, value) = line.rsplit_once(' ').expect(line);
                let (name, labels) = match series.split_once('{') {
                    Some((name, rest)) => (name, parse_labels(rest)),
                    None => (series, BTreeMap::new()),
                };
                let family = family_of(name, &page.families).expect(line).to_owned();
                let family = page.families.get_mut(&family).expect(line);
                let same = |s: &Sample| s.name == name && s.labels == labels;
                assert!(!family.samples.iter().any(same), "series twice: {line}");
                family.samples.push(Sample {
                    name: name.into(),
                    labels,
                    value: value.parse().expect(line),
                });
            }
        }
        page
    }

    /// Returns the one sample with exactly these labels.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let family = family_of(name, &self.families).expect(name);
        let labels: BTreeMap<String, String> =
            labels.iter().map(|&(k, v)| (k.into(), v.into())).collect();
        let samples = &self.families[family].samples;
        let found = samples
            .iter()
            .find(|s| s.name == name && s.labels == labels);
        found
            .unwrap_or_else(|| panic!("{name}{labels:?} is not on the page"))
            .value
    }

    /// Returns the sum over all samples that have at least these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let family = self.families.get(name).expect(name);
        let has = |s: &&Sample| labels.iter().all(|&(k, v)| s.labels[k] == v);
        let mut found = family.samples.iter().filter(has).peekable();
        assert!(found.peek().is_some(), "{name}{labels:?}: none");
        found.map(|s| s.value).sum()
    }
}

/// Returns the family that a sample's name belongs to.
fn family_of<'a>(name: &'a str, families: &BTreeMap<String, Family>) -> Option<&'a str> {
    if families.contains_key(name) {
        return Some(name);
    }
    let suffixes = ["_bucket", "_sum", "_count"].iter();
    let mut stripped = suffixes.filter_map(|suffix| name.strip_suffix(suffix));
    stripped.find(|name| families.get(*name).is_some_and(|f| f.kind != "counter"))
}

/// `key="value",..}`, with the format's three escapes.
fn parse_labels(mut rest: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    while rest != "}" {
        rest = rest.strip_prefix(',').unwrap_or(rest);
        let (key, after) = rest.split_once("=\"").expect(rest);
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect("unterminated label") {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect("unterminated escape").1 {
                    'n' => value.push('\n'),
                    c @ ('"' | '\\') => value.push(c),
                    c => panic!("unknown escape: {c}"),
                },
                (_, c) => value.push(c),
            }
        };
        assert!(labels.insert(key.into(), value).is_none(), "label twice");
        rest = &after[end + 1..];
    }
    labels
}
