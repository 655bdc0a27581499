//! The processes that map or hold a hostbuf memory file, read from `/proc`.
//!
//! A process may end between any two reads. Data that can no longer be read is left out.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use hostbuf::NodeId;
use hostbuf::segment::{COPIES_NAME, FILES_NAME};
use hostbuf_os::process;

/// The name of a memory file: its job and its role in the job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileName {
    /// The job's random number.
    pub job: u128,
    /// The name of a buffer, or [`hostbuf::segment::CONTROL_NAME`].
    pub what: String,
    /// The NUMA node of the copies, if the file has copies of the buffer.
    pub copies_on: Option<NodeId>,
}

impl FileName {
    /// Reads `/memfd:hostbuf:JOB:WHAT (deleted)`. Returns `None` for a file that the job has
    /// loaded, which is no buffer, and for any other file.
    pub fn parse(path: &str) -> Option<FileName> {
        let rest = path.strip_prefix("/memfd:hostbuf:")?;
        let (job, what) = rest.split_once(':')?;
        if job.len() != 32 || !job.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return None;
        }
        let job = u128::from_str_radix(job, 16).ok().filter(|_| !what.starts_with(FILES_NAME))?;
        let what = what.strip_suffix(" (deleted)").unwrap_or(what);
        let copied = what.strip_prefix(COPIES_NAME).and_then(|copy| {
            let (buffer, node) = copy.rsplit_once('/')?;
            Some((buffer, NodeId(node.parse().ok()?)))
        });
        let what = printable(copied.map_or(what, |(buffer, _)| buffer));
        Some(FileName { job, what, copies_on: copied.map(|(_, node)| node) })
    }
}

/// Returns `text` with `?` for control characters: a process may choose its own name and those of
/// its memory files, which must not reach the terminal unchanged.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The identity of a memory file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    /// The major and minor number of the device.
    pub device: (u64, u64),
    /// The inode number.
    pub inode: u64,
}

/// A mapping, or the sum of several mappings of one file in one process. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    /// The name of the mapped file.
    pub name: FileName,
    /// The mapped file.
    pub file: FileId,
    /// The first address.
    pub start: u64,
    /// The address behind the last byte.
    pub end: u64,
    /// The offset of the mapping in the file.
    pub offset: u64,
    /// True if any part is writable.
    pub writable: bool,
    /// The proportional share of this process.
    pub pss: u64,
    /// The memory that this process has touched.
    pub rss: u64,
    /// The memory that is mapped by huge pages.
    pub huge: u64,
    /// The shared pages of the reserved pool, which PSS leaves out.
    pub shared_hugetlb: u64,
    /// The pages of the reserved pool that no other process has touched.
    pub private_hugetlb: u64,
    /// The page size that the kernel uses for the mapping.
    pub page: u64,
}

/// A descriptor of a memory file.
#[derive(Clone, Debug)]
pub(crate) struct OpenFile {
    /// The name of the file.
    pub name: FileName,
    /// The file.
    pub file: FileId,
    /// The path of the descriptor: `/proc/PID/fd/N`.
    pub path: PathBuf,
    /// The memory of the file in bytes.
    pub taken: u64,
}

/// A process that maps or holds a memory file of hostbuf.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    /// The process ID.
    pub pid: i32,
    /// The process ID in its own namespace, which differs in a container.
    pub inner: u32,
    /// The start time in clock ticks after boot.
    pub start: u64,
    /// The name in printable characters.
    pub name: String,
    /// The user ID.
    pub uid: u32,
    /// The ancestors, nearest first.
    pub ancestors: Vec<i32>,
    /// The mappings of hostbuf's files.
    pub areas: Vec<Area>,
    /// The hostbuf files that are open for writing.
    pub held: Vec<OpenFile>,
}

/// Returns the processes that map or hold a hostbuf file, by process ID: those of this user, or of
/// all users for root.
pub fn processes() -> Vec<Process> {
    let user = nix::unistd::geteuid();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<i32> = entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    pids.into_iter()
        .filter(|&pid| pid != me)
        .filter_map(|pid| {
            let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
            if user.is_root() || uid == user.as_raw() { process(pid, uid) } else { None }
        })
        .collect()
}

