//! The machines, one test for each boot. A boot takes some seconds, so other modules add checks to
//! these machines rather than boot their own.

use crate::machine::NumaMachine;
use crate::{binding, layout, memory, placement, topology};

#[test]
fn two_nodes() {
    let machine = NumaMachine::new("two").huge(&[8, 8]);
    let mut checks = vec![layout::check(&machine), topology::check(), binding::check(), placement::check()];
    checks.extend(placement::jobs());
    machine.run(&checks);
}

#[test]
fn two_nodes_with_a_newer_kernel() {
    let machine = NumaMachine::new("two").kernel("6.12").huge(&[8, 9]);
    machine.run(&[
        layout::check(&machine),
        topology::check(),
        memory::check(),
        placement::check(),
        placement::balancing_check(),
    ]);
}

#[test]
fn four_nodes() {
    let machine = NumaMachine::new("four").huge(&[8, 9, 8, 8]);
    machine.run(&[layout::check(&machine), topology::check(), memory::check(), placement::check()]);
}

#[test]
fn switches() {
    let machine = NumaMachine::new("switches");
    machine.run(&[layout::check(&machine), topology::check(), placement::page_cache_check()]);
}

#[test]
fn host_bridges() {
    let machine = NumaMachine::new("bridges");
    machine.run(&[layout::check(&machine), topology::check()]);
}

#[test]
fn nodes_without_memory_or_cpus() {
    let machine = NumaMachine::new("uneven");
    machine.run(&[layout::check(&machine), topology::check()]);
}
