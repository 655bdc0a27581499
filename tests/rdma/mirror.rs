//! A mirror of pool blocks between two hosts, whose receiver reads the frames by RDMA. The checks
//! are in tests/programs/src/bin/rdma_mirror.rs.

use crate::machines::run_on_both;

#[test]
fn a_mirror_reads_whole_frames_through_lost_connections() {
    let Some(lines) = run_on_both("rdma_mirror") else { return };
    let checks = [
        (0, "frames"),
        (0, "without-rdma-there"),
        (0, "short-deadlines"),
        (0, "cut-stream"),
        (0, "broken-queue-pair"),
        (0, "killed-receivers"),
        (1, "served"),
    ];
    for (host, check) in checks {
        let well = format!("ok {check} ");
        assert!(lines.iter().any(|(of, line)| *of == host && line.starts_with(&well)), "{check}");
    }
}
