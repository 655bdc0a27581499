//! The control groups of this process.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group, as far as this process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CgroupDirectory {
    /// The version of its hierarchy, 1 or 2.
    pub(crate) version: u32,
    /// The directory of its files.
    pub(crate) dir: PathBuf,
    /// Its path below the mounted directory, for messages.
    pub(crate) path: String,
}

/// Returns the groups of this process in the hierarchies that may have a controller, each followed
/// by the groups above it that are visible.
pub(crate) fn of_this_process(controller: &str) -> Vec<CgroupDirectory> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut groups = Vec::new();
    for (version, path) in paths(&cgroups, controller) {
        let Some((mount, root)) = mount_point(&mounts, version, controller) else { continue };
        let own = ancestors(&mount, &root, &path).into_iter();
        groups.extend(own.map(|(dir, path)| CgroupDirectory { version, dir, path }));
    }
    groups
}

/// Parses the lines `hierarchy:controllers:path` of `/proc/self/cgroup`. Returns the version and
/// the path of the controller's hierarchy (version 1) and of the unified one (version 2).
fn paths(cgroups: &str, controller: &str) -> Vec<(u32, String)> {
    cgroups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            if hierarchy == "0" && controllers.is_empty() {
                Some((2, path.to_owned()))
            } else {
                controllers.split(',').any(|c| c == controller).then(|| (1, path.to_owned()))
            }
        })
        .collect()
}

/// Returns the mount point of a hierarchy, and the directory of the hierarchy that is mounted there
/// (not `/` in a container).
fn mount_point(mountinfo: &str, version: u32, controller: &str) -> Option<(PathBuf, String)> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, _source, options) = (right.next()?, right.next()?, right.next()?);
        let wanted = if version == 2 {
            kind == "cgroup2"
        } else {
            kind == "cgroup" && options.split(',').any(|o| o == controller)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_paths_of_both_versions_are_parsed() {
        let cgroups = "4:memory:/a/b\n3:cpu,cpuacct:/x\n0::/u\n";
        assert_eq!(paths(cgroups, "memory"), [(1, "/a/b".into()), (2, "/u".into())]);
        let mounts = "33 32 0:28 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory\n\
                      42 32 0:38 /pod /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(mounts, 1, "memory"), Some(("/sys/fs/cgroup/memory".into(), "/".into())));
        assert_eq!(mount_point(mounts, 2, "memory"), Some(("/sys/fs/cgroup/unified".into(), "/pod".into())));
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
}