/// Returns a process if it maps or holds a hostbuf file.
pub(super) fn process(pid: i32, uid: u32) -> Option<Process> {
    let mut areas = Vec::new();
    // The kernel walks all page tables of a process for smaps, so it is read only if maps names a
    // hostbuf file.
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    if maps_buffer(&maps) {
        // A kernel without smaps has maps, whose lines are the headers of smaps.
        let smaps = fs::read(format!("/proc/{pid}/smaps")).unwrap_or(maps);
        areas = parse_smaps(&String::from_utf8_lossy(&smaps));
    }
    let held = held(pid);
    if areas.is_empty() && held.is_empty() {
        return None;
    }
    let up = |&pid: &i32| process::parent(pid).filter(|&parent| parent > 0);
    let ancestors = std::iter::successors(up(&pid), up).take(64).collect();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let inner = inner_number(&status).unwrap_or(pid.unsigned_abs());
    let start = process::start_time(pid).unwrap_or(0);
    Some(Process { pid, inner, start, name: printable(&process::name(pid)), uid, ancestors, areas, held })
}

/// Returns the process ID in the innermost namespace of a process.
fn inner_number(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().last()?.parse().ok()
}

fn maps_buffer(maps: &[u8]) -> bool {
    const MARK: &[u8] = b"/memfd:hostbuf:";
    maps.windows(MARK.len()).any(|window| window == MARK)
}

/// Returns the hostbuf files that a process has open for writing. Another `hostbuf stat` opens them
/// only for reading.
fn held(pid: i32) -> Vec<OpenFile> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut held: Vec<OpenFile> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let name = FileName::parse(fs::read_link(&path).ok()?.to_str()?)?;
            if fs::symlink_metadata(&path).ok()?.mode() & 0o200 == 0 {
                return None;
            }
            let file = fs::metadata(&path).ok()?;
            let device = (libc::major(file.dev()).into(), libc::minor(file.dev()).into());
            let file_id = FileId { device, inode: file.ino() };
            Some(OpenFile { name, file: file_id, path, taken: file.blocks() * 512 })
        })
        .collect();
    held.sort_by(|a, b| (a.file, &a.path).cmp(&(b.file, &b.path)));
    held
}

/// Returns the mappings of hostbuf files in the text of `/proc/PID/smaps`, with those of one file
/// added up.
pub fn parse_smaps(text: &str) -> Vec<Area> {
    let mut areas: BTreeMap<FileId, Area> = BTreeMap::new();
    let mut current: Option<Area> = None;
    for line in text.lines() {
        if let Some(header) = parse_header(line) {
            current.replace(header.unwrap_or_else(unshared)).into_iter().for_each(|a| add(&mut areas, a));
        } else if let Some(area) = &mut current {
            let mut words = line.split_ascii_whitespace();
            let (Some(key), Some(Ok(value))) = (words.next(), words.next().map(str::parse::<u64>)) else {
                continue;
            };
            let bytes = value.saturating_mul(1024);
            match key {
                "Pss:" => area.pss = bytes,
                "Rss:" => area.rss = bytes,
                "ShmemPmdMapped:" | "FilePmdMapped:" => area.huge += bytes,
                "Shared_Hugetlb:" => area.shared_hugetlb = bytes,
                "Private_Hugetlb:" => area.private_hugetlb = bytes,
                "KernelPageSize:" => area.page = bytes,
                _ => {}
            }
        }
    }
    current.into_iter().for_each(|a| add(&mut areas, a));
    areas.into_values().collect()
}

/// Returns a placeholder for a mapping of another file.
fn unshared() -> Area {
    let name = FileName { job: 0, what: String::new(), copies_on: None };
    let file = FileId { device: (0, 0), inode: 0 };
    Area {
        name,
        file,
        start: 0,
        end: 0,
        offset: 0,
        writable: false,
        pss: 0,
        rss: 0,
        huge: 0,
        shared_hugetlb: 0,
        private_hugetlb: 0,
        page: 0,
    }
}

fn add(areas: &mut BTreeMap<FileId, Area>, area: Area) {
    if area.name.what.is_empty() {
        return;
    }
    let Some(sum) = areas.get_mut(&area.file) else {
        areas.insert(area.file, area);
        return;
    };
    if area.start < sum.start {
        (sum.start, sum.offset) = (area.start, area.offset);
    }
    sum.end = sum.end.max(area.end);
    sum.writable |= area.writable;
    sum.pss += area.pss;
    sum.rss += area.rss;
    sum.huge += area.huge;
    sum.shared_hugetlb += area.shared_hugetlb;
    sum.private_hugetlb += area.private_hugetlb;
    sum.page = sum.page.max(area.page);
}

