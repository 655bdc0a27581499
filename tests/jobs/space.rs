//! Requests for more memory than is available: the error gives the bytes requested, the bytes
//! available, the limit and a remedy, before any page is touched. A buffer of the stated available
//! size succeeds.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hostbuf_tests::{
    CommandOutput, can_simulate, eventually, flavours, hostbuf, local, root, simulated, skip,
};

use crate::address::build;
use crate::running_job::{ARRIVAL, RunningJob, SOON, children, probe};

/// Asserts that the error is one line with all four parts, and returns the available bytes that it
/// states.
#[track_caller]
fn refusal(outcome: &CommandOutput) -> u64 {
    let err = &outcome.stderr;
    let ours: Vec<&str> = err.lines().filter(|l| l.starts_with("hostbuf")).collect();
    assert_eq!((outcome.status, ours.len()), (83, 1), "{outcome:?}");
    assert_eq!(outcome.stdout, "", "no rank has run");
    let parts = ["hostbuf run: not enough memory on ", " requested, ", " available (", ", limited by "];
    assert!(parts.iter().all(|p| ours[0].contains(p)), "{err}");
    let remedy = ours[0].rsplit(". ").next().unwrap_or("");
    assert!(remedy.len() > 10, "no remedy: {err}");
    let bytes = ours[0].split(" and ").nth(1).and_then(|r| r.split(' ').next()).and_then(|n| n.parse().ok());
    bytes.unwrap_or_else(|| panic!("no bytes: {err}"))
}

#[test]
fn a_buffer_larger_than_free_memory_is_refused_at_once() {
    let begun = Instant::now();
    let outcome = local(4, "50T", &[], &["true"]);
    let available = refusal(&outcome);
    assert!(begun.elapsed() < Duration::from_secs(2), "nothing was touched");
    assert!(available > 0 && available < 50 << 40, "{available}");
    assert!(outcome.stderr.contains("MemAvailable") || outcome.stderr.contains("cgroup"), "{outcome:?}");
    // The sizes of several buffers are added up: each alone would fit.
    let three_quarters = available / 4 * 3;
    let buffers: Vec<String> =
        ["a", "b"].map(|n| format!("--buffer=name={n},size={three_quarters}")).to_vec();
    let mut command = Command::new(hostbuf());
    command.args(["run", "--launcher", "local", "-n", "2"]).args(buffers).args(["--", "true"]);
    refusal(&CommandOutput::of(&mut command));
}

#[test]
fn a_buffer_too_large_for_one_of_two_hosts_gives_one_line() {
    if !can_simulate() {
        return;
    }
    for flavour in flavours().iter().filter(|f| f.ends_with('4')) {
        let script = "$HOSTBUF run -n 4 --host h0:2,h1:2 --mpirun $MPIRUN --size 50T -- true";
        let outcome = simulated(2, flavour, script);
        refusal(&outcome);
    }
}

