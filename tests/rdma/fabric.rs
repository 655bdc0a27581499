//! Tests of a fabric of two hosts. The checks are in tests/programs/src/bin/rdma_fabric.

use crate::machines::check_on_both;

#[test]
fn a_fabric_puts_and_gets_between_two_hosts() {
    check_on_both(
        "rdma_fabric",
        &[
            "put",
            "get",
            "both-ways",
            "fetch-add",
            "on-demand",
            "bad-network",
            "outage",
            "full-queue",
            "put-many",
            "unread-results",
            "threads",
            "forked",
            "two-fabrics",
            "options",
            "waiting-sleeps",
            "invalid-arguments",
            "no-leaks",
            "replicate",
            "frozen",
            "killed",
        ],
    );
}
