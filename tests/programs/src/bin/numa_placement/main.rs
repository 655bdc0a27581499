//! Checks where the pages of buffers are, in a machine of `scripts/numa-vm` with at least two nodes
//! that have memory and eight free huge pages each. It prints one line for each check.
//!
//!   numa_placement CHECK...
//!
//! "balancing" needs a kernel that moves pages of memory files, and "page-cache" a machine with a
//! drive.

mod balancing;
mod cgroup_limits;
mod faults;
mod lost_pool;
mod matrix;
mod oom_group;
mod own_group;
mod page_cache;
mod spill;

use hostbuf_programs::checks::{Outcome, report};

fn main() {
    let checks = [
        ("small-pages", (|| matrix::on(hostbuf::Pages::Small)) as fn() -> Outcome),
        ("small-pages-of-huge-files", || matrix::of_huge_files(hostbuf::Pages::Small)),
        ("transparent-pages", || matrix::on(hostbuf::Pages::Transparent)),
        ("transparent-pages-of-huge-files", || matrix::of_huge_files(hostbuf::Pages::Transparent)),
        ("pool-pages", || matrix::on(hostbuf::Pages::Huge2M)),
        ("sections", matrix::sections),
        ("automatic-pages", matrix::automatic),
        ("spilling", spill::to_the_second_node),
        ("collapse-refused", faults::collapse_refused),
        ("node-filled-meanwhile", faults::node_filled_meanwhile),
        ("balancing", balancing::leaves_placed_pages),
        ("page-cache", page_cache::is_freed),
        ("lost-pool", lost_pool::is_replaced),
        ("cgroup-limits", cgroup_limits::are_the_cause),
        ("oom-group", oom_group::spares_the_group),
        ("oom-group-of-one-node", oom_group::spares_the_group_of_one_node),
    ];
    let names: Vec<String> = std::env::args().skip(1).collect();
    let mut all_pass = !names.is_empty();
    for wanted in names {
        let found = checks.iter().find(|(name, _)| *name == wanted);
        let outcome = found.map_or_else(|| Err("there is no such check".to_owned()), |(_, check)| check());
        all_pass &= report(&wanted, &outcome);
    }
    std::process::exit(i32::from(!all_pass))
}
