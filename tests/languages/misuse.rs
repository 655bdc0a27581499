//! A mistake in one rank only, on two hosts of two ranks, by one Open MPI and one MPICH: all ranks
//! get an error, and none waits forever.

use std::process::Command;

use hostbuf_tests::fake_cuda::install_fake_cuda;
use hostbuf_tests::{CommandOutput, Scratch, can_simulate, hostbuf, root, simulated, skip};

use crate::guides::one_of_each;
use crate::python::{by_each, python};

const ALL_FAILED: &str = "every rank has an error\n";

/// Builds tests/fixtures/`name`.c with one MPI of each kind, and runs it on two hosts of two ranks,
/// with an empty folder as its argument and the fake driver of a GPU. Its output is `wanted`.
fn on_two_hosts(name: &str, wanted: &str) {
    if !root().join("target/lib/libhostbuf.so").exists() {
        return skip("mistakes of one rank in C: there is no libhostbuf (scripts/build)");
    }
    if !can_simulate() {
        return;
    }
    for flavour in one_of_each() {
        let folder = Scratch::new(name);
        install_fake_cuda(&folder);
        let script = format!(
            r#"made={folder}/program; mkdir {folder}/files
               $MPICC -std=c11 -O1 -g -Wall -Wextra -Iinclude tests/fixtures/{name}.c -o $made -Ltarget/lib -lhostbuf \
                   -Wl,-rpath,$PWD/target/lib || exit
               hosts="-np 4 --host h0:2,h1:2"; [[ $MPI_ENGINE == openmpi ]] || hosts="-n 4 -hosts h0,h1 -ppn 2"
               path={folder}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
               $MPIRUN $MPIRUN_FLAGS $hosts env LD_LIBRARY_PATH=$path $made {folder}/files"#,
            folder = folder.0.display()
        );
        assert_eq!(simulated(2, &flavour, &script).ok().stdout, wanted, "{flavour}");
    }
}

#[test]
fn misuse_in_c_gives_errors() {
    on_two_hosts("one_rank", ALL_FAILED);
}

#[test]
fn misuse_of_loading_in_c_gives_errors() {
    on_two_hosts("load_ranks", "every rank has an error, then all tensors, and then its slices on the GPU\n");
}

/// If the program's MPI is not the launcher's, each rank is alone in it. A rank that attaches a
/// buffer of its own may go on.
#[test]
fn a_rank_alone_in_its_mpi_may_fill_only_its_own_buffer() {
    let Some(python) = python() else { return };
    let script = r#"
import os, hostbuf
rank = int(os.environ["HOSTBUF_RANK"])
assert hostbuf.attach(["even", "odd"][rank]).initialize_job(lambda arena: rank, None) == rank
try:
    hostbuf.attach("both").initialize_job(lambda arena: rank, None)
    said = "filled"
except hostbuf.Error as error:
    said = "refused" if "the launcher has started 2 ranks on this host" in str(error) else str(error)
os.write(1, f"{said}\n".encode())
"#;
    let buffers = ["even", "odd", "both"].map(|name| format!("--buffer=name={name},size=1M"));
    let mut command = Command::new(hostbuf());
    command
        .args(["run", "--launcher", "local", "-n", "2"])
        .args(buffers)
        .arg("--")
        .arg(python)
        .args(["-c", script]);
    let mut said: Vec<_> = CommandOutput::of(&mut command).ok().lines("");
    said.sort();
    assert_eq!(said, ["filled", "refused"]);
}

#[test]
fn misuse_in_python_gives_errors() {
    let Some(python) = python() else { return };
    if !can_simulate() {
        return;
    }
    let script = "$MPIRUN $MPIRUN_FLAGS $hosts $python tests/fixtures/one_rank.py";
    by_each("misuse", &one_of_each(), &python, script, |flavour, said| {
        assert_eq!(said.stdout, ALL_FAILED, "{flavour}");
    });
}
