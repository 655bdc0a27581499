//! `hostbuf stat`: this host's buffers and rings, read from `/proc` alone, and the pools of this
//! user, which their brokers describe.
//!
//! No job has to answer. A buffer is a memory file that its name identifies, and `/proc` lists the
//! processes that map it or hold it open, with their shares of its memory. The control page is
//! copied, never mapped, so a job cannot disturb this program.

mod control;
mod duration_text;
mod gpu_picture;
mod gpu_sections;
mod json;
mod loads;
mod picture;
mod pool_table;
mod pools;
mod report;
mod rings;
mod scan;
mod sections;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use hostbuf::ErrorClass;
use hostbuf_agent::report::exit_code;
use hostbuf_os::process;
use hostbuf_staging::RingStatus;

use crate::picture::picture_file::write_picture;
use crate::printable::printable_json;
use crate::result_output::print_result;

/// List this host's buffers: job, address, size, pages obtained, sections on NUMA nodes, the
/// processes that map them, fill state, the files of --load, registrations with devices, and the
/// memory (PSS) of all processes together.
///
/// For buffers the command only reads /proc, so it also works while a job is stopped, and after its
/// launcher was killed. You see your own jobs; root sees all.
///
/// Below them it lists the pools of this user: the clients, their segments, the holders of each
/// block, the frames, and the times from publishing to acquiring. HOSTBUF_POOL=@NAME or /PATH
/// selects one pool. The pools of other users are not shown, to root neither.
///
/// Below these it lists the rings between files and GPUs: the bytes that they have moved, the rate
/// while they had transfers, what bounds it (source, sink, device, or too few slots), and the time
/// that their threads have spent in reads and writes, and waiting for the device and for slots.
#[derive(Debug, clap::Args)]
pub(crate) struct StatArguments {
    /// Print JSON, with the unit in the name of each figure
    #[arg(long)]
    pub json: bool,
    /// Write a picture of the buffers to FILE as SVG (- for standard output) instead of printing
    /// tables: sections in the colours of their NUMA nodes, copies, page sizes, fill states and
    /// registrations
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "json")]
    pub svg: Option<PathBuf>,
}

/// Prints the buffers and the pools. It is not an error if there are none, unless the user has
/// selected a pool.
pub fn run(arguments: &StatArguments) -> ExitCode {
    let jobs = report::jobs(&scan::processes());
    if let Some(path) = &arguments.svg {
        return write_picture("hostbuf stat", path, &picture::draw(&process::host_name(), &jobs));
    }
    let (pools, rings) = (pools::reports(), RingStatus::of_all());
    let text = if arguments.json {
        let mut report = json::json(&jobs);
        report["pools"] = pools::json(&pools);
        report["rings"] = rings::json(&rings);
        report["pools_of_other_users"] = pools.of_others.into();
        printable_json(&report)
    } else {
        let parts = [table::text(&jobs), pool_table::text(&pools), rings::text(&rings)];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n")
    };
    let status = if pools.lacks_selected { exit_code(ErrorClass::General) } else { ExitCode::SUCCESS };
    print_result("hostbuf stat", &text, status)
}
