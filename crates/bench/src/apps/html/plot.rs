//! The plots of the page, as SVG.

use std::fmt::Write;

use super::super::report::{median, title};
use super::super::{Measured, Times};
use super::escape::escaped;
use crate::contender::ContenderName;

/// Pixels. Labels are at the left of a plot, values at the right of bars.
const WIDTH: f64 = 900.0;
const LABELS: f64 = 180.0;
const VALUES: f64 = 80.0;
const ROW: f64 = 24.0;
const BAR: f64 = 14.0;
const MARGIN: f64 = 10.0;

/// Ratios that the axis may have a line at.
const TICKS: [f64; 19] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
    200.0, 500.0, 1000.0,
];

/// Returns a colour from the palette of Okabe and Ito, which the colour-blind can tell apart.
const fn colour(name: ContenderName) -> &'static str {
    match name {
        ContenderName::Interposed => "#0072b2",
        ContenderName::Fuse => "#56b4e9",
        ContenderName::PassthroughLl => "#999999",
        ContenderName::Tmpfs => "#009e73",
        ContenderName::Ext4 => "#d55e00",
        ContenderName::Xfs => "#e69f00",
    }
}

/// A logarithmic axis from one tick to another.
struct Axis {
    ticks: Vec<f64>,
}

impl Axis {
    /// Returns an axis with room for all values, which are positive.
    fn over(values: &[f64]) -> Self {
        let least = values.iter().copied().fold(1.0, f64::min);
        let most = values.iter().copied().fold(1.0, f64::max);
        let first = TICKS.iter().rposition(|tick| *tick < least).unwrap_or(0);
        let last = TICKS.iter().position(|tick| *tick > most).unwrap_or(TICKS.len() - 1);
        Self { ticks: TICKS[first..=last].to_vec() }
    }

    /// The place of a value. One beyond the axis is at its end.
    fn at(&self, value: f64) -> f64 {
        let (first, last) = (self.ticks[0], self.ticks[self.ticks.len() - 1]);
        let share = (value / first).ln() / (last / first).ln();
        LABELS + share.clamp(0.0, 1.0) * (WIDTH - LABELS - 2.0 * MARGIN)
    }
}

/// The ratios of all workloads to ext4, a row each. Empty if there are none.
pub(super) fn ratios(names: &[ContenderName], workloads: &[Measured]) -> String {
    let ratio = |times: &Times| times.ratios.to_ext4;
    let all: Vec<f64> =
        workloads.iter().flat_map(|it| it.times.iter().flatten().filter_map(ratio)).collect();
    if all.is_empty() {
        return String::new();
    }
    let axis = Axis::over(&all);
    let top = ROW + MARGIN;
    let bottom = top + ROW * workloads.len() as f64;
    let mut svg = open(bottom + ROW, "times of all contenders divided by those of ext4");
    legend(&mut svg, names);
    for tick in &axis.ticks {
        let (x, class) = (axis.at(*tick), if *tick == 1.0 { "one" } else { "grid" });
        let _ = writeln!(
            svg,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
            bottom + ROW - MARGIN
        );
    }
    for (row, measured) in workloads.iter().enumerate() {
        let y = top + ROW * (row as f64 + 0.5);
        label(&mut svg, y, &title(measured));
        for (name, times) in names.iter().zip(&measured.times) {
            let Some(ratio) = times.as_ref().and_then(ratio) else { continue };
            let (x, fill) = (axis.at(ratio), colour(*name));
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{fill}\" fill-opacity=\".85\">\
                 <title>{}: {ratio:.2}</title></circle>",
                escaped(name.name())
            );
        }
    }
    svg + "</svg>\n"
}

/// The times of one workload, a bar for each contender.
pub(super) fn bars(names: &[ContenderName], measured: &Measured) -> String {
    let rounds = measured.times.iter().flatten().flat_map(|times| times.rounds_ns.iter().copied());
    let most = rounds.fold(1.0, f64::max);
    let scale = |ns: f64| LABELS + ns / most * (WIDTH - LABELS - VALUES);
    let mut svg = open(ROW * names.len() as f64, &format!("times of {}", title(measured)));
    for (row, (name, times)) in names.iter().zip(&measured.times).enumerate() {
        let y = ROW * (row as f64 + 0.5);
        label(&mut svg, y, name.name());
        match times {
            Some(times) => bar(&mut svg, y, colour(*name), times, scale),
            None => {
                let _ = writeln!(svg, "<text x=\"{LABELS}\" y=\"{:.1}\">failed</text>", y + 4.0);
            }
        }
    }
    svg + "</svg>\n"
}

fn bar(svg: &mut String, y: f64, fill: &str, times: &Times, scale: impl Fn(f64) -> f64) {
    let end = scale(times.spread.median_ns);
    let (top, width) = (y - BAR / 2.0, end - LABELS);
    let _ = writeln!(
        svg,
        "<rect x=\"{LABELS}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\" \
         fill-opacity=\".7\"/>"
    );
    let (from, to) = (scale(times.spread.p25_ns), scale(times.spread.p75_ns));
    let _ = writeln!(
        svg,
        "<line class=\"one\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" \
         stroke-width=\"2\"/>"
    );
    let mut furthest = end;
    for ns in &times.rounds_ns {
        let x = scale(*ns);
        furthest = furthest.max(x);
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"none\" stroke=\"currentColor\"/>"
        );
    }
    let (x, below) = (furthest + MARGIN, y + 4.0);
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{below:.1}\">{} ms</text>", median(times));
}

fn open(height: f64, title: &str) -> String {
    let title = escaped(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{title}\">\n"
    )
}

fn legend(svg: &mut String, names: &[ContenderName]) {
    for (number, name) in names.iter().enumerate() {
        let x = LABELS + 115.0 * number as f64;
        let (fill, text, name) = (colour(*name), x + 10.0, escaped(name.name()));
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"12\" r=\"5\" fill=\"{fill}\"/>\
             <text x=\"{text}\" y=\"16\">{name}</text>"
        );
    }
}

fn label(svg: &mut String, y: f64, text: &str) {
    let (x, y, text) = (LABELS - MARGIN, y + 4.0, escaped(text));
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_room_for_its_values_and_for_one() {
        let axis = Axis::over(&[2.0, 3.0]);
        assert_eq!(axis.ticks, [0.5, 1.0, 2.0, 5.0]);
        assert!(axis.at(0.5) < axis.at(1.0) && axis.at(1.0) < axis.at(3.0));
        let wide = Axis::over(&[1e-6, 1e6]);
        assert_eq!(wide.ticks.len(), TICKS.len());
        assert_eq!((wide.at(1e-6), wide.at(1e6)), (LABELS, WIDTH - 2.0 * MARGIN));
    }
}
