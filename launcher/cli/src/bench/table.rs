//! The report for people.

use hostbuf::Bytes;

use super::bench_report::BenchReport;
use super::bench_row::BenchRow;
use super::best_backend::BestBackend;
use crate::columns::align;

/// Returns a table of the backends, notes, and a line that names the best backends.
pub(super) fn text(report: &BenchReport) -> String {
    let head = ["TO", "PAGE CACHE", "BACKEND", "GB/s", "CPU s/GiB", "BOUND BY", "NOTE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.rows.iter().map(row));
    let notes: String = report.notes.iter().map(|note| format!("{note}\n")).collect();
    let best = BestBackend::lines(&report.best());
    format!("{}{}{notes}{best}", title(report), align(&rows))
}

fn title(report: &BenchReport) -> String {
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let (files, read) = (&report.files.0, report.files.read_bytes());
    let all: u64 = files.iter().map(|file| file.bytes).sum();
    let first = if read < all { format!("the first {} of ", Bytes(read)) } else { String::new() };
    format!(
        "hostbuf bench: {first}{} in {}, {}, {}\n",
        Bytes(all),
        count(files.len(), "file"),
        count(report.rounds, "round"),
        count(report.threads, "thread")
    )
}

fn row(row: &BenchRow) -> Vec<String> {
    let figures = row.median().map(|sample| {
        let (rate, cpu) = (sample.rate() / 1e9, sample.cpu_per_gib());
        [format!("{rate:.2}"), format!("{cpu:.2}"), sample.bound_by().to_owned()]
    });
    let names = [row.to.clone(), row.cache.to_string(), row.backend.to_string()];
    let figures = figures.unwrap_or_else(|| ["-", "-", "-"].map(str::to_owned));
    names.into_iter().chain(figures).chain([row.note()]).collect()
}
