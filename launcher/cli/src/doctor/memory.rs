//! The available memory, its limits, and its distribution over NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};

use hostbuf::{BufferOptions, Bytes, MemoryError, NoSpace, Pages};
use hostbuf_memory::placement::{HostNodes, PlannedRange, name_nodes};
use hostbuf_memory::space;
use hostbuf_os::{memory, mempolicy};
use hostbuf_topology::{NodeId, NumaNode, Topology};

use super::kernel_text::knob;
use crate::finding::Finding;

/// Checks the memory. `placed` is the requested buffer if it has a placement.
pub fn lines(size: Option<u64>, placed: Option<&BufferOptions>) -> Vec<Finding> {
    let mut lines = vec![available(), cgroups()];
    lines.extend(memory::oom_group().map(|path| oom_group(&path)));
    lines.extend([overcommit(size), nodes(), small_file_system()]);
    lines.extend(size.map(fits));
    lines.extend(placed.map(placement));
    lines
}

fn available() -> Finding {
    const NAME: &str = "available";
    let limit = memory::tightest_limit();
    let bytes = space::available(&limit);
    let says =
        format!("{} on ordinary pages, limited by {} of {}", Bytes(bytes), limit.name, Bytes(limit.limit));
    let line =
        if bytes == 0 { Finding::lacks(NAME, says).mend(&*limit.remedy) } else { Finding::ok(NAME, says) };
    line.needed().value("available_bytes", bytes).value("limit_bytes", limit.limit).value("limit", limit.name)
}

fn cgroups() -> Finding {
    const NAME: &str = "memory cgroup";
    let text = knob("/proc/self/cgroup").unwrap_or_default();
    let which = match versions(&text).as_slice() {
        [] => "no memory cgroup was found".to_owned(),
        list => format!("version {}", list.join(" and ")),
    };
    if memory::cgroup_limited() {
        let limit = memory::tightest_limit();
        let says = format!(
            "{which}; one limits this process to less than the host has. The tightest limit now is {} of {}",
            limit.name,
            Bytes(limit.limit)
        );
        Finding::note(NAME, says)
            .mend("if that is too little: the batch system's --mem, or docker run --memory")
    } else {
        Finding::ok(NAME, format!("{which}; none limits this process to less than the host has"))
    }
    .value("versions", versions(&text))
}

/// Reports a memory cgroup whose processes the OOM killer ends together. A full node is no reason
/// for it, but a full host or cgroup is.
fn oom_group(path: &str) -> Finding {
    const NAME: &str = "memory.oom.group";
    let says = format!(
        "set for the memory cgroup {path}: if the host or the cgroup has no free memory left, the kernel ends all of \
         its processes at once, without a message of hostbuf"
    );
    Finding::note(NAME, says)
        .mend("systemd: OOMPolicy=continue; Kubernetes: the kubelet's singleProcessOOMKill; or request less than the limit")
        .value("cgroup", path)
}

/// Returns the versions of the cgroups that account for this process's memory.
fn versions(text: &str) -> Vec<String> {
    let mut versions: Vec<String> = text
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers) = (parts.next()?, parts.next()?);
            if number == "0" && controllers.is_empty() {
                Some("2".into())
            } else {
                controllers.split(',').any(|c| c == "memory").then(|| "1".into())
            }
        })
        .collect();
    versions.sort_unstable();
    versions.dedup();
    versions
}

fn overcommit(size: Option<u64>) -> Finding {
    const NAME: &str = "vm.overcommit_memory";
    let mode = knob("/proc/sys/vm/overcommit_memory").unwrap_or_else(|| "?".into());
    if mode != "2" {
        let line = Finding::ok(NAME, format!("{mode}: reserving addresses takes no memory"));
        return line.value("mode", mode);
    }
    let left = memory::meminfo("CommitLimit")
        .unwrap_or(u64::MAX)
        .saturating_sub(memory::meminfo("Committed_AS").unwrap_or(0));
    let says = format!("2: the kernel does not overcommit; {} can still be committed", Bytes(left));
    let line = if size.is_some_and(|s| s > left) {
        Finding::lacks(NAME, says).needed().mend("root: sysctl vm.overcommit_memory=0")
    } else {
        Finding::note(NAME, says).mend("if that is too little, root: sysctl vm.overcommit_memory=0")
    };
    line.value("mode", mode).value("left_bytes", left)
}

