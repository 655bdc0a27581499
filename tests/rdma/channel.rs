//! Tests of channels between two hosts. The checks are in tests/programs/src/bin/rdma_channel.rs.

use crate::machines::check_on_both;

#[test]
fn a_channel_sends_messages_between_two_hosts() {
    check_on_both(
        "rdma_channel",
        &[
            "sizes",
            "both-ways",
            "two-channels",
            "more-than-slots",
            "registered-once",
            "too-long",
            "remapped-while-sending",
            "lost-notification",
            "lost-while-idle",
            "closed-by-peer",
            "receive-timeout",
            "forked",
            "invalid-requests",
            "no-leaks",
            "killed",
        ],
    );
}
