//! Compares the topology of a recorded tree or of this host with that of hwloc's `lstopo`.
//!
//! `topology_like_lstopo [ROOT]`: ROOT is a folder with `sys` and `proc`, by default `/`. It prints
//! the differences. Exit status: 0 if there is none, 1 if there is one, 2 if the comparison failed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use hostbuf_programs::lstopo;
use hostbuf_topology::Topology;

fn main() -> ExitCode {
    let root = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("/"), PathBuf::from);
    match differences(&root) {
        Ok(differences) => {
            differences.iter().for_each(|difference| println!("{difference}"));
            ExitCode::from(u8::from(!differences.is_empty()))
        }
        Err(reason) => {
            eprintln!("topology_like_lstopo: {reason}");
            ExitCode::from(2)
        }
    }
}

fn differences(root: &Path) -> Result<Vec<String>, String> {
    let topology = if root == Path::new("/") {
        Topology::discover_without_nvml()
    } else {
        Topology::recorded(root).map_err(|error| error.to_string())?
    };
    lstopo::compare(&topology, &lstopo::xml(root)?)
}
