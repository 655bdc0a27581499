//! Connections of processes that have neither MPI nor a launcher. The checks are in
//! tests/programs/src/bin/rdma_bootstrap.rs.

use crate::machines::check_on_both;

#[test]
fn two_processes_connect_by_a_tcp_bootstrap() {
    check_on_both("rdma_bootstrap", &["addresses", "fabric", "channel", "lengths-differ", "one-fails"]);
}
