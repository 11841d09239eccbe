//! From a source of statistics to series: what they are called, and how they are read.
//!
//! A source names its series once and then gives their values as plain numbers, in the same order.
//! What becomes of them is the business of the two ways out: [`text`](crate::text) writes them on
//! a page, [`sampler`](crate::sampler) sets the handles of a recorder.

use crate::json::Json;
use crate::names::Family;
use metrics::SharedString;

/// A label's name and value.
pub(crate) type Label = (&'static str, SharedString);

/// Gets each series of a source: its family and its labels.
pub(crate) type Describe<'a> = dyn FnMut(&'static Family, &[Label]) + 'a;

/// Something registered with a collector: the handle by which its statistics are read.
pub(crate) trait Source: Send + Sync {
    /// Names every series, each combination of labels, always the same ones.
    fn describe(&self, to: &mut Describe<'_>);

    /// Appends the values of these series, in that order: [`Family::width`] numbers each. Must not
    /// allocate beyond that, for this is what runs at each scrape.
    fn read(&self, values: &mut Vec<u64>);

    /// Writes the statistics as members of an object that has a `name` already.
    fn write_json(&self, json: &mut Json);
}

/// One series: its family, a label beside those of its source, and where its value is.
pub(crate) struct Row<S: 'static>(
    pub(crate) &'static Family,
    pub(crate) Option<(&'static str, &'static str)>,
    pub(crate) fn(&S) -> u64,
);

/// Names the series of a table.
pub(crate) fn describe_rows<S>(rows: &[Row<S>], labels: &[Label], to: &mut Describe<'_>) {
    let mut all = labels.to_vec();
    for Row(family, label, _) in rows {
        all.truncate(labels.len());
        all.extend(label.map(|(name, value)| (name, value.into())));
        to(family, &all);
    }
}

/// Appends the values of a table.
pub(crate) fn read_rows<S>(rows: &[Row<S>], stats: &S, values: &mut Vec<u64>) {
    values.extend(rows.iter().map(|Row(_, _, read)| read(stats)));
}
