//! `hostbuf stat`: this host's buffers, read from `/proc` alone.
//!
//! No job has to answer. A buffer is a memory file that its name identifies, and `/proc` lists the
//! processes that map it or hold it open, with their shares of its memory. The control page is
//! copied, never mapped, so a job cannot disturb this program.

mod control;
mod json;
mod report;
mod scan;
mod sections;
mod table;

use std::io::Write;
use std::process::ExitCode;

/// List this host's buffers: job, address, size, pages obtained, sections on NUMA nodes, the
/// processes that map them, fill state, registrations with devices, and the memory (PSS) of all
/// processes together.
///
/// The command only reads /proc, so it also works while a job is stopped, and after its launcher
/// was killed. You see your own jobs; root sees all.
#[derive(Debug, clap::Args)]
pub(crate) struct StatArguments {
    /// Print JSON, with the unit in the name of each figure
    #[arg(long)]
    pub json: bool,
}

/// Prints the buffers. It is not an error if there are none.
pub fn run(arguments: &StatArguments) -> ExitCode {
    let jobs = report::jobs(&scan::processes());
    let text = if arguments.json { format!("{:#}\n", json::json(&jobs)) } else { table::text(&jobs) };
    // Nothing is reported to a reader that has ended (`hostbuf stat | head -1`).
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}
