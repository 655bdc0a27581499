//! A rank of a job on a machine of `scripts/numa-vm`: checks the copies that sections with
//! `numa=copies` get on each node. Rank 0 prints one line for each check.
//!
//!   node_copies CHECK...
//!
//! All checks but "unbound" expect ranks that are bound to nodes, and at least one on each node.
//! "pages" and "short-pool" need eight free huge pages on each node, and "spanning" four ranks and
//! the layout two.

mod contents;
mod copy_watcher;
mod faults;
mod pages;

use hostbuf::job::Local;
use hostbuf_programs::checks::{LocalCheck, run_local, text};

const CHECKS: [LocalCheck; 11] = [
    ("pages", pages::are_on_the_node_of_their_rank),
    ("launched", pages::of_a_launched_buffer),
    ("stat", pages::are_in_the_report),
    ("spanning", pages::of_ranks_whose_cores_span_nodes),
    ("unbound", pages::are_shared_by_unbound_ranks),
    ("device-writes", pages::refuse_device_writes),
    ("full-node", faults::full_node),
    ("short-pool", faults::short_pool),
    ("forked-writer", faults::forked_writer),
    ("wrong-checksum", faults::wrong_checksum),
    ("killed", faults::killed),
];

fn main() {
    let well = run().unwrap_or_else(|why| {
        println!("FAILED setup {why}");
        false
    });
    std::process::exit(i32::from(!well))
}

/// Runs the checks. Returns whether all passed on all ranks.
fn run() -> Result<bool, String> {
    let group = Local::from_env().map_err(text)?;
    let names: Vec<String> = std::env::args().skip(1).collect();
    run_local(&group, &names, &CHECKS)
}
