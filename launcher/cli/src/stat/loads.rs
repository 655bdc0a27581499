//! The files that a job has loaded into the memory of this host.

use hostbuf::Bytes;
use hostbuf_agent::load_status::{LoadReport, ReportedFile};
use serde_json::{Value, json};

use super::scan::printable;

/// Returns the rows of the table: one for each file, and the state in the first of them.
pub(super) fn rows(report: &LoadReport) -> Vec<Vec<String>> {
    let mut rows = vec![["LOADED", "BYTES", "PAGES", "STATE"].map(str::to_owned).to_vec()];
    let state = match report.complete {
        true => {
            let s = if report.files.len() == 1 { "" } else { "s" };
            format!("complete, {} in {} file{s}", Bytes(report.bytes()), report.files.len())
        }
        false => format!("loading, {} of {}", Bytes(report.loaded), Bytes(report.bytes())),
    };
    let row = |(number, file): (usize, &ReportedFile)| {
        let state = if number == 0 { state.clone() } else { String::new() };
        vec![printable(&file.path), Bytes(file.bytes).to_string(), Bytes(file.page).to_string(), state]
    };
    rows.extend(report.files.iter().enumerate().map(row));
    rows
}

/// Returns the report for programs.
pub(super) fn json(report: &LoadReport) -> Value {
    let file =
        |file: &ReportedFile| json!({ "path": file.path, "bytes": file.bytes, "page_bytes": file.page });
    json!({
        "state": if report.complete { "complete" } else { "loading" },
        "bytes": report.bytes(),
        "loaded_bytes": report.loaded,
        "files": report.files.iter().map(file).collect::<Vec<_>>(),
    })
}
