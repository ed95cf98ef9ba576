//! Charts: their data, kept as JSON, and how they are drawn, as SVG.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

/// Lines over two axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chart {
    /// The file's name, without its ending.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) scale: Scale,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Scale {
    /// From 0.
    Linear,
    /// From a little below the lowest value.
    Part,
    /// Rising values at equal distances, logarithmic in between.
    Steps(Vec<f64>),
    /// Names for 0, 1, ...
    Names(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The file with the data of all charts of a directory.
const DATA: &str = "charts.json";
const SIZE: (u32, u32) = (720, 420);
const COLOURS: [RGBColor; 4] = [RGBColor(200, 60, 30), RGBColor(30, 90, 170), RGBColor(60, 140, 60), BLACK];

impl Axis {
    pub(crate) fn new(label: &str, scale: Scale) -> Self {
        Self { label: label.to_owned(), scale }
    }

    /// The position of a value on the drawing.
    #[expect(clippy::cast_precision_loss, reason = "a few steps")]
    fn place(&self, value: f64) -> f64 {
        let Scale::Steps(steps) = &self.scale else { return value };
        let Some(upper) = steps.iter().position(|step| *step > value).or(steps.len().checked_sub(1)) else {
            return value;
        };
        let upper = upper.max(1);
        let [low, high] = [upper - 1, upper].map(|step| steps.get(step).copied().unwrap_or(f64::NAN).ln());
        (upper - 1) as f64 + (value.ln() - low) / (high - low)
    }

    fn range(&self, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let places = values.map(|value| self.place(value)).filter(|place| place.is_finite());
        let (low, high) = places.fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(at), high.max(at)));
        match self.scale {
            Scale::Linear => 0.0..high * 1.1,
            Scale::Part => low - (high - low) / 4.0..high + (high - low) / 8.0,
            Scale::Steps(_) | Scale::Names(_) => low - 0.15..high + 0.25,
        }
    }

    /// Most marks.
    fn marks(&self, range: &std::ops::Range<f64>) -> usize {
        #[expect(clippy::cast_sign_loss, reason = "a range that rises")]
        match self.scale {
            Scale::Linear | Scale::Part => 8,
            Scale::Steps(_) | Scale::Names(_) => (range.end - range.start).ceil() as usize + 1,
        }
    }

    /// The text at a position.
    fn text(&self, place: f64) -> String {
        let index = place.round();
        #[expect(clippy::cast_sign_loss, reason = "compared with a place")]
        let index = (index >= 0.0 && (place - index).abs() < 1e-6).then_some(index as usize);
        match &self.scale {
            Scale::Linear | Scale::Part => short(place),
            Scale::Steps(steps) => {
                index.and_then(|index| steps.get(index)).map_or_else(String::new, |step| short(*step))
            }
            Scale::Names(names) => index.and_then(|index| names.get(index)).cloned().unwrap_or_default(),
        }
    }
}

/// Up to three significant digits, thousands and millions as letters.
fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        1e6.. => (value / 1e6, " M"),
        1e4.. => (value / 1e3, " k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

impl Chart {
    fn draw(&self, file: &Path) -> Result<()> {
        let wrong = |error: &dyn std::fmt::Display| anyhow!("{}: {error}", file.display());
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let (x, y) = (self.x.range(all().map(|point| point.0)), self.y.range(all().map(|point| point.1)));
        let corner = self.empty_corner(&x, &y);
        let (x_marks, y_marks) = (self.x.marks(&x), self.y.marks(&y));
        let area = SVGBackend::new(file, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|error| wrong(&error))?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(68)
            .build_cartesian_2d(x, y)
            .map_err(|error| wrong(&error))?;
        chart
            .configure_mesh()
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .x_labels(x_marks)
            .y_labels(y_marks)
            .x_label_formatter(&|place| self.x.text(*place))
            .y_label_formatter(&|place| self.y.text(*place))
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .label_style(("sans-serif", 13))
            .draw()
            .map_err(|error| wrong(&error))?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let points: Vec<_> =
                line.points.iter().map(|(x, y)| (self.x.place(*x), self.y.place(*y))).collect();
            let dots = points.iter().map(|point| Circle::new(*point, 3, colour.filled()));
            chart.draw_series(dots).map_err(|error| wrong(&error))?;
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))
                .map_err(|error| wrong(&error))?
                .label(&line.name)
                .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(corner)
            .background_style(WHITE.mix(0.85))
            .label_font(("sans-serif", 13))
            .draw()
            .map_err(|error| wrong(&error))?;
        area.present().map_err(|error| wrong(&error))
    }

    /// The corner with the fewest points.
    fn empty_corner(&self, x: &std::ops::Range<f64>, y: &std::ops::Range<f64>) -> SeriesLabelPosition {
        let share = |range: &std::ops::Range<f64>, at: f64| (at - range.start) / (range.end - range.start);
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let crowd = |right: bool, low: bool| {
            let near = |(px, py): &&(f64, f64)| {
                let (across, up) = (share(x, self.x.place(*px)), share(y, self.y.place(*py)));
                (if right { across > 0.65 } else { across < 0.35 })
                    && (if low { up < 0.35 } else { up > 0.65 })
            };
            points().filter(near).count()
        };
        let corners = [
            (crowd(false, false), SeriesLabelPosition::UpperLeft),
            (crowd(true, false), SeriesLabelPosition::UpperRight),
            (crowd(true, true), SeriesLabelPosition::LowerRight),
            (crowd(false, true), SeriesLabelPosition::LowerLeft),
        ];
        corners
            .into_iter()
            .min_by_key(|(crowd, _)| *crowd)
            .map_or(SeriesLabelPosition::UpperLeft, |best| best.1)
    }
}

