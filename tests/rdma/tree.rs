//! A buffer that goes to four hosts. The scenes are in tests/fixtures/rdma_tree.rs.

use crate::machines::run_on_both;

/// Whoever survives hears of it: nobody waits for ever for a host that is gone.
#[test]
fn along_a_tree_also_when_a_host_is_killed() {
    let Some(lines) = run_on_both("rdma_tree") else { return };
    for (scene, survivors) in
        [("tree", 4), ("middle-killed", 3), ("source-killed", 3), ("network-out", 4), ("killed", 2)]
    {
        let spoken = lines.iter().filter(|(_, line)| line.starts_with(&format!("ok {scene} "))).count();
        assert_eq!(spoken, survivors, "{scene}");
    }
}
