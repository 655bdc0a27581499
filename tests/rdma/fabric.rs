//! Puts and gets between two hosts. The checks are in tests/fixtures/rdma_fabric.rs and
//! rdma_whole.rs.

use crate::machines::all_is_well_on_both;

#[test]
fn puts_and_gets_between_two_hosts() {
    all_is_well_on_both(
        "rdma_fabric",
        &[
            "put",
            "get",
            "both-ways",
            "fetch-add",
            "on-demand",
            "bad-network",
            "full-queue",
            "many",
            "held",
            "threads",
            "forked",
            "two-fabrics",
            "options",
            "sleeps",
            "refused-before-posting",
            "rounds",
            "replicate",
            "frozen",
            "killed",
        ],
    );
}
