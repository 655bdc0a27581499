//! Checks where the pages of buffers are, in a machine of `scripts/numa-vm` with at least two nodes
//! that have memory and eight free huge pages each. It prints one line for each check.
//!
//!   numa_placement         the checks that suit all machines
//!   numa_placement CHECK   one check, of these or of the special ones; "balancing" needs a kernel
//!                          that moves pages of memory files, and "page-cache" a machine with a
//!                          drive

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
    ];
    let only = std::env::args().nth(1);
    let special = [
        ("balancing", balancing::leaves_placed_pages as fn() -> Outcome),
        ("page-cache", page_cache::is_freed),
        ("lost-pool", lost_pool::is_replaced),
        ("cgroup-limits", cgroup_limits::are_the_cause),
        ("oom-group", oom_group::spares_the_group),
        ("oom-group-of-one-node", oom_group::spares_the_group_of_one_node),
    ];
    if let Some((name, check)) = special.into_iter().find(|(name, _)| only.as_deref() == Some(name)) {
        std::process::exit(i32::from(!report(name, &check())));
    }
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    let selected = checks.into_iter().filter(|(name, _)| wanted(name));
    let failed = selected.filter(|(name, check)| !report(name, &check())).count();
    std::process::exit(i32::from(failed > 0))
}
