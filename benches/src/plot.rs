//! The curves of the benchmarks as pictures.

use std::error::Error;
use std::path::Path;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A picture of curves plotted against a count, such as the number of threads.
#[derive(Debug)]
pub(crate) struct CurvePlot {
    /// The name of the file without the extension.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The label of the x axis.
    pub(crate) x: &'static str,
    /// The label of the y axis, with the unit.
    pub(crate) y: &'static str,
    /// True for logarithmic axes, for values that differ by orders of magnitude.
    pub(crate) is_logarithmic: bool,
    pub(crate) curves: &'static [CurveSource],
}

/// The rows of a curve: those of a key that ends in `*`.
#[derive(Debug)]
pub(crate) struct CurveSource {
    pub(crate) key: &'static str,
    pub(crate) label: &'static str,
    /// True for the values to which hostbuf's are compared.
    pub(crate) is_theirs: bool,
}

const fn ours(key: &'static str, label: &'static str) -> CurveSource {
    CurveSource { key, label, is_theirs: false }
}

const fn theirs(key: &'static str, label: &'static str) -> CurveSource {
    CurveSource { key, label, is_theirs: true }
}

/// All pictures of curves.
pub(crate) const CURVES: &[CurvePlot] = &[
    CurvePlot {
        name: "launch",
        title: "Time of a job with 4 ranks on each host",
        x: "hosts",
        y: "seconds",
        is_logarithmic: false,
        curves: &[
            ours("launch-scale-run-*", "hostbuf run"),
            ours("launch-scale-exec-*", "mpirun hostbuf exec"),
            theirs("launch-scale-run-*", "mpirun alone"),
        ],
    },
    CurvePlot {
        name: "cache-threads",
        title: "Hits of the registration cache",
        x: "threads",
        y: "million hits a second",
        is_logarithmic: true,
        curves: &[
            ours("cache-scale-owned-*", "own memory"),
            ours("cache-scale-apart-*", "strict, a mapping for each thread"),
            ours("cache-scale-set-*", "strict, 16 mappings"),
            ours("cache-scale-one-*", "strict, one mapping"),
            theirs("cache-scale-ucx-*", "UCX's rcache, own memory"),
        ],
    },
];

/// The points of a curve with its label.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) label: &'static str,
    pub(crate) is_theirs: bool,
    /// The numbers with the medians, in ascending order.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A row whose ratio has a bar.
#[derive(Debug)]
pub(crate) struct RatioMark {
    pub(crate) what: String,
    /// The ratio divided by the bar, or its reciprocal if more is better: below 1 the bar is met.
    pub(crate) of_bar: f64,
}

/// The colours of curves, as those of the NUMA nodes in the pictures of `hostbuf stat`.
const COLORS: [RGBColor; 5] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0x56, 0xb4, 0xe9),
];
/// The colour of values to which hostbuf's are compared.
const THEIRS: RGBColor = RGBColor(0x66, 0x66, 0x66);
/// The colour of a bar, and of ratios that miss it.
const BAR: RGBColor = RGBColor(0xd5, 0x5e, 0x00);

/// Draws curves to a file. Linear axes begin at 0, so that heights are comparable.
///
/// # Errors
/// An error if the file cannot be written.
pub(crate) fn curves(path: &Path, plot: &CurvePlot, curves: &[Curve]) -> Result<(), Box<dyn Error>> {
    let all = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MAX, f64::min);
    let (x_most, y_most) = (most(&mut all().map(|(x, _)| x)), most(&mut all().map(|(_, y)| y)));
    let area = SVGBackend::new(path, (640, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area);
    chart.caption(plot.title, ("sans-serif", 16)).margin(12).x_label_area_size(36).y_label_area_size(56);
    if plot.is_logarithmic {
        let (x_least, y_least) = (least(&mut all().map(|(x, _)| x)), least(&mut all().map(|(_, y)| y)));
        let x = (x_least / 1.1..x_most * 1.1).log_scale().base(2.0);
        // Room for the names of the curves.
        draw(chart.build_cartesian_2d(x, (y_least / 1.5..y_most * 100.0).log_scale())?, plot, curves)?;
    } else {
        draw(chart.build_cartesian_2d(0.0..x_most * 1.05, 0.0..y_most * 1.1)?, plot, curves)?;
    }
    area.present()?;
    Ok(())
}

/// Draws the axes, the curves and their names to a chart.
fn draw<'a, X, Y>(
    mut chart: ChartContext<'a, SVGBackend<'a>, Cartesian2d<X, Y>>,
    plot: &CurvePlot,
    curves: &[Curve],
) -> Result<(), Box<dyn Error>>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .x_desc(plot.x)
        .y_desc(plot.y)
        .label_style(("sans-serif", 12))
        .x_label_formatter(&|x| tick(*x))
        .y_label_formatter(&|y| tick(*y))
        .draw()?;
    for (curve, color) in curves.iter().zip(COLORS.iter().cycle()) {
        let style = if curve.is_theirs { THEIRS } else { *color }.stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))?
            .label(curve.label)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        let points = curve.points.iter().map(|&point| Circle::new(point, 3, style.filled()));
        chart.draw_series(points)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// Returns the label of a tick, without the rounding error of a multiple of its step.
