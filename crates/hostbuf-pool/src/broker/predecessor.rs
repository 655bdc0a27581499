//! The processes that have memory of an earlier broker.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use hostbuf_os::{Bytes, process};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::broker_tag::BrokerTag;
use super::options::BrokerOptions;
use super::service_manager;
use crate::segment::ClientIdentity;

/// A process with data files of an earlier broker, or one that may receive some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownProcess {
    pub(super) pid: i32,
    /// The inode numbers and the lengths of the data files.
    files: BTreeSet<(u64, u64)>,
    /// The number of descriptors that were sent to a client and that it has not received.
    unreceived: u64,
}

impl KnownProcess {
    /// Returns whether the process has a data file that is not in `adopted`, or may receive one.
    pub(super) fn has_others_than(&self, adopted: &BTreeSet<u64>) -> bool {
        self.unreceived > 0 || self.files.iter().any(|(inode, _)| !adopted.contains(inode))
    }

    /// Returns the number of bytes of the data files.
    pub(super) fn bytes(&self) -> u64 {
        // A process can give its own files any length, and the same name.
        self.files.iter().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// Describes the process: `process 41 (camera) 64 MiB`.
    pub(super) fn describe(&self) -> String {
        let stopped = if process::state(self.pid) == Some('T') { ", stopped" } else { "" };
        let unreceived = match self.unreceived {
            0 => String::new(),
            number => format!(" and {number} descriptors that it has not received"),
        };
        let (name, bytes) = (process::name(self.pid), Bytes(self.bytes()));
        format!("process {} ({name}{stopped}) {bytes}{unreceived}", self.pid)
    }
}

/// Returns the other processes that have data files of a broker of this user with this mark open,
/// and its clients that have not received all descriptors that were sent to them. Only root sees
/// those that have become another user since they connected.
/// Processes in PID namespaces that are not visible here are missing; they connect to this broker
/// by themselves. The service manager, which keeps descriptors for the broker, is not one of them.
///
/// # Errors
/// If `/proc` cannot be read, or descriptors or memory are lacking.
pub(super) fn processes_with_segments(tag: BrokerTag) -> io::Result<Vec<KnownProcess>> {
    let entries = fs::read_dir("/proc")?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let others = pids.filter(|&pid| Some(pid) != service_manager::process());
    others.filter_map(|pid| process_with_segments(pid, tag).transpose()).collect()
}

/// Returns a process, if it has data files of a broker of this user with this mark.
///
/// # Errors
/// If descriptors or memory are lacking.
pub(super) fn process_with_segments(pid: i32, tag: BrokerTag) -> io::Result<Option<KnownProcess>> {
    if pid == std::process::id() as i32 {
        return Ok(None);
    }
    let uid = nix::unistd::geteuid().as_raw();
    let entries = match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(entries) => entries,
        Err(error) if is_shortage(&error) => return Err(error),
        // It has ended, or is another user's: the kernel keeps its files from this process.
        Err(_) => return Ok(None),
    };
    let (mut files, mut is_client, mut sockets) = (BTreeSet::new(), false, Vec::new());
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(target) = fs::read_link(&path) else { continue };
        let Some(target) = target.to_str() else { continue };
        // Another user can give its files any name.
        let made_here = || fs::metadata(&path).ok().filter(|file| file.uid() == uid);
        if tag.marks(target) {
            files.extend(made_here().map(|file| (file.ino(), file.len())));
        } else if target.starts_with("socket:") {
            sockets.push(entry.file_name());
        } else {
            is_client |= tag.marks_client(target) && made_here().is_some();
        }
    }
    // Other processes have no such descriptors of a broker.
    sockets.retain(|_| is_client);
    let unreceived = sockets.iter().map(|socket| unreceived_descriptors(pid, socket));
    let unreceived = unreceived.sum::<io::Result<u64>>()?;
    Ok((!files.is_empty() || unreceived > 0).then_some(KnownProcess { pid, files, unreceived }))
}

/// Returns whether a process has the file that a broker with these options gives its clients: it is
/// the broker, or one of the clients.
pub(crate) fn has_client_file(pid: i32, options: &BrokerOptions) -> bool {
    let tag = BrokerTag::of(options);
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut targets = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.any(|target| target.to_str().is_some_and(|target| tag.marks_client(target)))
}

/// Returns the number of descriptors in the queue of a socket of a process, 0 before Linux 5.6 or
/// if the socket is closed by now.
///
/// # Errors
/// If descriptors or memory are lacking.
fn unreceived_descriptors(pid: i32, descriptor: &OsStr) -> io::Result<u64> {
    let text = match fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", descriptor.display())) {
        Err(error) if is_shortage(&error) => return Err(error),
        text => text.unwrap_or_default(),
    };
    let number = text.lines().find_map(|line| line.strip_prefix("scm_fds:")?.trim().parse().ok());
    Ok(number.unwrap_or(0))
}

/// Returns whether an error says nothing about a file or a process.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Returns the inode number of this process's PID namespace, 0 without `/proc`.
pub(super) fn own_pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Returns whether the process number of a client is valid here: a number of another namespace says
/// nothing.
pub(super) fn is_visible(client: ClientIdentity) -> bool {
    client.pid != 0 && client.pid_namespace != 0 && client.pid_namespace == own_pid_namespace()
}

/// Returns whether the process of a client has certainly ended.
pub(super) fn has_ended(client: ClientIdentity) -> bool {
    if !is_visible(client) {
        return false;
    }
    match process::pidfd(client.pid) {
        Ok(process) => {
            let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            let is_readable = poll(&mut fds, PollTimeout::ZERO).is_ok() && fds[0].any().unwrap_or(false);
            // Another process may have the number by now.
            is_readable || process::start_time(client.pid).is_some_and(|started| started != client.started)
        }
        Err(error) => error.raw_os_error() == Some(libc::ESRCH),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use hostbuf_os::socket;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn the_bytes_of_a_process_do_not_overflow() {
        let files = [(1, i64::MAX as u64), (2, i64::MAX as u64), (3, i64::MAX as u64)].into();
        assert_eq!(KnownProcess { pid: 1, files, unreceived: 0 }.bytes(), u64::MAX);
    }

    #[test]
    fn descriptors_on_their_way_are_counted_until_they_are_received() {
        let (near, far) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let number = far.as_raw_fd().to_string();
        let count = || unreceived_descriptors(std::process::id() as i32, OsStr::new(&number)).unwrap();
        assert_eq!(count(), 0);
        socket::send(near.as_fd(), b"packet", &[near.as_raw_fd(), near.as_raw_fd()]).unwrap();
        assert_eq!(count(), 2);
        drop(socket::receive(far.as_fd(), 64).unwrap());
        assert_eq!(count(), 0);
        assert_eq!(unreceived_descriptors(std::process::id() as i32, OsStr::new("99999")).unwrap(), 0);
    }
}
