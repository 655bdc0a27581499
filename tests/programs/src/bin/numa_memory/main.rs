//! Checks the functions of `hostbuf_programs::numa`, by which the tests check hostbuf, in a machine
//! of `scripts/numa-vm` with at least two nodes that have memory and two huge pages each. It prints
//! one line for each check.
//!
//!   numa_memory               all checks
//!   numa_memory take NODE MIB allocates memory on a node, for checks that limit it

mod limits;
mod pages;

use hostbuf_programs::checks::{Outcome, report};

fn main() -> Result<(), String> {
    if std::env::args().nth(1).as_deref() == Some("take") {
        let number = |index| std::env::args().nth(index).and_then(|text| text.parse().ok());
        let (Some(node), Some(mib)) = (number(2), number(3)) else { return Err("take NODE MIB".into()) };
        return limits::take(node, mib as usize);
    }
    let checks = [
        ("private-pages", pages::private as fn() -> Outcome),
        ("file-pages", pages::of_file),
        ("holes", pages::holes),
        ("allocated-pages", pages::allocated),
        ("collapsed-pages", pages::collapsed),
        ("pool-pages", pages::of_pool),
        ("other-process", pages::of_other_process),
        ("full-node", limits::full_node),
        ("cpuset", limits::cpuset),
    ];
    let failed = checks.into_iter().filter(|(name, check)| !report(name, &check())).count();
    std::process::exit(i32::from(failed > 0))
}
