//! A mistake in one rank only, on two hosts of two ranks, by one Open MPI and one MPICH: all hear of it, and nobody waits for ever.

use crate::guides::one_of_each;
use crate::harness::{can_simulate, root, simulated, skip};
use crate::python::{by_each, python};

const HEARD: &str = "all have heard\n";

#[test]
fn in_c() {
    if !root().join("target/lib/libhostbuf.so").exists() {
        return skip("mistakes of one rank in C: there is no libhostbuf (scripts/build)");
    }
    if !can_simulate() {
        return;
    }
    for flavour in one_of_each() {
        let script = format!(
            r#"made=$PWD/target/fixtures/one-rank-{}-$MPI_FLAVOUR; trap 'rm -f $made' EXIT
               $MPICC -std=c11 -O1 -g -Wall -Wextra -Iinclude tests/fixtures/one_rank.c -o $made -Ltarget/lib -lhostbuf \
                   -Wl,-rpath,$PWD/target/lib || exit
               hosts="-np 4 --host h0:2,h1:2"; [[ $MPI_ENGINE == openmpi ]] || hosts="-n 4 -hosts h0,h1 -ppn 2"
               $MPIRUN $MPIRUN_FLAGS $hosts $made"#,
            std::process::id()
        );
        assert_eq!(simulated(2, &flavour, &script).ok().stdout, HEARD, "{flavour}");
    }
}

#[test]
fn in_python() {
    let Some(python) = python() else { return };
    if !can_simulate() {
        return;
    }
    let script = "$MPIRUN $MPIRUN_FLAGS $hosts $python tests/fixtures/one_rank.py";
    by_each("misuse", &one_of_each(), &python, script, |flavour, said| {
        assert_eq!(said.stdout, HEARD, "{flavour}");
    });
}
