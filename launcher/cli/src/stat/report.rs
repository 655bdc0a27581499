//! The jobs and buffers of this host, composed from the data of all processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::PathBuf;

use hostbuf::segment::{CONTROL_NAME, IDENTITY_NAME, LOADS_NAME};
use hostbuf::{Access, NodeId};
use hostbuf_agent::load_status::LoadReport;

use super::control::{BufferState, PageSource, Snapshot, read_identity};
use super::scan::{Area, FileId, FileName, Process, printable};

/// A job of one user on this host.
pub(crate) struct Job {
    /// The random number of the job.
    pub number: u128,
    /// The user ID.
    pub uid: u32,
    /// The contents of the control page, or the reason why they are unknown.
    pub control: Result<Snapshot, String>,
    /// The processes that map a buffer.
    pub ranks: Vec<Member>,
    /// The processes that only hold the files.
    pub agents: Vec<Member>,
    /// The buffers in the order of the control page.
    pub buffers: Vec<Buffer>,
    /// The files that the agent of this host has loaded, or loads, if there are any.
    pub loads: Option<LoadReport>,
}

/// A process of a job.
pub(crate) struct Member {
    /// The process ID.
    pub pid: i32,
    /// The name.
    pub name: String,
    /// True for a child of a rank: an ancestor maps a buffer too.
    pub child: bool,
}

/// A buffer of a job.
pub(crate) struct Buffer {
    /// The name.
    pub name: String,
    /// The address of the first byte.
    pub address: Option<u64>,
    /// The requested size in bytes, if the control page states it.
    pub size: Option<u64>,
    /// The mapped size in bytes.
    pub length: u64,
    /// The obtained page size and the number of bytes on huge pages, from the control page.
    pub pages: Option<(String, u64)>,
    /// True if pages are allocated at the first touch.
    pub lazy: Option<bool>,
    /// The mutable state.
    pub state: Option<BufferState>,
    /// True if the kernel refuses all writes; unknown if no process holds a descriptor.
    pub sealed: Option<bool>,
    /// The memory of the file in bytes; unknown if no process holds a descriptor.
    pub taken: Option<u64>,
    /// The mappings, each with its process ID.
    pub areas: Vec<(i32, Area)>,
    /// The registrations of living processes.
    pub registrations: Vec<BufferRegistration>,
}

/// A registration of a living process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BufferRegistration {
    /// The process ID.
    pub pid: i32,
    /// The name of the process.
    pub name: String,
    /// The device, in printable characters.
    pub device: String,
    /// The offset of the registered part in the buffer, in bytes.
    pub offset: u64,
    /// The length of the registered part in bytes.
    pub length: u64,
    /// The access of the device.
    pub access: Access,
}

impl Buffer {
    /// Returns the sum of the proportional shares of all processes.
    pub fn pss(&self) -> u64 {
        self.areas.iter().map(|(_, a)| share(a, self.sharers(a.file))).sum()
    }

    /// Returns the number of processes that share pages of the reserved pool of a file, at least 1.
    pub fn sharers(&self, file: FileId) -> u64 {
        let areas = self.areas.iter().filter(|(_, a)| a.file == file && a.shared_hugetlb > 0);
        areas.map(|(pid, _)| *pid).collect::<BTreeSet<_>>().len().max(1) as u64
    }

    /// Returns the sum of the memory that each process has touched: the memory that they would need
    /// without sharing.
    pub fn rss(&self) -> u64 {
        self.areas.iter().map(|(_, a)| touched(a)).sum()
    }

    /// Returns whether the buffer consists of pages of the reserved pool.
    pub fn is_hugetlb(&self) -> bool {
        self.areas.iter().any(|(_, a)| a.shared_hugetlb + a.private_hugetlb > 0)
    }

    /// Returns the largest amount of memory that any process maps by huge pages.
    pub fn huge_mapped(&self) -> u64 {
        let mut by_process: BTreeMap<i32, u64> = BTreeMap::new();
        for (pid, a) in &self.areas {
            *by_process.entry(*pid).or_default() += a.huge + a.shared_hugetlb + a.private_hugetlb;
        }
        by_process.into_values().max().unwrap_or(0)
    }
}

