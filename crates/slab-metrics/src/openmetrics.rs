//! Converts the program's own metrics from Prometheus' text format to OpenMetrics.
//!
//! `metrics-exporter-prometheus` writes only the text format. OpenMetrics differs from it in little: a
//! counter's family is named without `_total`, help texts escape quotes, there are no empty lines, and
//! a last line, which the caller writes, marks the page as complete.

/// Appends the metrics of `text` in OpenMetrics 1.0.
pub(crate) fn append(page: &mut String, text: &str) {
    // The family whose samples need `_total` appended to their name.
    let mut bare_counter = None;
    // The help precedes the type, which decides the family's name.
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            let family = match kind {
                "counter" => name.strip_suffix("_total").unwrap_or(name),
                _ => name,
            };
            bare_counter = (kind == "counter" && family == name).then_some(name);
            let kind = if kind == "untyped" { "unknown" } else { kind };
            page.extend(["# TYPE ", family, " ", kind, "\n"]);
            if let Some((_, text)) = help.take().filter(|&(of, _)| of == name) {
                page.extend(["# HELP ", family, " "]);
                text.split_inclusive('"').for_each(|part| {
                    match part.strip_suffix('"') {
                        Some(before) => page.extend([before, "\\\""]),
                        None => page.push_str(part),
                    };
                });
                page.push('\n');
            }
        } else if !line.is_empty() && !line.starts_with('#') {
            match bare_counter.and_then(|name| Some((name, line.strip_prefix(name)?))) {
                Some((name, rest)) => page.extend([name, "_total", rest, "\n"]),
                None => page.extend([line, "\n"]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::append;
    use crate::{Collector, Exporter};
    use slab_core::SlabPool;
    use std::collections::BTreeSet;

    #[test]
    fn each_metric_type_is_converted_to_openmetrics() {
        let text = concat!(
            "# HELP a_total How \"many\" \\\\ a.\n",
            "# TYPE a_total counter\n",
            "a_total{pool=\"x y\"} 1\n\n",
            "# TYPE b counter\n",
            "b 2\nb{k=\"b \"} 3\n\n",
            "# TYPE b_open gauge\nb_open 9\n\n",
            "# HELP c What\\nc is.\n# TYPE c gauge\nc 4\n\n",
            "# TYPE d untyped\nd 5\n\n",
            "# TYPE e summary\ne{quantile=\"0.5\"} 6\ne_sum 7\ne_count 8\n\n",
        );
        let expected = concat!(
            "# TYPE a counter\n",
            "# HELP a How \\\"many\\\" \\\\ a.\n",
            "a_total{pool=\"x y\"} 1\n",
            "# TYPE b counter\n",
            "b_total 2\nb_total{k=\"b \"} 3\n",
            "# TYPE b_open gauge\nb_open 9\n",
            "# TYPE c gauge\n# HELP c What\\nc is.\nc 4\n",
            "# TYPE d unknown\nd 5\n",
            "# TYPE e summary\ne{quantile=\"0.5\"} 6\ne_sum 7\ne_count 8\n",
        );
        let mut page = String::new();
        append(&mut page, text);
        assert_eq!(page, expected);
        append(&mut page, "");
        assert_eq!(page, expected);
    }

    #[test]
    fn openmetrics_has_the_same_samples_and_distinct_families() {
        let pool = SlabPool::builder().name("a\"b\\c\nd").build().unwrap();
        let collector = Collector::new();
        collector.register_pool(&pool).unwrap();
        let exporter = Exporter::new(collector);
        let (text, page) = (exporter.scrape(), exporter.scrape_openmetrics());
        assert!(page.ends_with("\n# EOF\n"));
        let samples = |page: &str| -> Vec<String> {
            let lines = page
                .lines()
                .filter(|l| !l.is_empty() && !l.starts_with('#'));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(samples(&text), samples(&page));
        assert!(page.contains("# TYPE slab_pool_allocs counter\n"));
        let mut families = BTreeSet::new();
        for line in page.lines().filter(|line| line.starts_with("# TYPE ")) {
            assert!(families.insert(line.split(' ').nth(2)), "{line}: twice");
        }
        let described = page.lines().filter(|line| line.starts_with("# HELP "));
        let described: BTreeSet<_> = described.map(|line| line.split(' ').nth(2)).collect();
        assert_eq!(described, families);
    }
}
