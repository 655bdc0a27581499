//! The variables by which ranks learn what is near, and `--bind`, on the nodes of this host.

use std::fs;
use std::path::Path;
use std::process::Command;

use hostbuf_tests::{CommandOutput, can_simulate, flavours, hostbuf, local, simulated, skip};

use crate::arguments::one_line;

/// Returns the nodes of this host with their CPUs in the kernel's list format.
fn nodes() -> Vec<(String, String)> {
    let folders = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let node = |folder: fs::DirEntry| {
        let number = folder.file_name().to_str()?.strip_prefix("node")?.to_owned();
        let cpus = fs::read_to_string(folder.path().join("cpulist")).ok()?.trim().to_owned();
        (!cpus.is_empty()).then_some((number, cpus))
    };
    folders.filter_map(node).collect()
}

/// Returns true if this process may run on all CPUs of the host, and records a skip if not.
fn is_free() -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let own = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim);
    let free = own == Some(read("/sys/devices/system/cpu/online").trim()) && !nodes().is_empty();
    if !free {
        skip("binding: the tests run on some CPUs of the host only, or /sys shows no nodes");
    }
    free
}

/// A shell command that prints the CPUs, the node and the memory policy of a rank.
const RANK: &str = r#"read -r _ policy _ </proc/self/numa_maps
echo "rank $(sed -n 's/^Cpus_allowed_list:\t//p' /proc/$$/status) ${HOSTBUF_NUMA_NODE-unset} $policy""#;

#[test]
fn a_rank_learns_the_node_of_its_cpus() {
    if !is_free() {
        return;
    }
    for (node, cpus) in nodes() {
        let first = cpus.split([',', '-']).next().expect("a CPU");
        let mut command = Command::new("taskset");
        command.args(["-c", first]).arg(hostbuf()).args(["exec", "--size", "1M", "--", "sh", "-c", RANK]);
        let outcome = CommandOutput::of(&mut command).ok();
        assert_eq!(outcome.lines("rank "), [format!("{first} {node} default")], "{outcome:?}");
    }
    let nodes = nodes();
    let all = if let [(node, _)] = &nodes[..] { node.as_str() } else { "unset" };
    let outcome = local(2, "1M", &[], &["sh", "-c", RANK]).ok();
    let lines = outcome.lines("rank ");
    assert!(
        lines.len() == 2 && lines.iter().all(|line| line.ends_with(&format!(" {all} default"))),
        "{lines:?}"
    );
}

#[test]
fn near_devices_exist_and_those_of_an_enclosing_job_are_forgotten() {
    const OTHER: &str = "of-another-job";
    let mut command = Command::new(hostbuf());
    command.args(["exec", "--size", "1M", "--", "env"]);
    for name in ["HOSTBUF_NUMA_NODE", "HOSTBUF_NEAR_GPU", "HOSTBUF_NEAR_NIC"] {
        command.env(name, OTHER);
    }
    let outcome = CommandOutput::of(&mut command).ok();
    assert!(!outcome.stdout.contains(OTHER), "{outcome:?}");
    let one = |name: &str| outcome.lines(&format!("{name}=")).pop();
    let has_driver = Path::new("/dev/nvidiactl").exists();
    let gpu = one("HOSTBUF_NEAR_GPU");
    assert_eq!(gpu.is_some_and(|gpu| gpu.starts_with("GPU-") || gpu.contains(':')), has_driver);
    let card = one("HOSTBUF_NEAR_NIC");
    if let Some(card) = card {
        let class = |class: &str| Path::new("/sys/class").join(class).join(&card).join("device");
        assert!(class("net").exists() || class("infiniband").exists(), "{card}");
    }
}

#[test]
fn ranks_are_bound_to_nodes_before_their_program() {
    if !is_free() {
        return;
    }
    let nodes = nodes();
    let outcome = local(nodes.len(), "1M", &["--bind", "node"], &["sh", "-c", RANK]).ok();
    let mut lines = outcome.lines("rank ");
    lines.sort_unstable();
    let mut expected: Vec<String> =
        nodes.iter().map(|(node, cpus)| format!("{cpus} {node} prefer:{node}")).collect();
    expected.sort_unstable();
    assert_eq!(lines, expected, "{outcome:?}");
    assert_eq!(outcome.said(), Vec::<&str>::new());
}

#[test]
fn without_a_gpu_the_job_says_so_in_one_line() {
    let words = ["--bind near-gpu: this rank sees no GPU on ", "use --bind node"];
    let with = |arguments: &[&str]| {
        let mut command = Command::new(hostbuf());
        CommandOutput::of(command.args(arguments).env("CUDA_VISIBLE_DEVICES", ""))
    };
    let job = ["--size", "1M", "--bind", "near-gpu", "--", "true"];
    one_line(&with(&[&["run", "--launcher", "local", "-n", "3"][..], &job].concat()), 82, &words);
    one_line(&with(&[&["exec"][..], &job].concat()), 82, &words);
    one_line(&local(1, "1M", &["--bind", "core"], &["true"]), 2, &["'core' for '--bind", "node or near-gpu"]);
}

/// Open MPI binds two ranks to a core each, unless its settings of the tests forbid it.
#[test]
fn every_engine_leaves_the_ranks_of_bind_to_their_nodes() {
    if !is_free() || !can_simulate() {
        return;
    }
    let script = format!(
        "unset ${{!OMPI_MCA_hwloc*}} ${{!PRTE_MCA_hwloc*}} ${{!PRTE_MCA_rmaps*}}
         run() {{ $HOSTBUF run -n 2 --host h0:2 --mpirun $MPIRUN --size 1M --bind node \"$@\" -- sh -c '{}'; }}
         unset I_MPI_PIN; hosts=h0:2
         case $MPI_ENGINE in
         mpich) first='-bind-to core' other='-binding core' ;;
         intelmpi) first='-cpu-bind core' other='-genv I_MPI_PIN_DOMAIN core' hosts=h0 ;;
         *) first='--bind-to core' other='--cpus-per-rank 1' ;;
         esac
         with() {{ options=; for word; do options=\"$options --launcher-arg $word\"; done; run $options; }}
         run; echo; with $first; echo; with $other
         $MPIRUN $MPIRUN_FLAGS $MPI_HOSTS_OPTION $hosts -np 2 $HOSTBUF exec --size 1M -- sh -c 'echo exec $HOSTBUF_NUMA_NODE'",
        RANK.replace('\'', "'\\''")
    );
    let nodes = nodes();
    for flavour in flavours() {
        let outcome = simulated(1, &flavour, &script).ok();
        let bound = outcome.lines("rank ");
        let on_node = |line: &&String| {
            nodes.iter().any(|(node, cpus)| **line == format!("{cpus} {node} prefer:{node}"))
        };
        assert_eq!(
            (bound.len(), bound.iter().take(2).filter(on_node).count()),
            (6, 2),
            "{flavour}: {outcome:?}"
        );
        // With a core for each rank the engine binds as requested, and hostbuf says that it stays,
        // however the user has requested it.
        let cores = bound.iter().skip(2).filter(|line| line.ends_with(" default")).count();
        let said = outcome.stderr.matches("--bind node: the first rank on h0 is bound already").count();
        assert_eq!((cores, said), (4, 2), "{flavour}: {outcome:?}");
        if nodes.len() == 1 {
            assert_eq!(outcome.lines("exec "), vec![nodes[0].0.clone(); 2], "{flavour}: {outcome:?}");
        }
    }
}
