//! Puts and gets between two hosts. The checks are in tests/fixtures/rdma_fabric.rs.

use crate::machines::run_on_both;

#[test]
fn puts_and_gets_between_two_hosts() {
    let Some(lines) = run_on_both("rdma_fabric") else { return };
    let both = [
        "put",
        "get",
        "both-ways",
        "fetch-add",
        "full-queue",
        "refused-before-posting",
        "rounds",
        "frozen",
        "killed",
    ];
    for check in both {
        for host in [0, 1] {
            let spoken =
                lines.iter().any(|(of, line)| *of == host && line.starts_with(&format!("ok {check} ")));
            assert!(spoken, "{check} on host {host}");
        }
    }
}
