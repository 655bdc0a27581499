//! `hostbuf stat`: this host's buffers, read from `/proc` alone.
//!
//! No job has to answer: a buffer is a memory file whose name says what it is, and `/proc` shows who maps it, who
//! holds it open, and how much of it each process is charged with. The control page is copied, never mapped, so
//! nothing that a job does to it can reach this program.

mod control;
mod json;
mod report;
mod scan;
mod table;

use std::io::Write;
use std::process::ExitCode;

/// List this host's buffers: job, address, size, pages obtained, the processes that map them, fill state,
/// registrations with devices, and the memory (PSS) of all processes together.
///
/// The command only reads /proc, so it also works while a job is stopped, and after its launcher was killed. You see
/// your own jobs; root sees all.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Print JSON, with the unit in the name of each figure.
    #[arg(long)]
    pub json: bool,
}

/// Prints what there is. Nothing there is not an error.
pub fn run(arguments: &Arguments) -> ExitCode {
    let jobs = report::jobs(&scan::processes());
    let text = if arguments.json { format!("{:#}\n", json::json(&jobs)) } else { table::text(&jobs) };
    // A reader that has gone (`hostbuf stat | head -1`) is not worth a word.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