/// Returns a process's share of a mapping. The kernel leaves pages of the reserved pool out of PSS
/// and states only whether they are shared, so each of the `sharers` gets an equal part.
pub(super) fn share(area: &Area, sharers: u64) -> u64 {
    area.pss + area.private_hugetlb + area.shared_hugetlb / sharers
}

/// Returns the memory of a mapping that its process has touched.
pub(super) fn touched(area: &Area) -> u64 {
    area.rss + area.private_hugetlb + area.shared_hugetlb
}

impl Job {
    /// Returns the number of registrations for which the job's list had no room.
    pub fn unlisted(&self) -> u64 {
        self.control.as_ref().ok().and_then(|s| s.unlisted.as_ref().ok().copied()).unwrap_or(0)
    }

    /// Returns the number of ranks and the number of their children.
    pub fn counts(&self) -> (usize, usize) {
        let children = self.ranks.iter().filter(|r| r.child).count();
        (self.ranks.len() - children, children)
    }

    /// Describes all damage of the control page, or the reason why it is missing.
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.control.as_ref().err().cloned().into_iter().collect();
        for buffer in &self.buffers {
            let Some(state) = &buffer.state else { continue };
            let words =
                [state.fill.as_ref().err(), state.generation.as_ref().err(), state.high_water.as_ref().err()];
            problems.extend(words.into_iter().flatten().map(|why| format!("buffer {}: {why}", buffer.name)));
        }
        if let Ok(snapshot) = &self.control {
            // Registrations are for display only, so one line is enough for all of them.
            let damaged = snapshot.registrations.iter().filter_map(|r| r.as_ref().err());
            let damaged: Vec<&String> = damaged.chain(snapshot.unlisted.as_ref().err()).collect();
            if let Some(first) = damaged.first() {
                problems.push(format!("the list of registrations ({} damaged): {first}", damaged.len()));
            }
        }
        problems
    }
}

/// Returns the jobs of all `processes`, by user and number. A job appears once for each of its
/// visible hosts: simulated hosts share a kernel, but no file.
pub fn jobs(processes: &[Process]) -> Vec<Job> {
    let names = |p: &Process| -> BTreeSet<u128> {
        p.areas.iter().map(|a| a.name.job).chain(p.held.iter().map(|h| h.name.job)).collect()
    };
    let mut members: BTreeMap<(u32, u128), Vec<&Process>> = BTreeMap::new();
    for process in processes {
        for job in names(process) {
            members.entry((process.uid, job)).or_default().push(process);
        }
    }
    let mut jobs: Vec<Job> = members
        .into_iter()
        .flat_map(|((uid, number), processes)| {
            by_host(number, processes).into_iter().map(move |processes| job(uid, number, &processes))
        })
        .collect();
    let host = |job: &Job| job.control.as_ref().map_or(u32::MAX, |s| s.identity.host);
    jobs.sort_by_key(|job| (job.uid, job.number, host(job)));
    jobs
}

/// Groups the processes of a job by host: processes with a common file, directly or through others,
/// are on one host.
fn by_host(number: u128, processes: Vec<&Process>) -> Vec<Vec<&Process>> {
    let mut hosts: Vec<(BTreeSet<FileId>, Vec<&Process>)> = Vec::new();
    for process in processes {
        let areas = process.areas.iter().filter(|a| a.name.job == number).map(|a| a.file);
        let held = process.held.iter().filter(|h| h.name.job == number).map(|h| h.file);
        let mut files: BTreeSet<FileId> = areas.chain(held).collect();
        let mut members = Vec::new();
        for (others, processes) in
            hosts.extract_if(.., |(others, _)| !others.is_disjoint(&files)).collect::<Vec<_>>()
        {
            files.extend(others);
            members.extend(processes);
        }
        members.push(process);
        hosts.push((files, members));
    }
    hosts.into_iter().map(|(_, members)| members).collect()
}