/// Parses a line `start-end rights offset major:minor inode   path`. The result is `None` for any
/// other line, and `Some(None)` for a mapping of another file.
#[allow(clippy::option_option, reason = "two answers to two questions")]
fn parse_header(line: &str) -> Option<Option<Area>> {
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let (rights, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (device, rest) = rest.split_once(' ')?;
    let (inode, path) = rest.split_once(' ').unwrap_or((rest, ""));
    let (major, minor) = device.split_once(':')?;
    let file = FileId { device: (hex(major)?, hex(minor)?), inode: inode.parse().ok()? };
    let offset = hex(offset)?;
    let writable = rights.contains('w');
    let area = |name| Area { name, file, start, end, offset, writable, ..unshared() };
    Some(FileName::parse(path.trim_start()).map(area))
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "000102030405060708090a0b0c0d0e0f";

    #[test]
    fn memory_files_are_recognized_by_name() {
        let name = FileName::parse(&format!("/memfd:hostbuf:{JOB}:index (deleted)")).unwrap();
        assert_eq!((name.job, name.what.as_str()), (0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f, "index"));
        assert_eq!(name.copies_on, None);
        let copy = FileName::parse(&format!("/memfd:hostbuf:{JOB}:/copies/index/12 (deleted)")).unwrap();
        assert!(copy.what == "index" && copy.copies_on == Some(NodeId(12)));
        let control = FileName::parse(&format!("/memfd:hostbuf:{JOB}:/control (deleted)")).unwrap();
        assert_eq!(control.what, hostbuf::segment::CONTROL_NAME);
        let rude = FileName::parse(&format!("/memfd:hostbuf:{JOB}:a\x1b[2J (deleted)")).unwrap();
        assert_eq!(rude.what, "a?[2J");
        for other in [
            "/memfd:other (deleted)".to_owned(),
            "/memfd:hostbuf:12:index (deleted)".to_owned(),
            format!("/memfd:hostbuf:{}:index (deleted)", JOB.to_uppercase()),
            format!("/tmp/memfd:hostbuf:{JOB}:index"),
            format!("/memfd:hostbuf:{JOB}:/files/index (deleted)"),
            String::new(),
        ] {
            assert_eq!(FileName::parse(&other), None, "{other}");
        }
    }

    #[test]
    fn smaps_of_one_file_are_added_up() {
        let text = format!(
            "550000000000-550000400000 rw-s 00000000 00:01 77                         /memfd:hostbuf:{JOB}:index (deleted)\n\
             Size:               4096 kB\nKernelPageSize:        4 kB\nRss:                4096 kB\nPss:                1024 kB\n\
             ShmemPmdMapped:     4096 kB\nVmFlags: rd wr sh\n\
             550000400000-550000600000 r--s 00400000 00:01 77 /memfd:hostbuf:{JOB}:index (deleted)\n\
             Rss:                2048 kB\nPss:                 512 kB\n\
             550000800000-550000802000 rw-s 00000000 00:01 76 /memfd:hostbuf:{JOB}:/control (deleted)\n\
             Rss:                   8 kB\nPss:                   2 kB\n\
             7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \nRss:                   4 kB\nPss:                   4 kB\n\
             7f0000002000-7f0000003000 r-xp 00000000 fe:00 12 /usr/lib/a b.so\nPss:                   4 kB\n"
        );
        let areas = parse_smaps(&text);
        assert_eq!(areas.len(), 2);
        assert_eq!((areas[0].name.what.as_str(), areas[0].pss), ("/control", 2048));
        let index = &areas[1];
        assert_eq!((index.start, index.end, index.offset), (0x5500_0000_0000, 0x5500_0060_0000, 0));
        assert_eq!((index.pss, index.rss, index.huge), (1536 << 10, 6 << 20, 4 << 20));
        assert_eq!(index.file, FileId { device: (0, 1), inode: 77 });
        assert!(index.writable && index.page == 4096);
    }

    #[test]
    fn the_pid_inside_a_container_is_read() {
        assert_eq!(inner_number("Name:\tapp\nPid:\t4711\nNSpid:\t4711\t17\nNSpgid:\t1\n"), Some(17));
        assert_eq!(inner_number("NSpid:\t4711\n"), Some(4711));
        assert_eq!((inner_number("NSpid:\n"), inner_number("Pid:\t1\n")), (None, None));
    }

    #[test]
    fn malformed_lines_are_ignored() {
        let text = format!("Rss: 4 kB\n\nxyz\n1-2\n5-6 rw-s 0 0:1 x /memfd:hostbuf:{JOB}:a\nPss: many kB\n");
        assert_eq!(parse_smaps(&text), []);
    }
}
