//! The table of results: the measurements of each row, and whether the row meets its bar.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::json;

use crate::plot::{self, CURVES, Curve, RatioMark};
use crate::rows::Bar::{self, AtLeast, AtMost};
use crate::rows::Ratio::{Over, Speed, SpeedByTurn};
use crate::rows::Unit::{self, Bytes, Count, Rate, Seconds, Share};
use crate::rows::{FigureRow, ROWS};
use crate::sample::median;

#[derive(Default)]
struct Measured {
    sides: BTreeMap<String, Vec<f64>>,
    notes: Vec<String>,
    /// The reason why there is no figure.
    unmeasured: Option<String>,
}

/// Reads samples from standard input and prints the table; `--json FILE` also writes it to FILE,
/// `--markdown FILE` appends it as a section of docs/figures.md, and `--plot DIR` draws the curves
/// and the ratios to files in DIR. The status is 0 if all bars are met.
pub(crate) fn report(arguments: &[&str]) -> ExitCode {
    let mut all: BTreeMap<String, Measured> = BTreeMap::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if let Some(rest) = line.strip_prefix("@ ") {
            let words: Vec<&str> = rest.split(' ').collect();
            if let [key, side, value] = words[..]
                && let Ok(value) = value.parse()
            {
                all.entry(key.into()).or_default().sides.entry(side.into()).or_default().push(value);
            }
        } else if let Some((key, text)) = line.strip_prefix("# ").and_then(|rest| rest.split_once(' ')) {
            all.entry(key.into()).or_default().notes.push(text.into());
        } else if let Some((key, why)) = line.strip_prefix("! ").and_then(|rest| rest.split_once(' ')) {
            all.entry(key.into()).or_default().unmeasured = Some(why.into());
        }
    }
    let mut lines = Vec::new();
    let mut records = Vec::new();
    let mut missed = 0;
    let mut marks = Vec::new();
    let rows: Vec<(&FigureRow, String, String)> = ROWS.iter().flat_map(|row| each_of(row, &all)).collect();
    for (row, key, what) in &rows {
        let Some(measured) = all.get(key) else { continue };
        if let Some(why) = &measured.unmeasured {
            lines.push([what, "", "", "", "", "not measured"].map(str::to_owned));
            records.push(json!({ "key": key, "what": what.trim(), "unmeasured": why }));
            continue;
        }
        let values = |side: &str| measured.sides.get(side).map_or(&[][..], Vec::as_slice);
        let (ours, theirs) = (values("ours"), values("theirs"));
        if ours.is_empty() || theirs.is_empty() {
            continue;
        }
        let (a, b) = (median(ours), median(theirs));
        let ratio = match row.ratio {
            Over => a / b,
            Speed => b / a,
            SpeedByTurn => {
                median(&ours.iter().zip(theirs).map(|(ours, theirs)| theirs / ours).collect::<Vec<_>>())
            }
        };
        let (bar, met) = match row.bar {
            AtMost(most) => (format!("<= {most}"), Some(ratio <= most)),
            AtLeast(least) => (format!(">= {least}"), Some(ratio >= least)),
            Bar::None => (String::new(), None),
        };
        missed += usize::from(met == Some(false));
        let of_bar = match row.bar {
            AtMost(most) => Some(ratio / most),
            AtLeast(least) => Some(least / ratio),
            Bar::None => None,
        };
        marks.extend(of_bar.map(|of_bar| RatioMark { what: what.clone(), of_bar }));
        let verdict = met.map_or("", |m| if m { "met" } else { "MISSED" });
        lines.push([
            what.clone(),
            show(row.unit, a),
            show(row.unit, b),
            format!("{ratio:.3}"),
            bar.clone(),
            verdict.to_owned(),
        ]);
        records.push(json!({
            "key": key, "what": what.trim(), "ours": a, "theirs": b, "ratio": ratio, "bar": bar, "met": met,
            "samples": { "ours": ours, "theirs": theirs }, "notes": measured.notes,
        }));
    }
    print(&lines);
    for (_, key, _) in &rows {
        for text in all.get(key).iter().flat_map(|m| m.notes.iter().chain(&m.unmeasured)) {
            println!("{key}: {text}");
        }
    }
    for pair in arguments.chunks(2) {
        let written = match *pair {
            ["--json", file] => {
                std::fs::write(file, format!("{:#}\n", json!({ "rows": records, "missed": missed })))
            }
            ["--markdown", file] => markdown(file, &lines),
            ["--plot", folder] => plot_all(folder, &all, &marks),
            _ => continue,
        };
        if let Err(error) = written {
            eprintln!("bench: writing {}: {error}", pair[1]);
            return ExitCode::from(2);
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Draws the curves of which at least two points were measured, and the ratios with bars.
fn plot_all(folder: &str, all: &BTreeMap<String, Measured>, marks: &[RatioMark]) -> std::io::Result<()> {
    let folder = std::path::Path::new(folder);
    std::fs::create_dir_all(folder)?;
    let other = |error: Box<dyn std::error::Error>| std::io::Error::other(error.to_string());
    for plot in CURVES {
        let curve = |source: &plot::CurveSource| {
            let prefix = source.key.trim_end_matches('*');
            let side = if source.is_theirs { "theirs" } else { "ours" };
            let point = |(key, measured): (&String, &Measured)| {
                let number = key.strip_prefix(prefix)?.parse::<u32>().ok()?;
                Some((f64::from(number), median(measured.sides.get(side)?)))
            };
            let mut points: Vec<(f64, f64)> = all.iter().filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Curve { label: source.label, is_theirs: source.is_theirs, points }
        };
        let mut curves: Vec<Curve> = plot.curves.iter().map(curve).collect();
        curves.retain(|curve| curve.points.len() > 1);
        if !curves.is_empty() {
            plot::curves(&folder.join(format!("{}.svg", plot.name)), plot, &curves).map_err(other)?;
        }
    }
    if marks.is_empty() { Ok(()) } else { plot::ratios(&folder.join("ratios.svg"), marks).map_err(other) }
}

/// Returns `row` with its key and text. If the key ends in `*`, returns one row for each measured
/// number, in ascending order.
fn each_of<'a>(row: &'a FigureRow, all: &BTreeMap<String, Measured>) -> Vec<(&'a FigureRow, String, String)> {
    let Some(prefix) = row.key.strip_suffix('*') else {
        return vec![(row, row.key.to_owned(), row.what.to_owned())];
    };
    let number = |key: &String| key.strip_prefix(prefix)?.parse::<u64>().ok();
    let mut numbers: Vec<u64> = all.keys().filter_map(number).collect();
    numbers.sort_unstable();
    let one = |n: u64| (row, format!("{prefix}{n}"), row.what.replacen('*', &n.to_string(), 1));
    numbers.into_iter().map(one).collect()
}

fn show(unit: Unit, value: f64) -> String {
    match unit {
        Seconds if value.abs() < 1e-6 => format!("{:.1} ns", value * 1e9),
        Seconds if value.abs() < 1e-3 => format!("{:.1} µs", value * 1e6),
        Seconds if value.abs() < 1.0 => format!("{:.1} ms", value * 1e3),
        Seconds => format!("{value:.2} s"),
        Bytes => format!("{:.1} MiB", value / 1048576.0),
        Share => format!("{:.2} %", value * 100.0),
        Count => format!("{value:.3}"),
        Rate => format!("{:.1} MiB/s", value / 1048576.0),
    }
}

/// Appends the table to `file`, under a heading that names the machine.
fn markdown(file: &str, lines: &[[String; 6]]) -> std::io::Result<()> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (cpuinfo, meminfo) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kilobytes: u64 = field(&meminfo, "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
    let mut text = format!(
        "\n## {cores} cores ({}), {} GiB, kernel {}\n\n| what | ours | theirs | ratio | bar | |\n| --- | --- | --- | --- | --- | --- |\n",
        field(&cpuinfo, "model name"),
        kilobytes >> 20,
        read("/proc/sys/kernel/osrelease").trim()
    );
    for line in lines {
        text.push_str(&format!("| {} |\n", line.each_ref().map(|cell| cell.trim()).join(" | ")));
    }
    let mut file = std::fs::File::options().append(true).create(true).open(file)?;
    std::io::Write::write_all(&mut file, text.as_bytes())
}

fn print(lines: &[[String; 6]]) {
    let head = ["what", "ours", "theirs", "ratio", "bar", ""].map(str::to_owned);
    let all = || std::iter::once(&head).chain(lines);
    let widths: [usize; 6] =
        std::array::from_fn(|i| all().map(|line| line[i].chars().count()).max().unwrap_or(0));
    for line in all() {
        let cells: Vec<String> = line
            .iter()
            .zip(widths)
            .enumerate()
            .map(
                |(i, (cell, width))| {
                    if (1..4).contains(&i) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                },
            )
            .collect();
        println!("{}", cells.join("  ").trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A curve needs two points.
    #[test]
    fn curves_of_at_least_two_points_are_drawn() {
        let measured = |value: f64| Measured {
            sides: ["ours", "theirs"].map(|side| (side.to_owned(), vec![value, value])).into(),
            ..Measured::default()
        };
        let keys =
            ["launch-scale-run-4", "launch-scale-run-16", "launch-scale-exec-4", "cache-scale-owned-1"];
        let all = keys.into_iter().map(|key| (key.to_owned(), measured(2.0))).collect();
        let folder = std::env::temp_dir().join(format!("hostbuf-plots-{}", std::process::id()));
        let name = folder.to_str().expect("UTF-8");
        plot_all(name, &all, &[RatioMark { what: "a row".into(), of_bar: 0.5 }]).expect("pictures");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let launch = read("launch.svg").expect("two points");
        assert!(launch.contains("hostbuf run") && launch.contains("mpirun alone"), "{launch}");
        assert!(!launch.contains("mpirun hostbuf exec"), "{launch}");
        assert!(read("ratios.svg").is_some_and(|ratios| ratios.contains("a row")));
        assert!(read("cache-threads.svg").is_none());
        std::fs::remove_dir_all(&folder).expect("it was made");
    }
}