/// A memory cgroup (version 1) below that of this test. Dropping it removes the cgroup.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Creates a memory cgroup. Records a skip and returns `None` if that is not possible.
    pub fn new(name: &str, limit: u64) -> Option<Cgroup> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let path =
            own.lines().find_map(|l| l.split_once(":memory:")).map(|(_, path)| path.trim_start_matches('/'));
        let Some(path) = path else {
            skip("a memory cgroup of version 1: there is none here");
            return None;
        };
        let parent = Path::new("/sys/fs/cgroup/memory").join(path);
        match Cgroup::below(&parent, name, limit) {
            Ok(cgroup) => Some(cgroup),
            Err(error) => {
                skip(&format!("a memory cgroup of version 1 below {}: {error}", parent.display()));
                None
            }
        }
    }

    fn below(parent: &Path, name: &str, limit: u64) -> std::io::Result<Cgroup> {
        let dir = parent.join(format!("hostbuf-test-{name}-{}", std::process::id()));
        fs::create_dir(&dir)?;
        let cgroup = Cgroup(dir);
        cgroup.limit(limit)?;
        Ok(cgroup)
    }

    fn limit(&self, bytes: u64) -> std::io::Result<()> {
        fs::write(self.0.join("memory.limit_in_bytes"), bytes.to_string())
    }

    fn usage(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.usage_in_bytes")).expect("the file exists");
        text.trim().parse().expect("a number")
    }

    /// Makes `command` run inside of the cgroup.
    #[allow(unsafe_code, reason = "a closure runs between fork and exec")]
    pub fn enter<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let procs = File::options().write(true).open(self.0.join("cgroup.procs")).expect("the file exists");
        // SAFETY: between fork and exec one system call.
        unsafe {
            command.pre_exec(move || {
                nix::unistd::write(&procs, b"0").map_err(std::io::Error::from)?;
                Ok(())
            })
        }
    }

    fn local(&self, size: u64, more: &[&str], program: &[&str]) -> CommandOutput {
        let mut command = Command::new(hostbuf());
        command.args(["run", "--launcher", "local", "-n", "1", "--size", &size.to_string()]);
        CommandOutput::of(self.enter(command.args(more).arg("--").args(program)))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let begun = Instant::now();
        // The charges and the list of processes become empty shortly after the last process has
        // ended.
        while fs::remove_dir(&self.0).is_err() && begun.elapsed() < SOON {
            for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
                crate::running_job::kill_now(pid.parse().expect("a number"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_cgroup_limits_the_buffer_and_an_exact_fit_succeeds() {
    let probe = probe();
    for (pages, limit) in [("4k", 200 << 20), ("thp", 200 << 20), ("auto", 333 << 20)] {
        let Some(cgroup) = Cgroup::new(&format!("exact-{pages}"), limit) else { return };
        let outcome = cgroup.local(10 << 30, &["--pages", pages], &["true"]);
        let mut available = refusal(&outcome);
        assert!(outcome.stderr.contains("hostbuf-test-exact"), "it names the cgroup: {outcome:?}");
        assert!(available < limit && available > limit / 10 * 8, "{available} of {limit}");
        // The cgroup's own use varies by some pages from run to run; each error gives the current
        // figure.
        for attempt in 0.. {
            let size = if pages == "4k" { available } else { available >> 21 << 21 };
            let outcome = cgroup.local(size, &["--pages", pages], &[&probe, "touch"]);
            if outcome.status == 0 {
                assert!(outcome.stdout.contains("wrong None"), "{outcome:?}");
                break;
            }
            assert!(attempt < 10, "{pages}: a buffer of the available size never succeeds: {outcome:?}");
            available = refusal(&outcome);
        }
    }
}

#[test]
fn ancestor_cgroups_limit_the_buffer() {
    let Some(outer) = Cgroup::new("outer", 100 << 20) else { return };
    let inner = Cgroup::below(&outer.0, "inner", 1 << 30).expect("the outer one could be made");
    let innermost = Cgroup::below(&inner.0, "innermost", 1 << 40).expect("the inner one could be made");
    let outcome = innermost.local(500 << 20, &[], &["true"]);
    let available = refusal(&outcome);
    assert!(available < 100 << 20, "{available}");
    let limit = outcome.stderr.split("limited by ").nth(1).unwrap_or("");
    assert!(limit.contains("hostbuf-test-outer") && !limit.contains("inner"), "{outcome:?}");
    innermost.local(50 << 20, &[], &[&probe(), "touch"]).ok();
}

#[test]
fn a_cgroup_of_version_2_limits_the_buffer() {
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers")
        .or_else(|_| fs::read_to_string("/sys/fs/cgroup/unified/cgroup.controllers"))
        .unwrap_or_default();
    if !controllers.split_whitespace().any(|c| c == "memory") {
        return skip(
            "a live memory cgroup of version 2: the controller belongs to version 1 here (its files are unit-tested)",
        );
    }
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = own.lines().find_map(|l| l.strip_prefix("0::/")).unwrap_or("");
    let parent = Path::new("/sys/fs/cgroup").join(path);
    let dir = parent.join(format!("hostbuf-test-v2-{}", std::process::id()));
    let made =
        fs::create_dir(&dir).and_then(|()| fs::write(dir.join("memory.max"), (200u64 << 20).to_string()));
    if let Err(error) = made {
        let _ = fs::remove_dir(&dir);
        return skip(&format!("a live memory cgroup of version 2: {error}"));
    }
    let cgroup = Cgroup(dir);
    assert!(refusal(&cgroup.local(1 << 30, &[], &["true"])) < 200 << 20);
    cgroup.local(100 << 20, &[], &[&probe(), "touch"]).ok();
}

#[test]
fn a_kill_by_the_cgroup_gives_the_same_error() {
    // The check finds enough memory. Then the limit falls, as if other processes had taken the
    // memory.
    const GIB: u64 = 1 << 30;
    let Some(cgroup) = Cgroup::new("kill", 4 * GIB) else { return };
    for pages in ["4k", "thp"] {
        cgroup.limit(4 * GIB).expect("it was possible before");
        let size = format!("size=3G,pages={pages}");
        let mut job = RunningJob::start("kill", &size, &["-n", "2"], &["sleep", "1000"], |command, _| {
            cgroup.enter(command);
        });
        eventually("the agent takes pages", ARRIVAL, || job.agent().is_some_and(|a| !children(a).is_empty()));
        eventually("the limit falls", ARRIVAL, || cgroup.limit(cgroup.usage() + (64 << 20)).is_ok());
        let status = job.end(2 * SOON);
        let outcome =
            CommandOutput { status: status.code().unwrap_or(-1), stdout: job.out(), stderr: job.err() };
        refusal(&outcome);
        assert!(outcome.stderr.contains("hostbuf-test-kill"), "{outcome:?}");
        job.leaves_nothing(pages);
    }
}

#[test]
fn a_small_dev_shm_does_not_matter() {
    let mut command = Command::new("unshare");
    let script = format!(
        "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec {} run --launcher local -n 2 --size 300M --pages 4k -- {} touch",
        hostbuf().display(),
        probe()
    );
    command.args(["--mount", "--map-root-user", "--user", "sh", "-c", &script]);
    if nix::unistd::geteuid().is_root() {
        command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]);
    }
    let outcome = CommandOutput::of(&mut command);
    if outcome.stderr.contains("unshare") || outcome.stderr.contains("mount:") {
        return skip(&format!("a small /dev/shm: {}", outcome.stderr.trim()));
    }
    assert_eq!(outcome.ok().lines("touched 314572800 ").len(), 2);
}

/// The pool of 2 MiB pages at a chosen size, for one test at a time. Dropping it restores the
/// former size.
struct HugePagePool {
    before: String,
    _lock: nix::fcntl::Flock<File>,
}

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

impl HugePagePool {
    fn of(pages: u64) -> Option<HugePagePool> {
        let lock = File::create(root().join("target/tmp/huge-pages.lock")).expect("target/tmp is there");
        // The kernel releases this lock if the test dies.
        let lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive);
        let lock = lock.map_err(|(_, e)| e).expect("the lock can be waited for");
        let before = fs::read_to_string(POOL).unwrap_or_default();
        let pool = HugePagePool { before, _lock: lock };
        if let Err(error) = fs::write(POOL, pages.to_string()) {
            skip(&format!("reserved huge pages: {POOL}: {error}"));
            return None;
        }
        let got = fs::read_to_string(POOL).unwrap_or_default();
        if got.trim() != pages.to_string() {
            skip(&format!("reserved huge pages: asked the kernel for {pages}, got {}", got.trim()));
            return None;
        }
        Some(pool)
    }
}

impl Drop for HugePagePool {
    fn drop(&mut self) {
        let _ = fs::write(POOL, &self.before);
    }
}

#[test]
fn reserved_huge_pages_are_used_and_their_absence_is_an_error_on_request() {
    let probe = probe();
    let touch: &[&str] = &[&probe, "touch"];
    if let Some(_pool) = HugePagePool::of(0) {
        let outcome = local(2, "40M", &["--pages", "2m"], touch);
        assert_eq!(refusal(&outcome), 0);
        assert!(
            outcome.stderr.contains("echo 20 > ") && outcome.stderr.contains("--pages auto"),
            "{outcome:?}"
        );
        // Below the reserved pages `auto` falls back to transparent huge pages.
        assert_eq!(local(2, "40M", &[], touch).ok().lines("touched 41943040 pages thp ").len(), 2);
    }
    let Some(_pool) = HugePagePool::of(20) else { return };
    let all = "touched 41943040 pages 2m huge 41943040 wrong None";
    // The buffer fits the pool exactly and is required to use it. The second run shows that the
    // first one returned all pages.
    for pages in ["2m", "2m", "auto"] {
        let outcome = local(2, "40M", &["--pages", pages], touch).ok();
        assert_eq!(outcome.lines(all).len(), 2, "{pages}: {outcome:?}");
    }
    let outcome = local(2, "42M", &["--pages", "2m"], touch);
    assert_eq!(refusal(&outcome), 40 << 20);
    assert!(outcome.stderr.contains("echo 21 > "), "{outcome:?}");
    assert_eq!(local(1, "42M", &[], touch).ok().lines("touched 44040192 pages thp ").len(), 1);
    // The pool reserves the pages of a lazy buffer at the mapping.
    let outcome = local(2, "40M", &["--pages", "2m", "--lazy"], touch).ok();
    assert_eq!(outcome.lines("touched 41943040 pages 2m ").len(), 2, "{outcome:?}");
    assert_eq!(refusal(&local(2, "42M", &["--pages", "2m", "--lazy"], touch)), 40 << 20);
    // Only one of the two buffers fits the pool: the second one falls back to other pages.
    let mut command = Command::new(hostbuf());
    command.args([
        "run",
        "--launcher",
        "local",
        "-n",
        "1",
        "--buffer",
        "name=a,size=30M",
        "--buffer",
        "name=b,size=30M",
    ]);
    let outcome = CommandOutput::of(command.arg("--").args(touch)).ok();
    assert_eq!(outcome.lines("touched 31457280 pages 2m ").len(), 1, "{outcome:?}");
}

#[test]
fn jobs_that_see_the_same_free_pages_get_others_where_auto_permits() {
    let Some(_pool) = HugePagePool::of(20) else { return };
    let probe = probe();
    let outcomes: Vec<CommandOutput> = std::thread::scope(|scope| {
        let start = |_| scope.spawn(|| local(1, "40M", &[], &[&probe, "touch"]));
        let jobs: Vec<_> = (0..6).map(start).collect();
        jobs.into_iter().map(|job| job.join().expect("it returns")).collect()
    });
    for outcome in outcomes {
        assert_eq!(outcome.ok().lines("touched 41943040 pages ").len(), 1);
    }
}

/// A process may not have transparent huge pages: `auto` uses small pages, and a request for
/// transparent ones is refused.
#[test]
#[allow(unsafe_code, reason = "a closure runs between fork and exec")]
fn auto_uses_small_pages_without_transparent_huge_pages() {
    let Some(_pool) = HugePagePool::of(0) else { return };
    let without = |pages: &str| {
        let mut command = Command::new(hostbuf());
        command.args(["run", "--launcher", "local", "-n", "1", "--size", "6M", "--pages", pages, "--"]);
        // SAFETY: between fork and exec one system call.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        CommandOutput::of(command.args([&probe(), "touch"]))
    };
    let outcome = without("auto").ok();
    assert_eq!(outcome.lines("touched 6291456 pages 4k huge 0 wrong None").len(), 1, "{outcome:?}");
    let outcome = without("thp");
    assert!(outcome.status != 0 && outcome.stderr.contains("pages thp is not supported here"), "{outcome:?}");
    assert!(outcome.stderr.contains("--pages auto"), "{outcome:?}");
}

#[test]
fn transparent_huge_pages_are_used_on_request() {
    let outcome = local(2, "64M", &["--pages", "thp"], &[&probe(), "touch"]);
    if outcome.status == 0 {
        assert_eq!(
            outcome.lines("touched 67108864 pages thp huge 67108864 wrong None").len(),
            2,
            "{outcome:?}"
        );
    } else {
        assert!(outcome.stderr.contains("pages thp is not supported here"), "{outcome:?}");
        skip("transparent huge pages on demand: this kernel does not collapse shared memory");
    }
}

#[test]
fn a_limited_address_space_is_detected_before_any_page_is_touched() {
    let limited = |kilobytes: u64, more: &str, size: &str| {
        let (hostbuf, probe) = (hostbuf().display().to_string(), probe());
        let line = format!("{hostbuf} run --launcher local -n 2 --size {size} {more} -- {probe} touch");
        CommandOutput::of(Command::new("sh").args(["-c", &format!("ulimit -v {kilobytes}; exec {line}")]))
    };
    for more in ["--pages 4k", "--lazy"] {
        let outcome = limited(600_000, more, "1G");
        let available = refusal(&outcome);
        assert!(available < 600_000 * 1024, "{available}");
        assert!(outcome.stderr.contains("ulimit -v"), "{outcome:?}");
    }
    limited(600_000, "", "100M").ok();
}

#[test]
fn a_lazy_buffer_takes_no_page_before_the_first_touch() {
    let probe = probe();
    for (lazy, taken) in [(",lazy", 0), ("", 64 << 20)] {
        let size = format!("size=64M{lazy}");
        let job = RunningJob::start("lazy", &size, &["-n", "1"], &[&probe, "stay", "DIR"], |_, _| {});
        eventually("the rank runs", ARRIVAL, || job.dir.has("stay.0"));
        let agent = job.agent().expect("it serves");
        let held = fs::read_dir(format!("/proc/{agent}/fd")).expect("our own process").flatten();
        let name = format!(":{} (deleted)", job.mark);
        let memory: Vec<u64> = held
            .filter(|f| fs::read_link(f.path()).is_ok_and(|l| l.to_string_lossy().ends_with(&name)))
            .map(|f| fs::metadata(f.path()).expect("it is open").blocks() * 512)
            .collect();
        assert_eq!(memory, [taken], "{size}");
    }
    // A lazy buffer may be larger than the available memory.
    let outcome = local(1, "1T", &["--lazy"], &["true"]);
    assert_eq!(outcome.status, 0, "{outcome:?}");
}

#[test]
fn ranks_share_2_tib_of_lazy_addresses() {
    let far = build("cc", "far_pages.c", &[]).expect("a C compiler built this test's crate");
    let outcome = local(8, "2T", &["--lazy", "--pages", "4k"], &[&far, "32"]).ok();
    let checked = outcome.lines("checked ");
    assert!(checked.len() == 1 && checked[0].starts_with("8 at 0x"), "{outcome:?}");
    match &outcome.lines("taken ")[..] {
        // The written pages, and the page with the counters.
        [bytes] => assert_eq!(bytes.parse(), Ok((8 * 32 + 1) * 4096), "{outcome:?}"),
        _ => skip("the memory behind 2 TiB of lazy addresses: only root sees what a file takes"),
    }
}

/// The limit on the size of files also applies to memory files, first to that of the control page.
#[test]
fn the_error_for_a_file_size_limit_names_the_remedy() {
    for kibibytes in ["0", "64"] {
        let script = format!(
            "ulimit -f {kibibytes}; exec {} run --launcher local --size 4M -- true",
            hostbuf().display()
        );
        let outcome = CommandOutput::of(Command::new("bash").args(["-c", &script]));
        let lines: Vec<&str> = outcome.stderr.lines().collect();
        assert!(matches!(lines[..], [line] if line.contains("(raise `ulimit -f`)")), "{outcome:?}");
        assert_eq!(outcome.status, 85);
    }
}
