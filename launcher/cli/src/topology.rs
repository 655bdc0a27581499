//! `hostbuf topology`: the NUMA nodes and devices of a host, and the paths between them.

mod json;
mod picture;
mod restriction;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use hostbuf::ErrorClass;
use hostbuf_agent::report::end;
use hostbuf_topology::{RecordedError, Topology};
pub(crate) use restriction::Restriction;

use crate::picture::picture_file::write_picture;
use crate::printable::{printable, printable_json};
use crate::result_output::print_result;

/// Print the NUMA nodes, GPUs, network cards and drives of this host, and the paths between them.
///
/// A question mark follows each value that is assumed because the kernel does not state it.
#[derive(Debug, clap::Args)]
pub(crate) struct TopologyArguments {
    /// Print JSON, with the paths between all pairs of devices
    #[arg(long)]
    pub json: bool,
    /// Write a picture of the nodes, devices and paths to FILE as SVG (- for standard output)
    /// instead of printing them
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "json")]
    pub svg: Option<PathBuf>,
    /// Read the topology from a folder that --record or hwloc-gather-topology has written, instead
    /// of from this host
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
    /// Copy the files from which the topology is read to a new or empty folder, for --root
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "root")]
    pub record: Option<PathBuf>,
}

/// Prints the topology.
pub fn run(arguments: &TopologyArguments) -> ExitCode {
    let topology = match (&arguments.root, &arguments.record) {
        (Some(root), _) => Topology::recorded(root),
        (None, Some(folder)) => Topology::record(folder),
        (None, None) => Ok(Topology::discover()),
    };
    let topology = match topology {
        Ok(topology) => topology,
        Err(error) => return end("hostbuf topology", class(&error), printable(&error.to_string())),
    };
    if let Some(folder) = &arguments.record {
        let folder = printable(&folder.display().to_string());
        hostbuf_agent::complain!(
            "hostbuf topology: recorded the files of this topology in {folder}: `hostbuf topology --root {folder}` reads them"
        );
    }
    let host = match &arguments.root {
        Some(root) => root.display().to_string(),
        None => hostbuf_os::process::host_name(),
    };
    if let Some(path) = &arguments.svg {
        return write_picture("hostbuf topology", path, &picture::draw(&host, &topology));
    }
    let restriction = arguments.root.is_none().then(|| Restriction::of_this_process(&topology));
    let text = if arguments.json {
        printable_json(&json::json(&host, &topology, restriction.as_ref()))
    } else {
        table::text(&host, &topology, restriction.as_ref())
    };
    print_result("hostbuf topology", &text, ExitCode::SUCCESS)
}

/// Returns the class of an error, which is the exit status.
fn class(error: &RecordedError) -> ErrorClass {
    match error {
        RecordedError::Io { .. } => ErrorClass::General,
        _ => ErrorClass::Invalid,
    }
}
