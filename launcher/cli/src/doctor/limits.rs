//! The limits on locked memory, open files and file sizes for this user.

#![allow(unsafe_code, reason = "ignores a signal")]

use hostbuf::Bytes;
use hostbuf_os::memlock;
use nix::sys::resource::{Resource, getrlimit};

use crate::engines;
use crate::finding::Finding;

pub fn lines(size: Option<u64>) -> Vec<Finding> {
    vec![memlock(), file_size(size), descriptors(), core()]
}

fn amount(limit: u64) -> String {
    if limit == libc::RLIM_INFINITY { "unlimited".into() } else { Bytes(limit).to_string() }
}

fn memlock() -> Finding {
    const NAME: &str = "memlock (ulimit -l)";
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_MEMLOCK) else {
        return Finding::note(NAME, "the kernel does not report the limit");
    };
    let figures = |line: Finding| {
        let number = |limit| (limit != libc::RLIM_INFINITY).then_some(limit);
        line.value("soft_bytes", number(soft)).value("hard_bytes", number(hard))
    };
    if soft == libc::RLIM_INFINITY {
        return figures(Finding::ok(NAME, "unlimited"));
    }
    if memlock::is_exempt() {
        let says = format!("{}, which does not bind this process (it has CAP_IPC_LOCK)", amount(soft));
        return figures(Finding::ok(NAME, says));
    }
    let use_of = "registrations with a network card and buffers with MAP_LOCKED count against it; other buffers, and registrations with GPUs, do not";
    let says = format!("{} for each user: {use_of}", amount(soft));
    let line =
        if super::devices::lock_memory() { Finding::lacks(NAME, says) } else { Finding::note(NAME, says) };
    let line = if hard == libc::RLIM_INFINITY {
        line.mend("ulimit -l unlimited")
    } else {
        let line = line.mend("/etc/security/limits.conf: * - memlock unlimited (and log in again)");
        engines::limit_remedies(Resource::RLIMIT_MEMLOCK)
            .fold(line, Finding::mend)
            .mend("containers: --ulimit memlock=-1")
    };
    figures(line)
}

/// Ignores SIGXFSZ, so that a file beyond the limit causes an error that can be reported.
pub fn ignore_file_size_signal() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no handler of ours is installed; the signal is only ignored.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}

/// Checks the limit on file sizes, which includes memory files. The kernel ends a process that
/// exceeds it (SIGXFSZ).
fn file_size(size: Option<u64>) -> Finding {
    const NAME: &str = "file size (ulimit -f)";
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_FSIZE) else {
        return Finding::note(NAME, "the kernel does not report the limit");
    };
    if soft == libc::RLIM_INFINITY {
        return Finding::ok(NAME, "unlimited");
    }
    let says = format!("{}: no buffer can be larger, since a memory file is a file", amount(soft));
    let fits = size.is_some_and(|s| s <= soft);
    let line = if fits { Finding::note(NAME, says) } else { Finding::lacks(NAME, says) };
    let line = if size.is_some() && !fits { line.needed() } else { line };
    let mend = if hard == libc::RLIM_INFINITY {
        "ulimit -f unlimited"
    } else {
        "/etc/security/limits.conf: * - fsize unlimited"
    };
    line.value("soft_bytes", soft).mend(mend)
}

/// An estimate of the descriptors that an agent uses for itself, with a margin.
const OF_THE_AGENT: u64 = 64;

/// Checks the limit on file descriptors: an agent has a connection and a pidfd for each rank of its
/// host, and raises its soft limit itself.
fn descriptors() -> Finding {
    const NAME: &str = "descriptors (ulimit -n)";
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Finding::note(NAME, "the kernel does not report the limit");
    };
    let ranks = hard.saturating_sub(OF_THE_AGENT) / 2;
    let says = format!(
        "{soft}, which an agent raises to {hard} (ulimit -Hn): it needs two for each rank of its host and about \
         {OF_THE_AGENT} for itself, so {hard} are enough for {ranks} ranks"
    );
    let line = if hard >= 1024 {
        Finding::ok(NAME, says)
    } else {
        Finding::lacks(NAME, says).mend("/etc/security/limits.conf: * - nofile 65536 (and log in again)")
    };
    line.value("soft", soft).value("hard", hard)
}

fn core() -> Finding {
    const NAME: &str = "core files (ulimit -c)";
    let Ok((soft, _)) = getrlimit(Resource::RLIMIT_CORE) else {
        return Finding::note(NAME, "the kernel does not report the limit");
    };
    let number = (soft != libc::RLIM_INFINITY).then_some(soft);
    let says = match soft {
        0 => "none are written".into(),
        limit => format!("{}; they contain no buffers, except those with the option dump", amount(limit)),
    };
    Finding::ok(NAME, says).value("soft_bytes", number)
}
