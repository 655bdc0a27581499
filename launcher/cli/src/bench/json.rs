//! The report for programs.

use serde_json::{Value, json};

use super::bench_report::BenchReport;
use super::bench_row::BenchRow;
use super::bench_sample::BenchSample;
use super::best_backend::BestBackend;
use super::measured_files::MeasuredFile;

/// Returns the report as JSON. `null` stands for a figure that was not measured.
pub(super) fn json(report: &BenchReport) -> Value {
    json!({
        "host": hostbuf_os::process::host_name(),
        "files": report.files.0.iter().map(file).collect::<Vec<_>>(),
        "read_bytes": report.files.read_bytes(),
        "rounds": report.rounds,
        "threads": report.threads,
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
        "notes": report.notes,
        "best": report.best().iter().map(best_backend).collect::<Vec<_>>(),
    })
}

fn file(file: &MeasuredFile) -> Value {
    json!({ "path": file.path.display().to_string(), "bytes": file.bytes, "read_bytes": file.read })
}

fn row(row: &BenchRow) -> Value {
    let median = row.median();
    json!({
        "to": row.to,
        "page_cache": row.cache.to_string(),
        "backend": row.backend.to_string(),
        "used": row.choices.iter().map(|choice| choice.backend.to_string()).collect::<Vec<_>>(),
        "bytes_per_s": median.map(|sample| sample.rate()),
        "rounds_bytes_per_s": row.samples.iter().map(BenchSample::rate).collect::<Vec<_>>(),
        "cpu_s_per_gib": median.map(|sample| sample.cpu_per_gib()),
        "bound": median.map(|sample| sample.counters.bound().name()),
        "bound_by": median.map(|sample| sample.bound_by()),
        "refusal": row.refusal,
        "note": row.note(),
    })
}

fn best_backend(best: &BestBackend) -> Value {
    json!({
        "to": best.to,
        "page_cache": best.cache.to_string(),
        "backend": best.backend.to_string(),
        "bytes_per_s": best.rate,
        "auto_bytes_per_s": best.auto_rate,
        "auto_suffices": best.auto_suffices,
    })
}
