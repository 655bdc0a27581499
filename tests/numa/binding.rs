//! Ranks of `hostbuf run` and `hostbuf exec` on a machine with two nodes: the variables by which
//! they learn what is near, and `--bind`.

use hostbuf_tests::{CommandOutput, hostbuf};

use crate::machine::GuestCheck;

/// The commands, each with the name of its case in front of the lines of its ranks. A rank prints
/// its node, the node of its network card, its CPUs and its memory policy, which it has inherited
/// over exec.
const SCRIPT: &str = r#"
ip link set eth0 up && ip link set eth1 up
rank='
card=$(cat /sys/class/net/$HOSTBUF_NEAR_NIC/device/../numa_node)
read -r _ policy _ </proc/self/numa_maps
cpus=$(sed -n "s/^Cpus_allowed_list:\t//p" /proc/$$/status)
echo "$CASE $HOSTBUF_LOCAL_RANK: node ${HOSTBUF_NUMA_NODE-unset}, card $card, cpus $cpus, $policy"'
run() { CASE=$1 "$HOSTBUF" run --launcher local --size 1M "${@:2}" -- sh -c "$rank"; }
run free -n 1
run bound -n 4 --bind node
run few -n 1 --bind node
CASE=exec HOSTBUF_NUMA_NODE=7 "$HOSTBUF" exec --size 1M --bind node -- sh -c "$rank"
# The agent, which the rank has started, populates the buffer on all nodes. That of the job before
# may not have ended yet.
"$HOSTBUF" exec --size 1M --bind node -- sh -c 'for process in /proc/[0-9]*; do
    [ "$(tr "\0" " " <$process/cmdline | cut -d " " -f 2)" = agent ] || continue
    sed -n "s/^Cpus_allowed_list:\t/agent: cpus /p" $process/status
    read -r _ policy _ <$process/numa_maps && echo "agent: $policy"
done 2>/dev/null | sort -u'
CASE=taskset taskset -c 3 "$HOSTBUF" exec --size 1M -- sh -c "$rank"
CASE=respected taskset -c 3 "$HOSTBUF" run --launcher local --size 1M -n 2 --bind node -- sh -c "$rank"
CASE=quiet taskset -c 3 "$HOSTBUF" run -q --launcher local --size 1M -n 1 --bind node -- sh -c "$rank"
echo +cpuset >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/part
echo 1-2 >/sys/fs/cgroup/part/cpuset.cpus
(echo $BASHPID >/sys/fs/cgroup/part/cgroup.procs && run cpuset -n 2 --bind node)
echo 0 >/sys/fs/cgroup/part/cpuset.mems
(echo $BASHPID >/sys/fs/cgroup/part/cgroup.procs && run mems -n 2 --bind node)
"$HOSTBUF" run --launcher local --size 1M -n 2 --bind near-gpu -- true
echo "status $?"
"#;

/// The lines of the ranks and of an agent, sorted.
const RANKS: [&str; 16] = [
    "agent: cpus 0-3",
    "agent: default",
    "bound 0: node 0, card 0, cpus 0-1, prefer:0",
    "bound 1: node 0, card 0, cpus 0-1, prefer:0",
    "bound 2: node 1, card 1, cpus 2-3, prefer:1",
    "bound 3: node 1, card 1, cpus 2-3, prefer:1",
    "cpuset 0: node 0, card 0, cpus 1, prefer:0",
    "cpuset 1: node 1, card 1, cpus 2, prefer:1",
    "exec 0: node 0, card 0, cpus 0-1, prefer:0",
    "few 0: node 0, card 0, cpus 0-1, prefer:0",
    "free 0: node unset, card 0, cpus 0-3, default",
    // The cpuset leaves out the memory of node 1.
    "mems 0: node 0, card 0, cpus 1, prefer:0",
    "mems 1: node 1, card 1, cpus 2, default",
    "quiet 0: node 1, card 1, cpus 3, default",
    "respected 0: node 1, card 1, cpus 3, default",
    "respected 1: node 1, card 1, cpus 3, default",
];

/// Returns the check, for the layout two.
pub fn check() -> GuestCheck {
    GuestCheck {
        name: "binding",
        command: format!("HOSTBUF='{}'\n{SCRIPT}", hostbuf().display()),
        check: is_right,
    }
}

fn is_right(output: &CommandOutput) -> Result<(), String> {
    let lines = output.stdout.lines().filter(|line| !line.is_empty());
    // Emulated processors are slow, so the launcher may report progress.
    let mut lines: Vec<&str> = lines.filter(|line| !line.contains("allocating memory")).collect();
    lines.sort_unstable();
    let (said, ranks): (Vec<&str>, Vec<&str>) =
        lines.into_iter().partition(|line| line.starts_with("hostbuf") || line.starts_with("status"));
    let mut expected = RANKS.to_vec();
    expected.push("taskset 0: node 1, card 1, cpus 3, default");
    if ranks != expected {
        return Err(format!("{ranks:#?} instead of {expected:#?}; {said:#?}"));
    }
    let words: [&[&str]; 3] = [
        &["hostbuf run: ", "--bind near-gpu: this rank sees no GPU on numa-vm. "],
        &["hostbuf: --bind node: the first rank on numa-vm is bound already", "CPUs 3 of 0-3)"],
        &["status 82"],
    ];
    let matches = |(line, words): (&&str, &&[&str])| words.iter().all(|word| line.contains(word));
    let well = said.len() == words.len() && said.iter().zip(&words).all(matches);
    if well { Ok(()) } else { Err(format!("{said:#?} instead of {words:?}")) }
}
