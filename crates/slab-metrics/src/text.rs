//! [`TextPage`]: the statistics as text for Prometheus, written straight from the sources.
//!
//! Everything that does not change between two scrapes is made once: the order of the families and, of each
//! line, all but its number. A scrape then reads the sources into one list of numbers and writes the page
//! into one string. It allocates that string and nothing else, however many pools and classes there are,
//! except a list of the sessions of each RUDP endpoint. The same page from a recorder of
//! `metrics-exporter-prometheus` takes more than ten times as long (`cargo run --release -p versus --
//! metrics --only scrape/`), because its render copies every key.

use crate::collector::Collector;
use crate::names::{Family, Kind};
use crate::series::{Label, Registered};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The format of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0, without the final `# EOF`.
    OpenMetrics,
}

/// The page of one collector.
#[derive(Default)]
pub(crate) struct TextPage {
    /// The serial numbers of the sources that `blocks` was laid out for.
    serials: Vec<u64>,
    blocks: Vec<Block>,
    /// The longest page of these sources so far.
    longest: usize,
    // Kept from one scrape to the next for their memory; empty in between.
    sources: Vec<(u64, Arc<Registered>)>,
    values: Vec<u64>,
}

/// A family and all its lines, which the formats require to stand together.
struct Block {
    family: &'static Family,
    lines: Vec<Line>,
}

struct Line {
    /// Name and labels, and a space.
    prefix: Box<str>,
    number: Number,
}

/// Which of the values make the line's number.
enum Number {
    At(usize),
    /// The sum of these: a bucket of a histogram includes those before it.
    SumOf(RangeInclusive<usize>),
    /// A value in nanoseconds, written in seconds.
    Nanos(usize),
}

impl TextPage {
    /// Reads all sources and writes the page.
    pub(crate) fn render(&mut self, collector: &Collector, format: Format) -> String {
        let mut sources = std::mem::take(&mut self.sources);
        collector.copy_sources(&mut sources);
        let serials = || sources.iter().map(|&(serial, _)| serial);
        if !serials().eq(self.serials.iter().copied()) {
            // With nothing left of what the page of other sources took.
            *self = Self {
                serials: serials().collect(),
                blocks: lay_out(&sources),
                ..Self::default()
            };
        }
        self.values.clear();
        for (_, registered) in &sources {
            registered.read(&mut self.values);
        }
        // These may be the last handles to sources that were unregistered meanwhile.
        sources.clear();
        self.sources = sources;
        self.write(format)
    }

    fn write(&mut self, format: Format) -> String {
        // Numbers grow: reserve somewhat more than the longest page of these sources.
        let mut page = String::with_capacity(self.longest + self.longest / 8 + 64);
        for Block { family, lines } in &self.blocks {
            let name = match format {
                Format::OpenMetrics => family.name.strip_suffix("_total").unwrap_or(family.name),
                Format::Text => family.name,
            };
            page.extend(["# HELP ", name, " ", family.help, "\n"]);
            page.extend(["# TYPE ", name, " ", family.kind.name(), "\n"]);
            for Line { prefix, number } in lines {
                page.push_str(prefix);
                let values = &self.values;
                // Writing to a string does not fail.
                let _ = match number {
                    Number::At(at) => writeln!(page, "{}", values[*at]),
                    Number::SumOf(all) => {
                        writeln!(page, "{}", values[all.clone()].iter().sum::<u64>())
                    }
                    Number::Nanos(at) => writeln!(page, "{}", values[*at] as f64 / 1e9),
                };
            }
        }
        self.longest = self.longest.max(page.len());
        page
    }
}

/// Lays out the lines of all series by family, in the order in which families first appear.
fn lay_out(sources: &[(u64, Arc<Registered>)]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut at = 0;
    for (_, registered) in sources {
        registered.source.describe(&mut |family, labels| {
            let known = blocks.iter().position(|b| std::ptr::eq(b.family, family));
            let block = known.unwrap_or_else(|| {
                blocks.push(Block {
                    family,
                    lines: Vec::new(),
                });
                blocks.len() - 1
            });
            lines(family, labels, at, &mut blocks[block].lines);
            at += family.width();
        });
    }
    blocks
}

/// Appends the lines of one series, whose values begin at `at`.
fn lines(family: &Family, labels: &[Label], at: usize, to: &mut Vec<Line>) {
    let mut line = |suffix: &str, labels: &[Label], number| {
        to.push(Line {
            prefix: line_prefix(family.name, suffix, labels),
            number,
        });
    };
    let bounds_nanos = match family.kind {
        Kind::Counter | Kind::Gauge => return line("", labels, Number::At(at)),
        Kind::SecondsCounter => return line("", labels, Number::Nanos(at)),
        Kind::Histogram(bounds_nanos) => bounds_nanos,
    };
    let bounds = bounds_nanos.iter().map(|&n| (n as f64 / 1e9).to_string());
    for (bucket, bound) in bounds.chain(["+Inf".into()]).enumerate() {
        let labels = [labels, &[("le", bound.into())]].concat();
        line("_bucket", &labels, Number::SumOf(at..=at + bucket));
    }
    let last = at + bounds_nanos.len();
    line("_sum", labels, Number::Nanos(last + 1));
    line("_count", labels, Number::SumOf(at..=last));
}

/// `name_suffix{label="value",..} `
fn line_prefix(name: &str, suffix: &str, labels: &[Label]) -> Box<str> {
    let mut text = format!("{name}{suffix}");
    for (index, (label, value)) in labels.iter().enumerate() {
        text.push(if index == 0 { '{' } else { ',' });
        text.extend([label, "=\""]);
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                c => text.push(c),
            }
        }
        text.push('"');
    }
    text.push_str(if labels.is_empty() { " " } else { "} " });
    text.into()
}
