//! Line charts over a logarithmic axis, four to a picture.

use std::fmt::Write;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 260.0;
/// Around the lines of a chart.
const LEFT: f64 = 66.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 72.0;
const BOTTOM: f64 = 34.0;
/// Distinguishable also by the colour-blind, on white and on black.
const COLOURS: [&str; 4] = ["#2f81f7", "#d55e00", "#009e73", "#b07aa1"];
/// Lines that lie on each other can all be seen.
const DASHES: [&str; 4] = ["none", "none", "2 6", "none"];

/// How heights are spread.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scale {
    Linear,
    Logarithmic,
}

pub(crate) struct Line {
    label: String,
    points: Vec<(f64, f64)>,
}

impl Line {
    pub(crate) fn new(label: &str, points: Vec<(f64, f64)>) -> Self {
        Self { label: label.to_owned(), points }
    }
}

pub(crate) struct Chart {
    pub(crate) title: &'static str,
    pub(crate) scale: Scale,
    pub(crate) unit: fn(f64) -> String,
    pub(crate) lines: Vec<Line>,
}

/// The charts in two columns, as SVG.
pub(crate) fn draw(charts: &[Chart]) -> String {
    let n_rows = charts.len().div_ceil(2);
    let (width, height) = (2.0 * WIDTH, HEIGHT * to_f64(n_rows));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <style>\n  text {{ fill: #24292f }}\n  .axis {{ stroke: #8c959f; fill: none }}\n  .grid {{ stroke: #d0d7de; stroke-dasharray: 2 4 }}\n\
         \x20 .back {{ fill: #ffffff }}\n  @media (prefers-color-scheme: dark) {{\n    text {{ fill: #e6edf3 }} .back {{ fill: #0d1117 }} .grid {{ stroke: #30363d }}\n  }}\n</style>\n\
         <rect class=\"back\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>\n"
    );
    for (index, chart) in charts.iter().enumerate() {
        let (x, y) = (WIDTH * to_f64(index % 2), HEIGHT * to_f64(index / 2));
        // Writing to a string cannot fail.
        let _ = write!(svg, "<g transform=\"translate({x} {y})\">\n{}</g>\n", chart.draw());
    }
    svg + "</svg>\n"
}

impl Chart {
    fn draw(&self) -> String {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let (from, to) = range(all().map(|point| point.0));
        let (low, high) = match self.scale {
            Scale::Linear => (0.0, 1.1 * range(all().map(|point| point.1)).1),
            Scale::Logarithmic => decades(range(all().map(|point| point.1))),
        };
        let across = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * share(x.ln(), from.ln(), to.ln());
        let down = |y: f64| {
            let share = match self.scale {
                Scale::Linear => share(y, low, high),
                Scale::Logarithmic => share(y.ln(), low.ln(), high.ln()),
            };
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
        };

        let mut svg = format!(
            "<text x=\"{LEFT}\" y=\"22\" font-size=\"14\" font-weight=\"bold\">{}</text>\n",
            self.title
        );
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>");
        for y in self.ticks(low, high) {
            let (at, label) = (down(y), (self.unit)(y));
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>");
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                at + 4.0
            );
        }
        let mut marks: Vec<f64> = all().map(|point| point.0).collect();
        marks.sort_by(f64::total_cmp);
        marks.dedup();
        for x in marks {
            let (at, below) = (across(x), bottom + 18.0);
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{}</text>",
                with_commas(x)
            );
        }
        let (mut label_x, mut label_y) = (LEFT, 42.0);
        for ((line, colour), dash) in self.lines.iter().zip(COLOURS).zip(DASHES) {
            let points: Vec<(f64, f64)> = line.points.iter().map(|&(x, y)| (across(x), down(y))).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
                path.join(" ")
            );
            for (x, y) in points {
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
            let width = 24.0 + 5.8 * to_f64(line.label.chars().count());
            if label_x + width > right {
                (label_x, label_y) = (LEFT, label_y + 15.0);
            }
            let _ = writeln!(
                svg,
                "<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"{colour}\"/>",
                label_x + 4.0,
                label_y - 4.0
            );
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{label_y}\" font-size=\"11\">{}</text>",
                label_x + 12.0,
                line.label
            );
            label_x += width;
        }
        svg
    }

    fn ticks(&self, low: f64, high: f64) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = 10_f64.powf((high / 3.0).log10().floor());
                let step = [1.0, 2.0, 5.0]
                    .map(|n| n * step)
                    .into_iter()
                    .rfind(|step| high / step >= 3.0)
                    .unwrap_or(step);
                std::iter::successors(Some(0.0), |at| Some(at + step)).take_while(|at| *at <= high).collect()
            }
            Scale::Logarithmic => std::iter::successors(Some(low), |at| Some(at * 10.0))
                .take_while(|at| *at <= high * 1.001)
                .collect(),
        }
    }
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
}

/// The powers of ten around a range.
fn decades((low, high): (f64, f64)) -> (f64, f64) {
    (10_f64.powf(low.log10().floor()), 10_f64.powf((high / 1.2).log10().ceil()))
}

fn share(value: f64, low: f64, high: f64) -> f64 {
    if high > low { (value - low) / (high - low) } else { 0.5 }
}

fn with_commas(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn to_f64(number: usize) -> f64 {
    number as f64
}