/// Draws charts into a directory and keeps their data there; other charts of the directory stay.
pub(crate) fn draw(charts: &[Chart], directory: &Path) -> Result<()> {
    let file = directory.join(DATA);
    let mut all = if file.exists() { read(&file)? } else { Vec::new() };
    for chart in charts {
        all.retain(|other| other.name != chart.name);
        all.push(chart.clone());
    }
    all.sort_by(|one, two| one.name.cmp(&two.name));
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    fs::write(&file, serde_json::to_string_pretty(&all)? + "\n")
        .with_context(|| file.display().to_string())?;
    all.iter().try_for_each(|chart| chart.draw(&directory.join(&chart.name).with_extension("svg")))
}

/// Draws the charts whose data is in a directory.
pub(crate) fn redraw(directory: &Path) -> Result<()> {
    draw(&read(&directory.join(DATA))?, directory)
}

fn read(file: &Path) -> Result<Vec<Chart>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(name: &str, value: f64) -> Chart {
        Chart {
            name: name.to_owned(),
            title: "A title".to_owned(),
            x: Axis::new("connections", Scale::Steps(vec![1.0, 10.0, 100.0])),
            y: Axis::new("seconds", Scale::Linear),
            lines: vec![Line { name: "one".to_owned(), points: vec![(1.0, value), (100.0, 2.0 * value)] }],
        }
    }

    #[test]
    fn charts_are_added_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        draw(&[chart("a", 1.0), chart("b", 1.0)], directory.path()).unwrap();
        draw(&[chart("b", 5.0)], directory.path()).unwrap();
        assert_eq!(read(&directory.path().join(DATA)).unwrap(), [chart("a", 1.0), chart("b", 5.0)]);
        let svg = fs::read_to_string(directory.path().join("b.svg")).unwrap();
        redraw(directory.path()).unwrap();
        assert!(redraw(&directory.path().join("none")).is_err());
        for text in ["A title", "connections", "seconds", "one"] {
            assert!(svg.contains(text), "{text}");
        }
    }

    #[test]
    fn places_and_their_texts() {
        let linear = Axis::new("", Scale::Linear);
        assert_eq!(
            [0.0, 0.25, 12.5, 9000.0, 25_000.0, 2e6].map(|at| linear.text(at)),
            ["0", "0.25", "12.5", "9000", "25 k", "2 M"]
        );
        let steps = Axis::new("", Scale::Steps(vec![1.0, 10.0, 1000.0]));
        for (value, place) in [(1.0, 0.0), (10.0, 1.0), (100.0, 1.5), (1000.0, 2.0), (100_000.0, 3.0)] {
            assert!((steps.place(value) - place).abs() < 1e-9, "{value}: {}", steps.place(value));
        }
        assert_eq!([0.0, 0.5, 1.0, 2.0, 3.0].map(|at| steps.text(at)), ["1", "", "10", "1000", ""]);
        let names = Axis::new("", Scale::Names(vec!["p50".to_owned(), "p99".to_owned()]));
        assert_eq!([-1.0, 0.0, 0.5, 1.0, 2.0].map(|at| names.text(at)), ["", "p50", "", "p99", ""]);
    }
}