fn job(uid: u32, number: u128, processes: &[&Process]) -> Job {
    // An agent maps only the control page, to report the progress of filling.
    let maps = |p: &Process| p.areas.iter().any(|a| a.name.job == number && is_buffer(&a.name));
    let mapping: BTreeSet<i32> = processes.iter().filter(|p| maps(p)).map(|p| p.pid).collect();
    let member = |p: &&&Process| Member {
        pid: p.pid,
        name: p.name.clone(),
        child: p.ancestors.iter().any(|a| mapping.contains(a)),
    };
    let control = control(number, processes).map(|snapshot| with_copies(snapshot, processes));
    let buffers = buffers(number, processes, control.as_ref().ok());
    let loads = loads(number, processes);
    Job {
        number,
        uid,
        control,
        ranks: processes.iter().filter(|p| maps(p)).map(|p| member(&p)).collect(),
        agents: processes.iter().filter(|p| !maps(p)).map(|p| member(&p)).collect(),
        buffers,
        loads,
    }
}

/// Reads the state of the files that a job loads.
fn loads(number: u128, processes: &[&Process]) -> Option<LoadReport> {
    let mut held = processes.iter().flat_map(|process| &process.held);
    held.find_map(|held| {
        let is_it = held.name.job == number && held.name.what == LOADS_NAME;
        let read = || LoadReport::read(&File::open(&held.path).ok()?).ok();
        if is_it { read() } else { None }
    })
}

/// Returns the contents with the copies on NUMA nodes that processes map now.
fn with_copies(mut snapshot: Snapshot, processes: &[&Process]) -> Snapshot {
    let identity = &mut snapshot.identity;
    let areas = || processes.iter().flat_map(|process| &process.areas);
    for section in &mut identity.sections {
        let Some(buffer) = identity.buffers.get(section.buffer) else { continue };
        let of_it = areas().filter(|area| area.name.job == identity.job && area.name.what == buffer.name());
        let nodes: Vec<NodeId> = of_it.filter_map(|area| area.name.copies_on).collect();
        *section = section.clone().with_copies(&nodes);
    }
    snapshot
}

/// Returns whether the name is that of a buffer's memory file.
fn is_buffer(name: &FileName) -> bool {
    ![CONTROL_NAME, IDENTITY_NAME, LOADS_NAME].contains(&name.what.as_str())
}

/// Reads the identity, and then the control page.
fn control(number: u128, processes: &[&Process]) -> Result<Snapshot, String> {
    let published = processes.iter().any(|p| {
        let mut names = p.areas.iter().map(|a| &a.name).chain(p.held.iter().map(|h| &h.name));
        names.any(|name| name.job == number && name.what == IDENTITY_NAME)
    });
    if !published {
        return Err("the job is still being made: its ranks have not agreed on an address yet".into());
    }
    let unreadable = |what: &str| {
        format!(
            "the {what} cannot be read: no process that may be looked into holds it open (the agent has gone), and their \
             memory may not be read (only root may)"
        )
    };
    let (identity, layout) = first_source(number, IDENTITY_NAME, processes, read_identity)
        .unwrap_or_else(|| Err(unreadable("identity")))?;
    first_source(number, CONTROL_NAME, processes, |source| source.read(&identity, layout))
        .unwrap_or_else(|| Err(unreadable("control page")))
}