fn tick(value: f64) -> String {
    ((value * 1e6).round() / 1e6).to_string()
}

/// Draws all ratios beside their bars to a file, on a logarithmic axis.
///
/// # Errors
/// An error if the file cannot be written.
pub(crate) fn ratios(path: &Path, marks: &[RatioMark]) -> Result<(), Box<dyn Error>> {
    const ROW: i32 = 18;
    const NAMES: i32 = 560;
    const WIDTH: i32 = 300;
    const TOP: i32 = 56;
    let height = TOP + ROW * marks.len() as i32 + 20;
    let area = SVGBackend::new(path, ((NAMES + WIDTH + 40) as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    let font = |size: i32| ("sans-serif", size).into_font();
    area.draw(&Text::new("Ratios relative to their bars (left of the line: met)", (16, 12), font(16)))?;
    // From a sixteenth of the bar to four times the bar.
    let (least, most) = (-4.0, 2.0);
    let place = |of_bar: f64| {
        NAMES + ((of_bar.log2().clamp(least, most) - least) / (most - least) * f64::from(WIDTH)) as i32
    };
    for (factor, text) in [(1.0 / 16.0, "1/16"), (0.25, "1/4"), (1.0, "bar"), (4.0, "4")] {
        let x = place(factor);
        let style = if factor == 1.0 { BAR.stroke_width(2) } else { BLACK.mix(0.2).stroke_width(1) };
        area.draw(&PathElement::new(vec![(x, TOP - 6), (x, height - 14)], style))?;
        let head = font(12).into_text_style(&area).pos(Pos::new(HPos::Center, VPos::Bottom));
        area.draw(&Text::new(text, (x, TOP - 8), head))?;
    }
    for (row, mark) in marks.iter().enumerate() {
        let y = TOP + ROW * row as i32 + ROW / 2;
        let name = font(12).into_text_style(&area).pos(Pos::new(HPos::Left, VPos::Center));
        // A part of the row above is indented, as in the table.
        let what = mark.what.trim_start();
        let indent = 6 * (mark.what.len() - what.len()) as i32;
        area.draw(&Text::new(what.trim_end().to_owned(), (16 + indent, y), name))?;
        let color = if mark.of_bar <= 1.0 { COLORS[0] } else { BAR };
        area.draw(&Circle::new((place(mark.of_bar), y), 4, color.filled()))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(draw: impl Fn(&Path) -> Result<(), Box<dyn Error>>, name: &str) -> String {
        let path = std::env::temp_dir().join(format!("hostbuf-plot-{name}-{}.svg", std::process::id()));
        draw(&path).expect("a picture");
        let text = std::fs::read_to_string(&path).expect("it was written");
        std::fs::remove_file(&path).expect("it is there");
        text
    }

    #[test]
    fn each_curve_has_its_points_and_label() {
        let curve = |label, is_theirs, factor: f64| Curve {
            label,
            is_theirs,
            points: [1.0, 2.0, 4.0, 8.0].map(|x| (x, x * factor)).to_vec(),
        };
        let both = [curve("own memory", false, 90.0), curve("UCX's rcache", true, 30.0)];
        let text = drawn(|path| curves(path, &CURVES[1], &both), "curves");
        for words in ["own memory", "UCX's rcache", "threads", "million hits a second", CURVES[1].title] {
            assert!(text.contains(words) || text.contains(&words.replace('\'', "&apos;")), "{words}: {text}");
        }
        assert_eq!(text.matches("<circle").count(), 8);
    }

    #[test]
    fn ticks_have_no_rounding_error() {
        assert_eq!([0.1 + 0.2, 8.0 * 0.2, 16.0, 0.0].map(tick), ["0.3", "1.6", "16", "0"]);
    }

    #[test]
    fn ratios_are_on_their_side_of_the_bar() {
        let mark = |what: &str, of_bar| RatioMark { what: what.into(), of_bar };
        let marks = [mark("met", 0.5), mark("missed", 1.5), mark("far", 1e-9)];
        let text = drawn(|path| ratios(path, &marks), "ratios");
        let at = |line: &str| {
            line.split("cx=\"").nth(1).and_then(|rest| rest.split('"').next()?.parse::<i32>().ok())
        };
        let circles: Vec<i32> = text.lines().filter_map(at).collect();
        assert_eq!(circles.len(), 3);
        let bar = 560 + 200;
        assert!(circles[0] < bar && circles[1] > bar && circles[2] == 560, "{circles:?}");
    }
}
