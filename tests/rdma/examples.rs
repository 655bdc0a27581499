//! Tests of examples/symmetric_put.rs and examples/halo_exchange.rs, as a user runs them.
//! tests/jobs tests them over MPI alone.

use std::process::Command;

use crate::machines::{program, run_over_both};

/// Two ranks on each host, so that there are channels within a host and between hosts.
#[test]
fn examples_use_rdma_if_the_hosts_have_it() {
    let (Some(put), Some(halo)) = (program("symmetric_put"), program("halo_exchange")) else { return };
    let job = format!(
        "mpirun -np 4 --map-by ppr:2:node {} --size 4M && mpirun -np 4 --map-by ppr:2:node {} --size 256x4096 --steps 10",
        put.display(),
        halo.display()
    );
    let Some(lines) = run_over_both(&job) else { return };
    let said: Vec<_> = lines.iter().map(|(_, line)| &**line).collect();
    let [put, halo] = &said[..] else { panic!("{said:?}") };
    assert!(put.starts_with("3 times 2 MiB of each of 2 hosts to all others, by puts over RDMA"), "{put}");
    assert!(put.ends_with("4 ranks found every word as it should be"), "{put}");
    assert!(halo.starts_with("10 steps of 256x4096 on 2x2 ranks"), "{halo}");
    // A row to send and one to receive into, of each of the two grids that take turns.
    assert!(halo.contains("over RDMA (4 registrations, found again 16 times)"), "{halo}");
    assert!(halo.ends_with("bit by bit what one process has computed"), "{halo}");
}

#[test]
fn examples_report_the_reason_if_there_is_no_rdma() {
    if std::path::Path::new("/sys/class/infiniband").exists() {
        return crate::skip("examples that find no RDMA device: there is one");
    }
    for name in ["symmetric_put", "halo_exchange"] {
        let Some(program) = program(name) else { return };
        let output = Command::new(program).env("OMPI_ALLOW_RUN_AS_ROOT", "1").output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(said.contains("over MPI (no RDMA: the kernel has no RDMA (module ib_uverbs))"), "{said}");
    }
}
