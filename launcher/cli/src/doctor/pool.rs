//! The requirements of pools, and the broker of this user.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use hostbuf::Bytes;
use hostbuf_memory::memfd::{self, Backing};
use hostbuf_memory::{Seals, space};
use hostbuf_os::mapping_query::mapping_at_or_after;
use hostbuf_os::{memory, process, socket};
use hostbuf_pool::{BrokerOptions, PoolMode, PoolOptions, ProducerOptions};
use nix::sys::resource::{Resource, getrlimit};

use super::kernel_text::reason;
use crate::finding::Finding;

pub fn lines() -> Vec<Finding> {
    vec![
        abstract_socket(),
        sealed_memory(),
        client_ends(),
        mapping_query(),
        descriptors(),
        memory_for_limit(),
        broker(),
    ]
}

/// The time for which a broker may leave a connection waiting.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Checks that a broker can listen on an abstract name, and that a client gets there.
fn abstract_socket() -> Finding {
    const NAME: &str = "abstract socket";
    let name = format!("hostbuf-doctor-{}", std::process::id());
    let connects = || -> io::Result<()> {
        let listener = socket::listen_on(&name)?;
        let _connection = socket::connect(&name, Some(CONNECT_LIMIT))?;
        socket::accept(listener.as_fd()).map(drop)
    };
    match connects() {
        Ok(()) => Finding::ok(NAME, "clients in this network namespace reach a broker by its name"),
        Err(error) => Finding::lacks(NAME, format!("refused: {}", reason(&error)))
            .mend("hostbuf broker --path FILE, and HOSTBUF_POOL=/FILE for clients, or")
            .mend("allow unix sockets with abstract names in this container's profile"),
    }
}

/// Checks that the kernel lets nobody but the producer write to a segment.
fn sealed_memory() -> Finding {
    const NAME: &str = "sealed segments";
    let refuses = || -> io::Result<bool> {
        let file = memfd::create("hostbuf-doctor", 4096, Backing::Shmem)?;
        memfd::seal(file.as_fd(), Seals::FUTURE_WRITE | Seals::SEAL)?;
        Ok(nix::unistd::write(&file, b"x") == Err(nix::Error::EPERM))
    };
    match refuses() {
        Ok(true) => Finding::ok(NAME, "only the producer of a segment can write to it (F_SEAL_FUTURE_WRITE)"),
        Ok(false) => Finding::lacks(NAME, "a sealed memory file accepted a write")
            .mend("a kernel that enforces F_SEAL_FUTURE_WRITE"),
        Err(error) => Finding::note(
            NAME,
            format!(
                "F_SEAL_FUTURE_WRITE: {}: other processes of this user could write to a segment",
                reason(&error)
            ),
        )
        .mend("Linux 5.1 or later"),
    }
}

/// Checks how a broker notices the end of a client.
fn client_ends() -> Finding {
    const NAME: &str = "ends of clients";
    match process::pidfd(std::process::id() as i32) {
        Ok(_) => Finding::ok(NAME, "a broker notices the end of a client's process at once (pidfd)"),
        Err(error) => {
            let says = format!(
                "pidfd_open: {}: a broker notices the end of a client by its connection, and waits one second more",
                reason(&error)
            );
            Finding::note(NAME, says)
                .mend("Linux 5.3, or allow pidfd_open in this container's seccomp profile")
        }
    }
}

/// Checks how memory of other libraries is found that is adopted.
fn mapping_query() -> Finding {
    const NAME: &str = "PROCMAP_QUERY";
    let here = NAME.as_ptr() as usize;
    let asked = File::open("/proc/self/maps").and_then(|maps| {
        mapping_at_or_after(&maps, here).map_err(|errno| io::Error::from_raw_os_error(errno.0))
    });
    match asked {
        Ok(_) => Finding::ok(NAME, "the kernel finds the file behind an address quickly"),
        Err(error) => {
            let says = format!(
                "{}: the file behind an address is found by reading /proc/self/maps, which takes longer",
                reason(&error)
            );
            Finding::note(NAME, says).mend("no action is needed: Linux 6.11 has the faster way")
        }
    }
}

/// The number of readers for which a segment has room by default.
const READERS: u64 = ProducerOptions::READERS as u64;
/// An estimate of the descriptors that a broker uses for itself and for a few clients.
const OF_THE_BROKER: u64 = 64;

/// Checks the limit on descriptors: a broker has three for each segment, one for each reader that
/// the segment has room for, and two for each client. It raises its soft limit itself.
fn descriptors() -> Finding {
    const NAME: &str = "descriptors of a broker";
    let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Finding::note(NAME, "the kernel does not report the limit");
    };
    let segments = hard.saturating_sub(OF_THE_BROKER) / (3 + READERS);
    let says = format!(
        "{hard} (ulimit -Hn), to which a broker raises its limit: enough for {segments} segments with {READERS} readers \
         each"
    );
    let line = if segments >= 16 {
        Finding::ok(NAME, says)
    } else {
        Finding::lacks(NAME, says).mend("/etc/security/limits.conf: * - nofile 65536 (and log in again)")
    };
    line.value("hard", hard).value("segments", segments)
}

