//! Checks where the pages of buffers are, in a machine of `scripts/numa-vm` with at least two nodes
//! that have memory and eight free huge pages each. It prints one line for each check.
//!
//!   numa_placement         all checks but that of balancing
//!   numa_placement CHECK   one check; "balancing" needs a kernel that moves pages of memory files

mod balancing;
mod faults;
mod matrix;
mod spill;

use hostbuf_programs::checks::{Outcome, report};

fn main() {
    let checks = [
        ("small-pages", (|| matrix::on(hostbuf::Pages::Small)) as fn() -> Outcome),
        ("small-pages-of-huge-files", matrix::small_pages_of_huge_files),
        ("transparent-pages", || matrix::on(hostbuf::Pages::Transparent)),
        ("pool-pages", || matrix::on(hostbuf::Pages::Huge2M)),
        ("sections", matrix::sections),
        ("automatic-pages", matrix::automatic),
        ("spilling", spill::to_the_second_node),
        ("collapse-refused", faults::collapse_refused),
        ("node-filled-meanwhile", faults::node_filled_meanwhile),
    ];
    let only = std::env::args().nth(1);
    if only.as_deref() == Some("balancing") {
        std::process::exit(i32::from(!report("balancing", &balancing::leaves_placed_pages())));
    }
    let wanted = |name: &str| only.as_ref().is_none_or(|only| only == name);
    let selected = checks.into_iter().filter(|(name, _)| wanted(name));
    let failed = selected.filter(|(name, check)| !report(name, &check())).count();
    std::process::exit(i32::from(failed > 0))
}
