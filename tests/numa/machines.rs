//! The machines, one test for each boot. A boot takes some seconds, so other modules add checks to
//! these machines rather than boot their own.

use crate::machine::NumaMachine;
use crate::{binding, copies, layout, memory, placement, topology};

#[test]
fn two_nodes() {
    let machine = NumaMachine::new("two").huge(&[8, 8]);
    let mut checks = vec![layout::check(&machine)];
    checks.extend(topology::check());
    checks.extend([binding::check(), placement::pages_check(), placement::full_nodes_check()]);
    checks.extend(placement::jobs());
    machine.run(&checks);
}

/// A machine of its own, since the time of a machine is limited.
#[test]
fn two_nodes_with_copies() {
    NumaMachine::new("two").huge(&[8, 8]).run(&copies::two_node_checks());
}

#[test]
fn two_nodes_with_a_newer_kernel() {
    let machine = NumaMachine::new("two").kernel("6.12").huge(&[8, 9]).rdma();
    let mut checks = vec![layout::check(&machine)];
    checks.extend(copies::rdma_check());
    checks.extend(topology::check());
    checks.extend([placement::pages_check(), placement::limits_check(), placement::balancing_check()]);
    machine.run(&checks);
}

#[test]
fn four_nodes() {
    let machine = NumaMachine::new("four").huge(&[8, 9, 8, 8]);
    let mut checks = vec![layout::check(&machine)];
    checks.extend(topology::check());
    checks.extend([memory::check(), placement::pages_check(), placement::full_nodes_check()]);
    checks.push(copies::check());
    machine.run(&checks);
}

#[test]
fn switches() {
    let machine = NumaMachine::new("switches");
    let mut checks = vec![layout::check(&machine), placement::page_cache_check()];
    checks.extend(topology::check());
    machine.run(&checks);
}

#[test]
fn host_bridges() {
    let machine = NumaMachine::new("bridges");
    let mut checks = vec![layout::check(&machine)];
    checks.extend(topology::check());
    machine.run(&checks);
}

#[test]
fn nodes_without_memory_or_cpus() {
    let machine = NumaMachine::new("uneven");
    let mut checks = vec![layout::check(&machine)];
    checks.extend(topology::check());
    machine.run(&checks);
}