/// Returns the result of `read` for the first source of a job's memory file that can be read.
fn first_source<T>(
    number: u128,
    what: &str,
    processes: &[&Process],
    read: impl Fn(&PageSource<'_>) -> io::Result<T>,
) -> Option<T> {
    let is_it = |name: &FileName| name.job == number && name.what == what;
    let mut held = processes.iter().flat_map(|p| p.held.iter().filter(|h| is_it(&h.name)));
    let from_held = held.find_map(|held| read(&PageSource::File(&held.path)).ok());
    from_held.or_else(|| {
        let areas = processes.iter().flat_map(|p| p.areas.iter().map(move |area| (p.pid, area)));
        areas.filter(|(_, area)| is_it(&area.name)).find_map(|(pid, area)| {
            let file = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", area.start, area.end));
            let sources = [PageSource::File(&file), PageSource::Memory(pid, area.start)];
            sources.iter().find_map(|source| read(source).ok())
        })
    })
}

fn buffers(number: u128, processes: &[&Process], snapshot: Option<&Snapshot>) -> Vec<Buffer> {
    let mut files: BTreeMap<FileId, String> = BTreeMap::new();
    for process in processes {
        let areas = process.areas.iter().map(|a| (&a.name, a.file));
        for (name, file) in areas.chain(process.held.iter().map(|h| (&h.name, h.file))) {
            if name.job == number && is_buffer(name) && name.copies_on.is_none() {
                files.insert(file, name.what.clone());
            }
        }
    }
    let mut buffers: Vec<(usize, Buffer)> = files
        .into_iter()
        .map(|(file, name)| {
            let known = snapshot.and_then(|s| {
                let index =
                    s.identity.buffers.iter().position(|b| b.inode == file.inode && b.name() == name)?;
                Some((index, s))
            });
            (known.map_or(usize::MAX, |(index, _)| index), buffer(name, file, processes, known))
        })
        .collect();
    buffers.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
    buffers.into_iter().map(|(_, buffer)| buffer).collect()
}

fn buffer(name: String, file: FileId, processes: &[&Process], known: Option<(usize, &Snapshot)>) -> Buffer {
    // Copies on NUMA nodes take memory as well, and are mapped over the buffer.
    let is_copy = |area: &Area| {
        known.is_some_and(|(_, s)| {
            area.name.copies_on.is_some() && area.name.job == s.identity.job && area.name.what == name
        })
    };
    let areas: Vec<(i32, Area)> = processes
        .iter()
        .flat_map(|p| p.areas.iter().filter(|a| a.file == file || is_copy(a)).map(|a| (p.pid, a.clone())))
        .collect();
    let held: Vec<_> = processes.iter().flat_map(|p| p.held.iter().filter(|h| h.file == file)).collect();
    let seen = areas.iter().map(|(_, a)| a.end - a.start + a.offset).max().unwrap_or(0);
    let entry = known.map(|(index, s)| s.identity.buffers[index]);
    Buffer {
        name,
        address: known
            .map(|(index, s)| s.identity.address.wrapping_add(s.identity.buffers[index].offset))
            .or_else(|| areas.first().map(|(_, a)| a.start.wrapping_sub(a.offset))),
        size: entry.map(|e| e.size),
        length: entry.map_or(seen, |e| e.length),
        pages: entry.map(|e| (e.pages.to_string(), e.huge)),
        lazy: entry.map(|e| e.lazy),
        state: known.map(|(index, s)| s.states[index].clone()),
        sealed: held.iter().find_map(|h| sealed(&h.path)),
        taken: held.iter().map(|h| h.taken).max(),
        areas,
        registrations: known.map_or(Vec::new(), |(index, s)| registrations(index, s, processes)),
    }
}

/// Returns the registrations of buffer `index` by living processes. Entries of processes that have
/// ended are ignored, even if another process has the same ID now.
fn registrations(index: usize, snapshot: &Snapshot, processes: &[&Process]) -> Vec<BufferRegistration> {
    let entries = snapshot.registrations.iter().flatten().filter(|r| r.index == index);
    let mut list: Vec<BufferRegistration> = entries
        .filter_map(|r| {
            let process = processes.iter().find(|p| r.is_of(p.inner, p.start))?;
            Some(BufferRegistration {
                pid: process.pid,
                name: process.name.clone(),
                device: printable(&r.device),
                offset: r.offset,
                length: r.length,
                access: r.access,
            })
        })
        .collect();
    list.sort_by(|a, b| (&a.device, a.pid, a.offset).cmp(&(&b.device, b.pid, b.offset)));
    list
}

/// Returns whether the kernel refuses every write to a memory file.
fn sealed(path: &std::path::Path) -> Option<bool> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::OpenOptionsExt;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    Some(hostbuf_memory::memfd::seals(file.as_fd()).ok()?.contains(hostbuf_memory::Seals::WRITE))
}

