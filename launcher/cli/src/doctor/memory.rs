//! The available memory, its limits, and its distribution over NUMA nodes.

use std::fs;

use hostbuf::{BufferOptions, Bytes, MemoryError, NoSpace, Pages};
use hostbuf_memory::space;
use hostbuf_os::memory;

use super::kernel_text::knob;
use crate::finding::Finding;

pub fn lines(size: Option<u64>) -> Vec<Finding> {
    let mut lines = vec![available(), cgroups()];
    lines.extend(memory::oom_group().map(|path| oom_group(&path)));
    lines.extend([overcommit(size), nodes(), small_file_system()]);
    lines.extend(size.map(fits));
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

fn nodes() -> Finding {
    const NAME: &str = "NUMA nodes";
    let entries = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let mut nodes: Vec<u32> =
        entries.filter_map(|e| e.file_name().to_str()?.strip_prefix("node")?.parse().ok()).collect();
    nodes.sort_unstable();
    let each: Vec<(u32, u64)> = nodes
        .iter()
        .map(|&n| {
            let text = knob(&format!("/sys/devices/system/node/node{n}/meminfo")).unwrap_or_default();
            (n, node_free(&text).unwrap_or(0))
        })
        .collect();
    let line = match each.as_slice() {
        [] => Finding::note(NAME, "the kernel does not report them, so one node is assumed"),
        [_] => Finding::ok(NAME, "one: nothing to place"),
        list => {
            let free = list.iter().map(|(n, free)| format!("node {n} {} free", Bytes(*free)));
            let says = format!(
                "{}: {}. Without a placement, pages are on the nodes of the cores that allocate them",
                list.len(),
                free.collect::<Vec<_>>().join(", ")
            );
            Finding::note(NAME, says).mend("to distribute them over the nodes: --numa interleave")
        }
    };
    line.value("count", each.len())
        .value("free_bytes", each.iter().map(|(_, free)| *free).collect::<Vec<_>>())
}

/// Returns the number of bytes in a line such as `Node 0 MemFree:  123 kB`.
fn node_free(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.split_once("MemFree:"))?.1;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
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
    fn the_free_memory_of_a_numa_node_is_parsed() {
        let text = "Node 0 MemTotal:       2048 kB\nNode 0 MemFree:         512 kB\n";
        assert_eq!(node_free(text), Some(512 << 10));
        assert_eq!(node_free("Node 0 MemFree: ?"), None);
    }

    #[test]
    fn small_sizes_fit_and_huge_ones_do_not() {
        assert_eq!(fits(1 << 20).mark, Mark::Ok);
        let line = fits(1 << 46);
        assert!(line.mark == Mark::Lacks && line.needed && line.says.contains("does not fit"), "{line:?}");
    }
}
