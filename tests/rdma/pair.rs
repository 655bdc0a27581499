//! Tests of raw RDMA writes between two hosts with a buffer at one address. The checks are in
//! tests/programs/src/bin/rdma_pair.rs.

use crate::machines::run_on_both;

#[test]
fn a_queue_pair_writes_from_one_host_to_the_other() {
    let Some(lines) = run_on_both("rdma_pair") else { return };
    // All ranks of a host check the memory.
    let wanted =
        [("hosts", [1, 1]), ("address", [1, 1]), ("write", [1, 1]), ("seen", [2, 2]), ("wrong-key", [1, 0])];
    for (check, times) in wanted {
        let spoken = |host| {
            let of = lines.iter().filter(|(of, _)| *of == host);
            of.filter(|(_, line)| line.starts_with(&format!("ok {check} "))).count()
        };
        assert_eq!([spoken(0), spoken(1)], times, "{check}");
    }
}
