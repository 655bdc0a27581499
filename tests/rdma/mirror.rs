//! A mirror of pool blocks between two hosts, whose receiver reads the frames by RDMA. The checks
//! of the library are in tests/programs/src/bin/rdma_mirror.rs.

use crate::machines::{program, run_on_both, run_on_first};

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

/// A broker on each host, and the function `mirror FRAMES OPTIONS_OF_RECEIVER OPTIONS_OF_SENDER`:
/// it copies frames to the second host, and prints the stamp of each copy there and the reports of
/// both sides.
const MIRROR_OF_CAMERA: &str = r#"
broker="$HOSTBUF broker --path /run/pool >/run/broker & until [ -S /run/pool ]; do :; done"
ready="export HOSTBUF_POOL=/run/pool; cd /run"
eval "$broker; $ready"
there "$broker"
mkfifo next
mirror() {
    there "$ready; echo \$\$ >receiver; exec $HOSTBUF mirror --listen 10.9.0.2:7400 --retain $1 $2 >said 2>&1" &
    until : </dev/tcp/10.9.0.2/7400; do kill -0 $! || { there cat /run/said; exit 1; }; done 2>/dev/null
    $FRAMES write /run/pool $1 64 <next |
        { read -r limits; exec $HOSTBUF mirror --to rdma-vm1:7400 $3 2>sender; } |
        { exec 3>next; while read -r copy; do echo "$copy"; echo >&3; done; } >copies
    there "$ready; $FRAMES read /run/pool 0 <<<'$(<copies)' | sed '1d; s/^/frame /'"
    there 'kill -TERM $(</run/receiver)'
    wait $!
    cat sender
    there cat /run/said
}
"#;

#[test]
fn the_command_mirrors_by_rdma_and_says_why_it_does_not() {
    let Some(frames) = program("pool_frames") else { return };
    let script = format!(
        "HOSTBUF={} FRAMES={}; {MIRROR_OF_CAMERA}
         mirror 4 --rdma --rdma=rxe0; mirror 3 '' --rdma; mirror 2 --rdma ''
         $HOSTBUF mirror --to rdma-vm1:7400 --rdma=mlx5_0 2>&1; echo status $?",
        hostbuf_tests::hostbuf().display(),
        frames.display()
    );
    let Some(lines) = run_on_first(&script) else { return };
    // Before Linux 6.2 the sender copies each frame.
    let lines: Vec<String> =
        lines.iter().map(|(_, line)| line.replace(" (4 of them from a copy)", "")).collect();
    let expected = r#"frame 0 0
frame 1 0
frame 2 0
frame 3 0
hostbuf mirror: connected to 10.9.0.2:7400 (RDMA on rxe0)
hostbuf mirror: frames by RDMA: 4, by TCP: 0
hostbuf mirror: listening at 10.9.0.2:7400 (limit 240 MiB, RDMA on rxe0)
hostbuf mirror: frames by RDMA: 4, by TCP: 0
frame 0 0
frame 1 0
frame 2 0
hostbuf mirror: connected to 10.9.0.2:7400 (TCP: the receiver offers no RDMA: it uses no device, or its device has refused)
hostbuf mirror: frames by RDMA: 0, by TCP: 3 (the last reason for TCP: the receiver offers no RDMA: it uses no device, or its device has refused)
hostbuf mirror: listening at 10.9.0.2:7400 (limit 240 MiB)
frame 0 0
frame 1 0
hostbuf mirror: listening at 10.9.0.2:7400 (limit 240 MiB, RDMA on rxe0)
hostbuf mirror: frames by RDMA: 0, by TCP: 2 (the last reason for TCP: the sender offers no RDMA: it uses no device, or its device has refused)
hostbuf mirror: no RDMA device is called "mlx5_0"; there are rxe0
status 2"#;
    assert_eq!(lines.join("\n"), expected);
}
