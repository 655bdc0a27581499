//! The features of the kernel, each checked by using it.

#![allow(unsafe_code, reason = "makes system calls that the C library does not wrap")]

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::Duration;

use hostbuf_memory::Seals;
use hostbuf_memory::memfd::{self, Backing};

use super::child;
use super::kernel_text::{knob, reason};
use crate::finding::Finding;

pub fn lines() -> Vec<Finding> {
    let mut lines = vec![version(), memory_file(), process_descriptor()];
    lines.extend([userfaultfd(), namespaces(), ptrace()]);
    lines
}

/// Returns the major and minor number at the head of a release such as `6.1.0-13-amd64`.
fn release(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

const WANTED: [((u32, u32), &str); 4] = [
    ((4, 17), "MAP_FIXED_NOREPLACE, to reserve an address safely"),
    ((5, 3), "pidfd, to notice the end of a process at once"),
    ((5, 14), "MADV_POPULATE_WRITE, to allocate pages quickly"),
    ((6, 1), "MADV_COLLAPSE, to use transparent huge pages for a memory file"),
];

fn version() -> Finding {
    const NAME: &str = "version";
    let Some(text) = nix::sys::utsname::uname().ok().map(|u| u.release().to_string_lossy().into_owned())
    else {
        return Finding::note(NAME, "the kernel does not report its version");
    };
    let Some(found) = release(&text) else {
        return Finding::note(NAME, format!("Linux {text}: a version of unknown form"))
            .value("release", text);
    };
    let missing: Vec<String> = WANTED
        .iter()
        .filter(|(since, _)| found < *since)
        .map(|((major, minor), what)| format!("{what} (from {major}.{minor})"))
        .collect();
    let line = if missing.is_empty() {
        Finding::ok(NAME, format!("Linux {text} has all features that hostbuf uses"))
    } else {
        let line = Finding::note(NAME, format!("Linux {text} lacks {}", missing.join("; ")));
        line.mend("no action is needed: hostbuf has slower replacements")
    };
    line.value("release", text)
}

/// Checks that a memory file can be sealed against writing and against changes of its length.
fn memory_file() -> Finding {
    const NAME: &str = "memfd";
    let seal_it = || {
        let fd = memfd::create("hostbuf-doctor", 4096, Backing::Shmem)?;
        memfd::seal(fd.as_fd(), Seals::FUTURE_WRITE)?;
        memfd::seal(fd.as_fd(), Seals::WRITE)?;
        let wrote = nix::unistd::write(&fd, b"x");
        io::Result::Ok(wrote == Err(nix::Error::EPERM))
    };
    let line = match seal_it() {
        Ok(true) => Finding::ok(NAME, "memory files can be created, and a sealed one refuses writes"),
        Ok(false) => {
            Finding::lacks(NAME, "a sealed memory file accepted a write: this kernel does not enforce seals")
        }
        Err(e) => {
            let line = Finding::lacks(NAME, format!("cannot create a sealed memory file: {}", reason(&e)));
            match knob("/proc/sys/vm/memfd_noexec").as_deref() {
                _ if e.raw_os_error() == Some(libc::EFBIG) => line.mend("ulimit -f unlimited"),
                Some("2") => line.mend("root: sysctl vm.memfd_noexec=1"),
                _ => line.mend("allow memfd_create and fcntl in this container's seccomp profile"),
            }
        }
    };
    line.needed()
}

fn process_descriptor() -> Finding {
    const NAME: &str = "pidfd";
    match hostbuf_os::process::pidfd(i32::try_from(std::process::id()).unwrap_or(1)) {
        Ok(_) => Finding::ok(NAME, "the end of a process is noticed at once, even if its PID is reused"),
        Err(e) => Finding::note(NAME, format!("pidfd_open: {}", reason(&e)))
            .mend("Linux 5.3, or allow pidfd_open in this container's seccomp profile"),
    }
}

const USER_MODE_ONLY: libc::c_int = 1;

/// Returns whether the kernel opens a userfaultfd with `flags`.
fn fault_descriptor(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: userfaultfd(2) takes flags and returns a new descriptor; it accesses no memory.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and no other code uses it.
    drop(unsafe { OwnedFd::from_raw_fd(i32::try_from(fd).map_err(io::Error::other)?) });
    Ok(())
}

fn userfaultfd() -> Finding {
    const NAME: &str = "userfaultfd";
    let (whole, user) = (fault_descriptor(0), fault_descriptor(USER_MODE_ONLY));
    let knob = knob("/proc/sys/vm/unprivileged_userfaultfd");
    let line = match (&whole, &user) {
        (Ok(()), _) => Finding::ok(NAME, "available to this user, for kernel faults too"),
        (_, Ok(())) => Finding::ok(NAME, "available to this user for user-mode faults, which is enough"),
        (_, Err(e)) => {
            let says =
                format!("refused ({}): memory that hostbuf has not allocated cannot be watched", reason(e));
            let line = Finding::note(NAME, says);
            match e.raw_os_error() {
                Some(libc::ENOSYS) => {
                    line.mend("a kernel with CONFIG_USERFAULTFD=y (5.11 or later for users other than root)")
                }
                _ => line
                    .mend("allow userfaultfd in this container's seccomp profile, or")
                    .mend("root: sysctl vm.unprivileged_userfaultfd=1"),
            }
        }
    };
    line.value("all_faults", whole.is_ok())
        .value("user_mode_only", user.is_ok())
        .value("unprivileged_userfaultfd", knob)
}

/// Checks user namespaces, which only the simulated hosts of the demo and of the tests need.
fn namespaces() -> Finding {
    const NAME: &str = "user namespaces";
    let made = child::ask(Duration::from_secs(5), || {
        match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER | nix::sched::CloneFlags::CLONE_NEWNS)
        {
            Ok(()) => "yes".into(),
            Err(e) => e.desc().to_owned(),
        }
    });
    match made.as_deref().unwrap_or_else(|why| why) {
        "yes" => Finding::ok(NAME, "allowed: several hosts can be simulated on this one"),
        why => {
            let says = format!("refused ({why}): hosts cannot be simulated here, which jobs do not need");
            let mut line = Finding::note(NAME, says);
            if knob("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") {
                line = line.mend("root: sysctl kernel.unprivileged_userns_clone=1");
            }
            if knob("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
                line = line.mend("root: sysctl kernel.apparmor_restrict_unprivileged_userns=0");
            }
            if knob("/proc/sys/user/max_user_namespaces").as_deref() == Some("0") {
                line = line.mend("root: sysctl user.max_user_namespaces=10000");
            }
            line
        }
    }
}