/// Returns the name of a user, or the number.
pub fn user(uid: u32) -> String {
    let found = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    found.map_or_else(|| uid.to_string(), |user| user.name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::json::json;
    use super::super::scan::{FileName, OpenFile};
    use super::*;

    const JOB: u128 = 7;

    fn area(what: &str, inode: u64, pss: u64) -> Area {
        let job = format!("{JOB:032x}");
        let text = format!(
            "550000000000-550000400000 rw-s 00000000 00:01 {inode} /memfd:hostbuf:{job}:{what} (deleted)\n\
             Rss: 4096 kB\nPss: {pss} kB\n"
        );
        super::super::scan::parse_smaps(&text).remove(0)
    }

    fn process(pid: i32, parent: i32, areas: Vec<Area>, held: &[u64]) -> Process {
        let held = held.iter().map(|&inode| OpenFile {
            name: FileName { job: JOB, what: "index".into(), copies_on: None },
            file: FileId { device: (0, 1), inode },
            path: "/nowhere".into(),
            taken: 4 << 20,
        });
        let held = held.collect();
        let (inner, start) = (pid.unsigned_abs(), 100);
        Process { pid, inner, start, name: "app".into(), uid: 0, ancestors: vec![parent, 1], areas, held }
    }

    #[test]
    fn the_report_has_the_ranks_agents_and_children_of_two_hosts() {
        let processes = [
            process(10, 1, vec![], &[50]),
            process(11, 10, vec![area("index", 50, 1024)], &[]),
            process(12, 10, vec![area("index", 50, 1024)], &[]),
            process(13, 12, vec![area("index", 50, 2048)], &[]),
            process(20, 1, vec![area("index", 60, 4096)], &[]),
        ];
        let jobs = jobs(&processes);
        assert_eq!(jobs.len(), 2);
        let host = &jobs[0];
        assert_eq!(host.counts(), (2, 1));
        assert_eq!(host.agents.iter().map(|a| a.pid).collect::<Vec<_>>(), [10]);
        let buffer = &host.buffers[0];
        assert_eq!((buffer.pss(), buffer.rss(), buffer.taken), (4 << 20, 12 << 20, Some(4 << 20)));
        assert_eq!((buffer.address, buffer.length), (Some(0x5500_0000_0000), 4 << 20));
        assert!(host.control.is_err() && jobs[1].counts() == (1, 0));
        let json = json(&jobs);
        assert_eq!(json["jobs"][0]["buffers"][0]["private_copies_bytes"], 8 << 20);
        assert_eq!(json["jobs"][0]["buffers"][0]["fill"], Value::Null);
    }
    #[test]
    fn registrations_of_living_processes_are_shown() {
        use hostbuf::job::Solo;
        use hostbuf::register::{Mlock, Overlap, testing::fake::Fake};
        use hostbuf::{BufferOptions, HostBuffer};
        use std::sync::Arc;

        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20).name("shown-by-stat")).unwrap();
        let whole = buffer.register(&Arc::new(Mlock::new()), .., Access::READ).unwrap();
        let fake = Arc::new(Fake::new(Overlap::Free));
        let part = buffer.register(&fake, 4096..12288, Access::REMOTE_WRITE).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let seen = |later: u64| {
            let mut process = super::super::scan::process(own, 0).unwrap();
            process.start += later;
            // Other tests of this process have buffers too.
            let mut jobs = jobs(&[process]);
            jobs.retain(|job| job.buffers.iter().any(|b| b.name == "shown-by-stat"));
            jobs
        };
        let jobs = seen(0);
        let buffer = &jobs[0].buffers[0];
        let devices: Vec<_> =
            buffer.registrations.iter().map(|r| (r.device.as_str(), r.pid, r.length)).collect();
        assert_eq!(devices, [("fake", own, 8192), ("mlock", own, 1 << 20)]);
        let json = &json(&jobs)["jobs"][0];
        assert_eq!(json["registrations_not_listed"], 0);
        assert_eq!(
            json["buffers"][0]["registrations"][0]["access"],
            json!(["read", "write", "remote_write"])
        );
        assert_eq!(json["buffers"][0]["registrations"][0]["offset_bytes"], 4096);
        let text = super::super::table::text(&jobs);
        let words = |device: &str| {
            let line = text.lines().find(|l| l.contains(device)).unwrap_or_else(|| panic!("{text}"));
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(
            words("  fake  ").ends_with(&format!(" {own} 8 KiB at 4 KiB read, write, remote write")),
            "{text}"
        );
        assert!(words("  mlock  ").ends_with(&format!(" {own} 1 MiB (all) read")), "{text}");
        // Another process that has got the number since.
        assert_eq!(seen(1)[0].buffers[0].registrations, []);
        drop((whole, part));
        let jobs = seen(0);
        assert_eq!(jobs[0].buffers[0].registrations, []);
        assert!(!super::super::table::text(&jobs).contains("REGISTERED"));
    }
}