/// Compares the available memory with the default limit of a pool.
fn memory_for_limit() -> Finding {
    const NAME: &str = "memory of a pool";
    let limit = memory::tightest_limit();
    let available = space::available(&limit);
    let wanted = BrokerOptions::LIMIT;
    let line = if available >= wanted {
        let says = format!("{} are available for the default limit of {}", Bytes(available), Bytes(wanted));
        Finding::ok(NAME, says)
    } else {
        let says = format!(
            "{} are available, less than the default limit of {}: requests beyond it fail, limited by {}",
            Bytes(available),
            Bytes(wanted),
            limit.name
        );
        Finding::note(NAME, says)
            .mend(format!("hostbuf broker --limit {}M, or", available >> 20))
            .mend(&*limit.remedy)
    };
    line.value("available_bytes", available).value("default_limit_bytes", wanted)
}

/// Looks for the broker of this user.
fn broker() -> Finding {
    const NAME: &str = "broker";
    let options = match PoolOptions::from_environment("hostbuf doctor") {
        Ok(options) => options,
        Err(error) => return Finding::lacks(NAME, error.to_string()).mend("unset HOSTBUF_POOL"),
    };
    if options.mode == PoolMode::Private {
        return Finding::ok(NAME, "HOSTBUF_POOL=private: each process has a pool of its own");
    }
    let (at, connection) = match &options.path {
        Some(path) => (path.display().to_string(), socket::connect_at(path, Some(CONNECT_LIMIT))),
        None => (format!("@{}", options.socket), socket::connect(&options.socket, Some(CONNECT_LIMIT))),
    };
    found(NAME, &at, &options, connection.and_then(|connection: OwnedFd| socket::peer(connection.as_fd())))
}

fn found(
    name: &str,
    at: &str,
    options: &PoolOptions,
    listener: io::Result<socket::PeerCredentials>,
) -> Finding {
    let own = nix::unistd::geteuid().as_raw();
    match listener {
        Ok(peer) if peer.uid != own => {
            let says = format!("{at} belongs to user {}, and a pool to one user", peer.uid);
            Finding::lacks(name, says).mend("hostbuf broker --name NAME, and HOSTBUF_POOL=@NAME for clients")
        }
        Ok(peer) if matches!(process::state(peer.pid), Some('T' | 't')) => {
            let (pid, command) = (peer.pid, process::name(peer.pid));
            let (by, mend) = match process::state(peer.pid) {
                Some('t') => {
                    (" by a debugger", "continue it in the debugger, or detach the debugger".to_owned())
                }
                _ => ("", format!("kill -CONT {pid}, or kill -KILL {pid}")),
            };
            let says =
                format!("process {pid} ({command}) listens on {at}, but is stopped{by}: its clients wait");
            Finding::lacks(name, says).mend(mend)
        }
        Ok(peer) => {
            let who = match peer.pid {
                0 => "a process in another PID namespace".to_owned(),
                pid => format!("process {pid} ({})", process::name(pid)),
            };
            Finding::ok(name, format!("{who} listens on {at}; hostbuf stat shows its pool"))
                .value("pid", peer.pid)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            let note = |says| Finding::note(name, says).mend(options.broker_command());
            match options.mode {
                PoolMode::Required => note(format!("none listens on {at}: clients cannot connect")),
                PoolMode::Start => {
                    Finding::ok(name, format!("none listens on {at}: the first client starts one"))
                }
                _ => note(format!("none listens on {at}: each process has a pool of its own")),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            let says = format!("the process that listens on {at} accepts no connections: it may be stopped");
            Finding::lacks(name, says).mend("continue or end it: ss -xlp lists the processes that listen")
        }
        Err(error) => {
            let mend = match error.raw_os_error() {
                Some(libc::ENAMETOOLONG | libc::EINVAL) => "choose a name or a path of at most 107 bytes",
                _ => "run the clients and the broker as one user, with access to the folder of the socket",
            };
            Finding::lacks(name, format!("cannot connect to {at}: {}", reason(&error))).mend(mend)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Mark;

    #[test]
    fn this_host_can_have_a_pool() {
        for line in [abstract_socket(), sealed_memory(), client_ends()] {
            assert_eq!(line.mark, Mark::Ok, "{line:?}");
        }
    }

    #[test]
    fn a_broker_that_cannot_be_used_comes_with_a_remedy() {
        let refused = |mode, code| {
            let options = PoolOptions::new("test").mode(mode).socket("p");
            found("broker", "@p", &options, Err(io::Error::from_raw_os_error(code)))
        };
        let none = refused(PoolMode::Optional, libc::ECONNREFUSED);
        assert!(none.mark == Mark::Note && none.says.contains("a pool of its own"), "{none:?}");
        let selected = refused(PoolMode::Required, libc::ECONNREFUSED);
        assert!(selected.says == "none listens on @p: clients cannot connect", "{selected:?}");
        assert!(selected.mends == ["hostbuf broker --name p"], "{selected:?}");
        let forbidden = refused(PoolMode::Optional, libc::EACCES);
        assert!(forbidden.mark == Mark::Lacks && !forbidden.mends.is_empty(), "{forbidden:?}");
        let options = PoolOptions::new("test");
        let full = found("broker", "@p", &options, Err(io::ErrorKind::TimedOut.into()));
        assert!(full.mark == Mark::Lacks && full.says.contains("may be stopped"), "{full:?}");
    }
}