/// Reports the available memory of each node of this process.
fn nodes() -> Finding {
    let topology = Topology::discover_without_nvml();
    let allowed = mempolicy::allowed_nodes();
    let is_usable =
        |node: &&NumaNode| node.has_memory() && allowed.as_ref().is_none_or(|ids| ids.contains(&node.id()));
    let nodes: Vec<&NumaNode> = topology.nodes().iter().filter(is_usable).collect();
    let each: Vec<(NodeId, u64)> =
        nodes.iter().map(|node| (node.id(), node.available().unwrap_or(0))).collect();
    nodes_finding(&each, topology.nodes().iter().any(NumaNode::is_assumed))
        .value("free_bytes", nodes.iter().map(|node| node.free().unwrap_or(0)).collect::<Vec<_>>())
}

/// Describes the nodes of this process, with the available bytes of each.
fn nodes_finding(nodes: &[(NodeId, u64)], assumed: bool) -> Finding {
    const NAME: &str = "NUMA nodes";
    let line = match nodes {
        _ if assumed => Finding::note(NAME, "the kernel does not report them: treated as one"),
        [] | [_] => Finding::ok(NAME, "one for this process: nothing to place"),
        list => {
            let each = list.iter().map(|(node, bytes)| format!("node {node} {} available", Bytes(*bytes)));
            let says = format!(
                "{}: {}. Without a placement, pages are on the nodes of the cores that allocate them",
                list.len(),
                each.collect::<Vec<_>>().join(", ")
            );
            Finding::note(NAME, says)
                .mend("to distribute them over the nodes: --numa interleave beside --size, or --section name=x,size=2G,numa=0 for a part")
        }
    };
    line.value("count", nodes.len())
        .value("available_bytes", nodes.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>())
}

/// Checks the size of /dev/shm. It limits other kinds of shared memory, but not memory files.
fn small_file_system() -> Finding {
    const NAME: &str = "/dev/shm";
    match nix::sys::statvfs::statvfs("/dev/shm") {
        Ok(found) => {
            let bytes = found.blocks().saturating_mul(found.fragment_size());
            let says =
                format!("{}, which does not matter: buffers are memory files, not files in it", Bytes(bytes));
            Finding::ok(NAME, says).value("size_bytes", bytes)
        }
        Err(_) => {
            Finding::ok(NAME, "missing, which does not matter: buffers are memory files, not files in it")
        }
    }
}

/// Checks whether a buffer of `size` bytes fits, and on which pages.
fn fits(size: u64) -> Finding {
    const NAME: &str = "--size";
    let options = BufferOptions::new(size);
    let resolved = hostbuf_memory::resolve_all(&[options.demand()], None)[0];
    let check = |pages: Pages| {
        let length = pages.round_up(options.size);
        match pages {
            Pages::Huge2M | Pages::Huge1G => space::check_huge(length, pages.size()),
            _ => space::check_ordinary(length),
        }
    };
    let all = [Pages::Small, Pages::Transparent, Pages::Huge2M, Pages::Huge1G];
    let fitting: Vec<String> = all.into_iter().filter(|p| check(*p).is_ok()).map(|p| p.to_string()).collect();
    let line = match check(resolved) {
        Ok(()) => Finding::ok(
            NAME,
            format!("{} fits on pages {}; auto uses {resolved}", Bytes(size), fitting.join(", ")),
        ),
        Err(MemoryError::NoSpace(NoSpace { requested, available, limit, remedy, .. })) => {
            let says = format!(
                "{} does not fit: {} available, limited by {limit}",
                Bytes(requested),
                Bytes(available)
            );
            Finding::lacks(NAME, says).mend(remedy)
        }
        Err(error) => Finding::lacks(NAME, error.to_string()),
    };
    line.needed().value("fits_on", fitting).value("auto", resolved.to_string())
}

