//! Tests of replication to four hosts. The scenes are in tests/programs/src/bin/rdma_tree.rs.

use crate::machines::run_on_both;

/// Each survivor gets an error, and waits for no host that is gone.
#[test]
fn replication_succeeds_or_fails_on_all_survivors() {
    let Some(lines) = run_on_both("rdma_tree") else { return };
    for (scene, survivors) in [
        ("tree", 4),
        ("other-fabric", 4),
        ("forwarder-killed", 3),
        ("source-killed", 3),
        ("network-outage", 4),
        ("killed", 2),
    ] {
        let spoken = lines.iter().filter(|(_, line)| line.starts_with(&format!("ok {scene} "))).count();
        assert_eq!(spoken, survivors, "{scene}");
    }
}
