//! The limits on the memory that a process of this host may use.

use std::fs;
use std::path::{Path, PathBuf};

/// One limit on memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// The name of the limit, for messages: `the memory cgroup /batch/job_7`.
    pub name: String,
    /// The limit in bytes.
    pub limit: u64,
    /// The number of bytes that are still available.
    pub available: u64,
    /// The remedy if the limit is too small.
    pub remedy: String,
}

/// Returns the number of processes that the kernel's OOM killer has ended on this host, for a
/// cgroup or for the host; `None` if the kernel does not show it.
#[must_use]
pub fn oom_kills() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}

/// Returns the tightest limit on ordinary pages: the host's available memory, or a memory cgroup of
/// this process or above it, of version 1 or 2.
#[must_use]
pub fn tightest_limit() -> Limit {
    let mut limits = cgroup_limits();
    limits.push(host());
    limits.into_iter().min_by_key(|l| l.available).expect("the host's own limit always exists")
}

/// Returns whether a memory cgroup limits this process to less than the memory of the host. A
/// process that exceeds such a limit is killed, without an error.
#[must_use]
pub fn cgroup_limited() -> bool {
    let total = meminfo("MemTotal").unwrap_or(u64::MAX);
    cgroup_limits().iter().any(|l| l.limit < total)
}

/// Returns the limit on the address space of this process (`ulimit -v`), if there is one.
#[must_use]
pub fn address_space() -> Option<Limit> {
    use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
    let (limit, _) = getrlimit(Resource::RLIMIT_AS).ok().filter(|(soft, _)| *soft != RLIM_INFINITY)?;
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let used = pages.split_ascii_whitespace().next()?.parse::<u64>().ok()? * page_size();
    Some(Limit {
        name: "the address space of a process (ulimit -v)".into(),
        limit,
        available: limit.saturating_sub(used),
        remedy: "raise `ulimit -v`, or request less".into(),
    })
}

fn host() -> Limit {
    Limit {
        name: "this host's free memory (MemAvailable)".into(),
        limit: meminfo("MemTotal").unwrap_or(u64::MAX),
        available: meminfo("MemAvailable").unwrap_or(u64::MAX),
        remedy: "request less, use more hosts, or end other programs on this host".into(),
    }
}

/// Returns the value of a line of `/proc/meminfo`, in bytes.
#[must_use]
pub fn meminfo(name: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    let mut words = line.split_ascii_whitespace();
    let value: u64 = words.next()?.parse().ok()?;
    Some(if words.next() == Some("kB") { value * 1024 } else { value })
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn stat(dir: &Path, names: &[&str]) -> u64 {
    let text = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let value = |name: &&str| {
        text.lines().find_map(|l| l.strip_prefix(*name)?.strip_prefix(' ')?.parse::<u64>().ok()).unwrap_or(0)
    };
    names.iter().map(value).sum()
}

/// Returns the limit of one directory of a memory cgroup. The page cache of files can be reclaimed,
/// so it does not count as used. Shared memory cannot be reclaimed without swap, and the kernel
/// does not include it in these figures.
fn limit_of(dir: &Path, path: &str, version: u32) -> Option<Limit> {
    let (limit, used, reclaimable) = if version == 2 {
        let names = ["inactive_file", "active_file", "slab_reclaimable"];
        (number(&dir.join("memory.max"))?, number(&dir.join("memory.current"))?, stat(dir, &names))
    } else {
        let names = ["total_inactive_file", "total_active_file"];
        let limit = number(&dir.join("memory.limit_in_bytes"))?;
        // The kernel reports "no limit" as a number of pages that no machine has.
        if limit >= 1 << 62 {
            return None;
        }
        (limit, number(&dir.join("memory.usage_in_bytes"))?, stat(dir, &names))
    };
    Some(Limit {
        name: format!("the memory cgroup {path}"),
        limit,
        available: limit.saturating_sub(used.saturating_sub(reclaimable)),
        remedy: "request more memory for the job (the batch system's --mem, or docker run --memory), \
                 or a smaller buffer"
            .into(),
    })
}

fn cgroup_limits() -> Vec<Limit> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut limits = Vec::new();
    for (version, path) in memory_cgroups(&cgroups) {
        let Some((mount, root)) = cgroup_mount(&mounts, version) else { continue };
        limits.extend(
            ancestors(&mount, &root, &path)
                .into_iter()
                .filter_map(|(dir, path)| limit_of(&dir, &path, version)),
        );
    }
    limits
}

