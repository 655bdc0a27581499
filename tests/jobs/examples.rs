//! examples/symmetric_put.rs and examples/halo_exchange.rs over MPI alone. tests/rdma runs them
//! with RDMA.

use hostbuf_tests::{can_simulate, root, simulated, skip};

/// Runs an example on two hosts with two ranks each and returns its output. Records a skip and
/// returns `None` if the example cannot run here.
fn on_two_hosts(before: &str, name: &str, arguments: &str) -> Option<String> {
    let program = root().join("target/openmpi4/release").join(name);
    if !program.exists() {
        skip(&format!("the example {name}: it is not built with MPI (scripts/test builds it)"));
        return None;
    }
    let script = format!("{before} {} {arguments}", program.display());
    can_simulate().then(|| simulated(2, "openmpi4", &script).ok().stdout)
}

const MPIRUN: &str = "$MPIRUN -np 4 --map-by ppr:2:node";

#[test]
fn symmetric_put_fills_one_table_from_all_hosts() {
    let Some(said) = on_two_hosts(MPIRUN, "symmetric_put", "--size 4M") else { return };
    assert!(said.starts_with("3 times 2 MiB of each of 2 hosts to all others, over MPI"), "{said}");
    assert!(said.ends_with("4 ranks found every word as it should be\n"), "{said}");
}

#[test]
fn symmetric_put_uses_the_buffer_of_the_launcher() {
    let run = "$HOSTBUF run -n 4 --mpirun $MPIRUN --size 8M --";
    let Some(said) = on_two_hosts(run, "symmetric_put", "--rounds 2") else { return };
    assert!(said.starts_with("2 times 4 MiB of each of 2 hosts to all others, over MPI"), "{said}");
}

#[test]
fn halo_exchange_computes_the_heat_of_a_plate() {
    // All blocks have different sizes, and the middle block has neighbours on all sides.
    let Some(said) =
        on_two_hosts("$MPIRUN -np 9 --oversubscribe", "halo_exchange", "--size 101x67 --steps 30")
    else {
        return;
    };
    assert!(said.starts_with("30 steps of 101x67 on 3x3 ranks"), "{said}");
    assert!(said.ends_with("bit by bit what one process has computed\n"), "{said}");
}