/// Checks the restrictions on `hostbuf stat`. Yama restricts reading the memory of a process, but
/// not `/proc/PID/fd` and smaps.
fn ptrace() -> Finding {
    const NAME: &str = "ptrace_scope";
    match knob("/proc/sys/kernel/yama/ptrace_scope") {
        None => Finding::ok(NAME, "no Yama: processes of one user may read each other's memory"),
        Some(scope) if scope == "0" => {
            Finding::ok(NAME, "0: processes of one user may read each other's memory").value("scope", scope)
        }
        Some(scope) => Finding::note(
            NAME,
            format!(
                "{scope}: hostbuf stat works, but cannot read the control page of a job whose agent has ended. A \
                 single-copy transport of MPI (CMA) may be off too"
            ),
        )
        .value("scope", scope)
        .mend("only if that matters, root: sysctl kernel.yama.ptrace_scope=0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Mark;

    #[test]
    fn kernel_releases_of_several_distributions_are_parsed() {
        for (text, expected) in [
            ("6.1.0-13-amd64", Some((6, 1))),
            ("5.15.0-1053-azure", Some((5, 15))),
            ("4.18.0-513.el8.x86_64", Some((4, 18))),
            ("6.8-rc1", Some((6, 8))),
            ("next", None),
        ] {
            assert_eq!(release(text), expected, "{text}");
        }
        assert!((5, 14) < (6, 1) && (4, 17) < (5, 3));
    }

    #[test]
    fn this_host_can_make_memory_files() {
        assert_eq!(memory_file().mark, Mark::Ok);
    }
}