/// Parses the lines `hierarchy:controllers:path` of `/proc/self/cgroup`. Returns the version and
/// the path of the memory controller's hierarchy (version 1) and of the unified one (version 2).
fn memory_cgroups(cgroups: &str) -> Vec<(u32, String)> {
    cgroups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            if hierarchy == "0" && controllers.is_empty() {
                Some((2, path.to_owned()))
            } else {
                controllers.split(',').any(|c| c == "memory").then(|| (1, path.to_owned()))
            }
        })
        .collect()
}

/// Returns the mount point of a hierarchy, and the directory of the hierarchy that is mounted there
/// (not `/` in a container).
fn cgroup_mount(mountinfo: &str, version: u32) -> Option<(PathBuf, String)> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, _source, options) = (right.next()?, right.next()?, right.next()?);
        let wanted = if version == 2 {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && options.split(',').any(|o| o == "memory")
        };
        let mut left = left.split(' ').skip(3);
        let (root, mount) = (left.next()?, left.next()?);
        wanted.then(|| (PathBuf::from(mount), root.to_owned()))
    })
}

/// Returns the directory of `path` and all directories above it that are visible from here, with
/// their paths.
fn ancestors(mount: &Path, root: &str, path: &str) -> Vec<(PathBuf, String)> {
    let inside = if root == "/" { path } else { path.strip_prefix(root).unwrap_or("/") };
    let mut list = Vec::new();
    let mut rest = inside.trim_matches('/');
    loop {
        list.push((mount.join(rest), format!("/{rest}")));
        match rest.rsplit_once('/') {
            Some((above, _)) => rest = above,
            None if !rest.is_empty() => rest = "",
            None => return list,
        }
    }
}

/// The state of one pool of reserved huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugePool {
    /// The number of free pages that are not reserved.
    pub free: u64,
    /// The total number of pages.
    pub total: u64,
}

/// Returns the pool of pages of `page` bytes, or `None` if the kernel has no pages of this size.
#[must_use]
pub fn huge_pool(page: u64) -> Option<HugePool> {
    let dir = PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page / 1024));
    let free = number(&dir.join("free_hugepages"))?;
    let promised = number(&dir.join("resv_hugepages")).unwrap_or(0);
    let surplus_left = number(&dir.join("nr_overcommit_hugepages"))
        .unwrap_or(0)
        .saturating_sub(number(&dir.join("surplus_hugepages")).unwrap_or(0));
    let total = number(&dir.join("nr_hugepages"))?;
    Some(HugePool { free: free.saturating_sub(promised) + surplus_left, total })
}

/// Returns the selected value of a sysfs file such as `always [madvise] never`.
#[must_use]
pub fn selected(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// Returns the size of ordinary pages in bytes.
#[must_use]
pub fn page_size() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().map_or(4096, |n| n as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_paths_of_both_versions_are_parsed() {
        let cgroups = "4:memory:/a/b\n3:cpu,cpuacct:/x\n0::/u\n";
        assert_eq!(memory_cgroups(cgroups), [(1, "/a/b".into()), (2, "/u".into())]);
        let mounts = "33 32 0:28 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory\n\
                      42 32 0:38 /pod /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup_mount(mounts, 1), Some(("/sys/fs/cgroup/memory".into(), "/".into())));
        assert_eq!(cgroup_mount(mounts, 2), Some(("/sys/fs/cgroup/unified".into(), "/pod".into())));
    }

    #[test]
    fn all_visible_ancestors_are_listed() {
        let names = |root, path| {
            ancestors(Path::new("/m"), root, path)
                .into_iter()
                .map(|(dir, _)| dir.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names("/", "/a/b"), ["/m/a/b", "/m/a", "/m/"]);
        assert_eq!(names("/", "/"), ["/m/"]);
        assert_eq!(names("/pod", "/pod/c"), ["/m/c", "/m/"]);
        assert_eq!(names("/pod", "/elsewhere"), ["/m/"]);
    }

    #[test]
    fn reclaimable_cache_counts_as_available() {
        let dir = std::env::temp_dir().join(format!("hostbuf-cgroup-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in [
            ("memory.max", "1000\n"),
            ("memory.current", "900\n"),
            ("memory.stat", "anon 5\ninactive_file 300\nactive_file 100\nslab_reclaimable 50\n"),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        let limit = limit_of(&dir, "/x", 2).unwrap();
        fs::write(dir.join("memory.max"), "max\n").unwrap();
        let unlimited = limit_of(&dir, "/x", 2);
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!((limit.limit, limit.available), (1000, 550));
        assert_eq!(unlimited, None);
    }
}