/// Checks whether a buffer can have its placement now. A memory file without pages is created for
/// that, and removed again.
fn placement(options: &BufferOptions) -> Finding {
    const NAME: &str = "--numa";
    let names = ["hostbuf-doctor".to_owned()];
    let created = hostbuf_memory::create_all(&[options.demand()], &names, Some(&HostNodes::of_this_host()));
    let line = match &created.as_deref() {
        Ok([file]) => {
            let mut bytes: BTreeMap<NodeId, u64> = BTreeMap::new();
            for (node, count) in file.plan.ranges().iter().flat_map(|range| file.plan.bytes(range)) {
                *bytes.entry(node).or_default() += count;
            }
            let mut each: Vec<String> =
                bytes.iter().map(|(node, bytes)| format!("node {node} {}", Bytes(*bytes))).collect();
            let copies = file.plan.ranges().iter().flat_map(PlannedRange::nodes_of_copies);
            let copies: BTreeSet<NodeId> = copies.copied().collect();
            if !copies.is_empty() {
                each.push(format!("room for copies on {}", name_nodes(copies)));
            }
            if file.plan.ranges().iter().any(|range| !range.is_placed()) {
                each.push("the rest has no placement".into());
            }
            Finding::ok(NAME, format!("possible now on pages {}: {}", file.pages, each.join(", ")))
                .value("nodes", bytes.keys().map(|node| node.0).collect::<Vec<_>>())
                .value("bytes", bytes.values().copied().collect::<Vec<_>>())
        }
        Ok(_) => unreachable!("one demand is one file"),
        Err(error) => Finding::lacks(NAME, error.to_string()),
    };
    line.needed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Mark;

    #[test]
    fn cgroup_versions_are_parsed() {
        assert_eq!(versions("4:memory:/a\n1:cpu:/\n0::/\n"), ["1", "2"]);
        assert_eq!(versions("0::/user.slice\n"), ["2"]);
        assert!(versions("1:cpu:/\nrubbish\n").is_empty());
    }

    #[test]
    fn a_cgroup_whose_processes_end_together_is_a_note() {
        let line = oom_group("/job");
        assert!(line.mark == Mark::Note && line.says.contains("the memory cgroup /job"), "{line:?}");
    }

    #[test]
    fn several_nodes_of_this_process_get_the_options_that_place() {
        let two = nodes_finding(&[(NodeId(0), 1 << 30), (NodeId(2), 2 << 30)], false);
        assert!(two.mark == Mark::Note && two.says.contains("node 2 2 GiB available"), "{two:?}");
        assert!(two.mends[0].contains("--numa interleave") && two.mends[0].contains("--section"), "{two:?}");
        // A cpuset may allow only one.
        let one = nodes_finding(&[(NodeId(2), 1 << 30)], false);
        assert!(one.mark == Mark::Ok && one.mends.is_empty(), "{one:?}");
        assert_eq!(nodes_finding(&[(NodeId(0), 1)], true).mark, Mark::Note);
    }

    #[test]
    fn a_placement_is_checked_for_each_node() {
        let on = |text: &str| placement(&BufferOptions::new(1 << 20).numa(text.parse().unwrap()));
        let interleaved = on("interleave");
        assert!(interleaved.mark == Mark::Ok && interleaved.says.contains(": node "), "{interleaved:?}");
        let absent = on("1023");
        assert!(
            absent.mark == Mark::Lacks && absent.needed && absent.says.contains("node 1023"),
            "{absent:?}"
        );
    }

    #[test]
    fn small_sizes_fit_and_huge_ones_do_not() {
        assert_eq!(fits(1 << 20).mark, Mark::Ok);
        let line = fits(1 << 46);
        assert!(line.mark == Mark::Lacks && line.needed && line.says.contains("does not fit"), "{line:?}");
    }
}
