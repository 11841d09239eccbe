//! The plots and the page, made from the JSON and nothing else.

use super::Axis;
use crate::report::{figure, origin};
use plotters::prelude::*;
use serde_json::Value;
use std::fmt::Write as _;

/// A file's name and its text, for each plot; the page is last.
pub(super) fn files(json: &Value) -> Result<Vec<(String, String)>, String> {
    let points = points(json).ok_or("it is not of the form that --scaling writes")?;
    let mut files = Vec::new();
    let mut page = format!("{HEAD}\n{}\n", origin(&json["machine"]));
    if let Some(warning) = json["machine"]["warning"].as_str() {
        let _ = writeln!(page, "\n**{warning}**");
    }
    for axis in Axis::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "\n## {}\n\n{}.\n",
            axis.name(),
            capital(axis.description())
        );
        for (measure, unit) in Measure::ALL.into_iter().zip(axis.units()) {
            let name = format!("{}-{}.svg", axis.name(), measure.name());
            let lines = lines(axis, measure, &points);
            let _ = writeln!(page, "![{unit} against {}]({name})", axis.name());
            files.push((name, plot(axis, unit, &lines).map_err(|e| e.to_string())?));
        }
        for (measure, unit) in Measure::ALL.into_iter().zip(axis.units()) {
            table(&mut page, axis, measure, unit, &points);
        }
    }
    if let Some(left_out) = json["machine"]["left_out"].as_object() {
        for (what, reason) in left_out {
            let reason = reason.as_str().unwrap_or_default();
            let _ = writeln!(page, "\nLeft out: {what}, because {reason}.");
        }
    }
    files.push(("README.md".into(), page));
    Ok(files)
}

const HEAD: &str = "\
# Scaling

Made from `scaling.json` beside it by `cargo run --release -p versus -- --scaling
benches/report/scaling`, which measures first (`--draw` only draws); do not edit it. Medians of the
rounds, with bars from the least to the most. **Bold** in a table is where a peer beats ours.
";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Measure {
    Throughput,
    Cpu,
}

impl Measure {
    const ALL: [Self; 2] = [Self::Throughput, Self::Cpu];

    fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Cpu => "cpu",
        }
    }

    /// Returns whether `theirs` beats `ours`.
    fn beats(self, theirs: f64, ours: f64) -> bool {
        match self {
            Self::Throughput => theirs > ours,
            Self::Cpu => theirs < ours,
        }
    }
}

/// One point of the JSON: its plot, position and peer; throughput and CPU, each as median, least, most.
struct Plotted {
    against: String,
    at: usize,
    side: String,
    values: [[f64; 3]; 2],
}

fn points(json: &Value) -> Option<Vec<Plotted>> {
    let point = |point: &Value| {
        let values = |name: &str| {
            let value = |of: &str| point[name][of].as_f64();
            Some([value("median")?, value("min")?, value("max")?])
        };
        Some(Plotted {
            against: point["against"].as_str()?.into(),
            at: point["at"].as_u64()? as usize,
            side: point["side"].as_str()?.into(),
            values: [values("throughput")?, values("cpu")?],
        })
    };
    json["points"].as_array()?.iter().map(point).collect()
}

/// A peer's name, and its points with median, least and most.
type Line = (&'static str, Vec<(f64, [f64; 3])>);

fn lines(axis: Axis, measure: Measure, points: &[Plotted]) -> Vec<Line> {
    let line = |&side: &&'static str| {
        let of_side = points
            .iter()
            .filter(|p| p.against == axis.name() && p.side == side);
        let places = of_side.map(|p| (p.at as f64, p.values[measure as usize]));
        (side, places.collect())
    };
    axis.sides().iter().map(line).collect()
}

/// Ours comes first.
const COLOURS: [RGBColor; 6] = [
    RGBColor(200, 30, 30),
    RGBColor(70, 70, 70),
    RGBColor(30, 110, 200),
    RGBColor(20, 150, 90),
    RGBColor(190, 130, 0),
    RGBColor(140, 70, 180),
];

