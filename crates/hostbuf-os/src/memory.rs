//! The limits on the memory that a process of this host may use.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::{self, CgroupDirectory};

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
    let limit = |group: &CgroupDirectory| limit_of(&group.dir, &group.path, group.version);
    cgroup::of_this_process("memory").iter().filter_map(limit).collect()
}

/// The tightest limits of the hugetlb cgroups of a process on huge pages of one size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HugePageLimits {
    /// The limit on pages in use. Touching a page beyond it raises SIGBUS.
    pub in_use: Option<Limit>,
    /// The limit on reserved pages. A mapping beyond it is refused.
    pub reserved: Option<Limit>,
}

impl HugePageLimits {
    /// Returns the limit with the fewest available bytes.
    #[must_use]
    pub fn tightest(self) -> Option<Limit> {
        [self.in_use, self.reserved].into_iter().flatten().min_by_key(|limit| limit.available)
    }
}

/// Returns the limits of the hugetlb cgroups of this process on huge pages of `page` bytes.
#[must_use]
pub fn huge_page_limits(page: u64) -> HugePageLimits {
    let groups = cgroup::of_this_process("hugetlb");
    let tightest = |reserved| {
        let limits = groups.iter().filter_map(|group| huge_page_limit(group, page, reserved));
        limits.min_by_key(|limit| limit.available)
    };
    HugePageLimits { in_use: tightest(false), reserved: tightest(true) }
}

/// Returns the limit of one hugetlb cgroup, on reserved pages or on pages in use.
fn huge_page_limit(group: &CgroupDirectory, page: u64, reserved: bool) -> Option<Limit> {
    let size = match page {
        1073741824.. => format!("{}GB", page >> 30),
        1048576.. => format!("{}MB", page >> 20),
        _ => format!("{}KB", page >> 10),
    };
    let size = if reserved { size + ".rsvd" } else { size };
    let (most, used) =
        if group.version == 2 { ("max", "current") } else { ("limit_in_bytes", "usage_in_bytes") };
    let file = format!("hugetlb.{size}.{most}");
    // The kernel reports "no limit" of version 1 as a number of pages that no machine has.
    let limit = number(&group.dir.join(&file)).filter(|limit| *limit < 1 << 62)?;
    let used = number(&group.dir.join(format!("hugetlb.{size}.{used}")))?;
    Some(Limit {
        name: format!("the cgroup {}'s {file}", group.path),
        limit,
        available: limit.saturating_sub(used) / page * page,
        remedy: "raise this limit of the batch system or of the container, or use --pages auto".into(),
    })
}

/// Returns the outermost memory cgroup of this process with `memory.oom.group`: when the OOM killer
/// chooses one of its processes, it ends all of them.
#[must_use]
pub fn oom_group() -> Option<String> {
    outermost_oom_group(cgroup::of_this_process("memory"))
}

fn outermost_oom_group(groups: Vec<CgroupDirectory>) -> Option<String> {
    let set = |group: &CgroupDirectory| number(&group.dir.join("memory.oom.group")) == Some(1);
    groups.into_iter().rfind(set).map(|group| group.path)
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

    #[test]
    fn the_outermost_cgroup_whose_processes_end_together_is_found() {
        let root = std::env::temp_dir().join(format!("hostbuf-oom-group-{}", std::process::id()));
        let group =
            |path: &str| CgroupDirectory { version: 2, dir: root.join(path), path: format!("/{path}") };
        let found = |values: [&str; 3]| {
            for (path, value) in ["a/b/c", "a/b", "a"].into_iter().zip(values) {
                fs::create_dir_all(root.join(path)).unwrap();
                fs::write(root.join(path).join("memory.oom.group"), value).unwrap();
            }
            outermost_oom_group(["a/b/c", "a/b", "a", "without the file"].map(group).to_vec())
        };
        let found = [found(["1\n", "1\n", "0\n"]), found(["0\n", "0\n", "0\n"])];
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found, [Some("/a/b".to_owned()), None]);
    }

    #[test]
    fn limits_of_both_versions_on_huge_pages_are_read() {
        let dir = std::env::temp_dir().join(format!("hostbuf-hugetlb-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in [
            ("hugetlb.2MB.max", "9000000\n"),
            ("hugetlb.2MB.current", "2097152\n"),
            ("hugetlb.2MB.rsvd.max", "max\n"),
            ("hugetlb.2MB.rsvd.current", "0\n"),
            ("hugetlb.1GB.limit_in_bytes", "9223372036854771712\n"),
            ("hugetlb.1GB.usage_in_bytes", "0\n"),
            ("hugetlb.1GB.rsvd.limit_in_bytes", "1073741824\n"),
            ("hugetlb.1GB.rsvd.usage_in_bytes", "0\n"),
        ] {
            fs::write(dir.join(name), text).unwrap();
        }
        let read = |version, page| {
            let group = CgroupDirectory { version, dir: dir.clone(), path: "/x".into() };
            let limit = |reserved| huge_page_limit(&group, page, reserved);
            [limit(false), limit(true)].map(|limit| limit.map(|limit| (limit.name, limit.available)))
        };
        let found = [read(2, 2 << 20), read(1, 1 << 30), read(1, 2 << 20)];
        fs::remove_dir_all(&dir).unwrap();
        let expected = [
            [Some(("the cgroup /x's hugetlb.2MB.max".to_owned(), 6 << 20)), None],
            [None, Some(("the cgroup /x's hugetlb.1GB.rsvd.limit_in_bytes".to_owned(), 1 << 30))],
            [None, None],
        ];
        assert_eq!(found, expected);
    }
}
