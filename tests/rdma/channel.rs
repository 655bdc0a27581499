//! Messages between two hosts. The checks are in tests/fixtures/rdma_channel.rs.

use crate::machines::all_is_well_on_both;

#[test]
fn messages_between_two_hosts() {
    all_is_well_on_both(
        "rdma_channel",
        &[
            "sizes",
            "both-ways",
            "two-channels",
            "more-than-slots",
            "registered-once",
            "too-long",
            "changed-in-flight",
            "news-lost",
            "lost-and-idle",
            "closed",
            "patience",
            "forked",
            "refused",
            "rounds",
            "killed",
        ],
    );
}