fn plot(axis: Axis, unit: &str, lines: &[Line]) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    let all = || lines.iter().flat_map(|(_, places)| places);
    let least = all()
        .map(|(_, [_, least, _])| *least)
        .fold(f64::MAX, f64::min);
    let most = all().map(|(_, [.., most])| *most).fold(0.0, f64::max);
    let positions = axis.positions();
    let (first, last) = (positions[0] as f64, positions[positions.len() - 1] as f64);
    {
        let root = SVGBackend::with_string(&mut text, (760, 460)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(
                format!("{unit} against {}", axis.name()),
                ("sans-serif", 18),
            )
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(
                // Room for the names on the right.
                (first * 0.9..last * 2.0).log_scale().base(2.0),
                (least * 0.8..most * 1.25).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc(axis.name())
            .y_desc(format!("{unit} (logarithmic)"))
            .x_label_formatter(&|at| format!("{at:.0}"))
            .y_label_formatter(&|value| figure(*value))
            .light_line_style(WHITE)
            .draw()?;
        for ((side, places), colour) in lines.iter().zip(COLOURS) {
            let medians = places.iter().map(|&(at, [median, ..])| (at, median));
            chart
                .draw_series(
                    LineSeries::new(medians.clone(), colour.stroke_width(2)).point_size(3),
                )?
                .label(*side)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            chart.draw_series(places.iter().map(|&(at, [_, least, most])| {
                PathElement::new([(at, least), (at, most)], colour.stroke_width(1))
            }))?;
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.4))
            .draw()?;
        root.present()?;
    }
    text.push('\n');
    Ok(text)
}

fn table(page: &mut String, axis: Axis, measure: Measure, unit: &str, points: &[Plotted]) {
    let sides = axis.sides();
    let _ = writeln!(
        page,
        "\n| {}, {unit} | {} |",
        axis.name(),
        sides.join(" | ")
    );
    let _ = writeln!(page, "|---|{}", "---|".repeat(sides.len()));
    for &at in axis.positions() {
        let of = |side: &str| {
            let here = |p: &&Plotted| p.against == axis.name() && p.at == at && p.side == side;
            points
                .iter()
                .find(here)
                .map(|p| p.values[measure as usize][0])
        };
        let ours = of(sides[0]);
        let cell = |side: &&'static str| match (of(side), ours) {
            (None, _) => "-".into(),
            (Some(theirs), Some(ours)) if measure.beats(theirs, ours) => {
                format!("**{}**", figure(theirs))
            }
            (Some(value), _) => figure(value),
        };
        let cells: Vec<String> = sides.iter().map(cell).collect();
        let _ = writeln!(page, "| {at} | {} |", cells.join(" | "));
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn json() -> Value {
        let spread = |value: f64| json!({ "median": value, "min": value, "max": value });
        let point = |side: &str, value: f64| {
            json!({
                "against": "threads", "at": 4, "side": side,
                "throughput": spread(value), "cpu": spread(value),
            })
        };
        json!({
            "machine": { "cpu": "abacus", "left_out": { "threads-2/glibc": "it is away" } },
            "points": [point("slab-core", 2.0), point("mimalloc", 3.0), point("jemalloc", 1.0)],
        })
    }

    #[test]
    fn a_peer_that_beats_ours_is_bold_for_rates_and_costs() {
        let files = files(&json()).unwrap();
        let (name, page) = files.last().unwrap();
        assert_eq!(name, "README.md");
        assert!(
            page.contains("| 4 | 2.00 | - | **3.00** | 1.00 |"),
            "{page}"
        );
        assert!(
            page.contains("| 4 | 2.00 | - | 3.00 | **1.00** |"),
            "{page}"
        );
        assert!(
            page.contains("threads-2/glibc, because it is away"),
            "{page}"
        );
    }

    #[test]
    fn every_side_is_in_the_plot() {
        let files = files(&json()).unwrap();
        let (_, svg) = files.iter().find(|f| f.0 == "threads-cpu.svg").unwrap();
        for side in Axis::Threads.sides() {
            assert!(svg.contains(side), "{side}");
        }
    }

    #[test]
    fn another_format_is_refused() {
        assert!(files(&json!({ "points": [{ "at": 1 }] })).is_err());
    }
}
