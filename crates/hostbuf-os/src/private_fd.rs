//! Descriptors that forked children do not get.

#![allow(unsafe_code, reason = "replaces descriptors in a forked child by foreign functions")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard};

use crate::forking::{self, ForkingGuard, HandlerRegistration};
use crate::poison::IgnorePoison;

/// The private descriptors of this process.
static PRIVATE: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

thread_local! {
    /// The lock of `PRIVATE` while this thread forks.
    static WHILE_FORKING: ForkingGuard<Vec<RawFd>> = const { ForkingGuard::new(None) };
}

/// A descriptor that a forked child does not get: there its number names `/dev/null`, so it keeps
/// neither memory nor a connection of the parent alive. A program that is executed has neither, as
/// with every descriptor that is closed on exec.
///
/// A child that was created without the C library's `fork` inherits the descriptor.
#[derive(Debug)]
pub struct PrivateFd(ManuallyDrop<OwnedFd>);

/// A lock that no fork of this process passes, for receiving descriptors: none is inherited before
/// it is private.
pub struct ForkLock(MutexGuard<'static, Vec<RawFd>>);

impl ForkLock {
    /// Waits until no other thread forks, and keeps all threads from forking.
    #[must_use]
    pub fn take() -> ForkLock {
        static REGISTRATION: HandlerRegistration = HandlerRegistration::new();
        REGISTRATION.once(|| forking::around_with_child(before, after_in_parent, after_in_child));
        ForkLock(PRIVATE.lock().ignore_poison())
    }

    /// Makes a descriptor private.
    pub fn keep(&mut self, fd: OwnedFd) -> PrivateFd {
        self.0.push(fd.as_raw_fd());
        PrivateFd(ManuallyDrop::new(fd))
    }
}

impl PrivateFd {
    /// Copies the descriptor.
    ///
    /// # Errors
    /// As `dup(2)`.
    pub fn try_clone(&self) -> io::Result<PrivateFd> {
        let mut unforked = ForkLock::take();
        self.as_fd().try_clone_to_owned().map(|copy| unforked.keep(copy))
    }
}

impl From<OwnedFd> for PrivateFd {
    fn from(fd: OwnedFd) -> PrivateFd {
        ForkLock::take().keep(fd)
    }
}

impl AsFd for PrivateFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PrivateFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for PrivateFd {
    fn drop(&mut self) {
        let mut private = PRIVATE.lock().ignore_poison();
        // In a child the list is empty, and the number names `/dev/null`.
        if let Some(at) = private.iter().position(|fd| *fd == self.0.as_raw_fd()) {
            private.swap_remove(at);
        }
        // SAFETY: dropped once. Under the lock, so that no child replaces a number that another
        // file has by then.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

extern "C" fn before() {
    forking::lock_once(&PRIVATE, &WHILE_FORKING);
}

extern "C" fn after_in_parent() {
    let _ = WHILE_FORKING.try_with(ForkingGuard::take);
}

/// Opens a descriptor that refers to nothing of value. A forked child may call it.
fn open_null() -> RawFd {
    // SAFETY: foreign functions without memory of this process.
    unsafe {
        match libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) {
            // Without /dev.
            -1 => libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK),
            null => null,
        }
    }
}

extern "C" fn after_in_child() {
    let Ok(Some(mut private)) = WHILE_FORKING.try_with(ForkingGuard::take) else { return };
    // SAFETY: a forked child may make these calls, which allocate nothing. The numbers stay open,
    // so a later drop closes no other file.
    unsafe {
        let mut null = open_null();
        if let (true, Some(&first)) = (null < 0, private.first()) {
            // The process is at its limit of descriptors, so this number is free afterwards.
            libc::close(first);
            null = open_null();
        }
        if null >= 0 {
            for &fd in private.iter().filter(|&&fd| fd != null) {
                libc::dup3(null, fd, libc::O_CLOEXEC);
            }
            if !private.contains(&null) {
                libc::close(null);
            }
        }
    }
    private.clear();
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::FromRawFd;

    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::{ForkResult, fork};

    use super::*;

    #[test]
    fn a_child_has_dev_null_in_place_of_the_descriptor() {
        let (read, write) = std::io::pipe().expect("a pipe");
        let private = PrivateFd::from(OwnedFd::from(write));
        let number = private.as_raw_fd();
        // SAFETY: the child makes a few system calls, and ends.
        let ForkResult::Parent { child } = (unsafe { fork() }).expect("it forks") else {
            let is_null = |fd: BorrowedFd<'_>| {
                nix::sys::stat::fstat(fd).is_ok_and(|stat| stat.st_rdev == nix::sys::stat::makedev(1, 3))
            };
            let was_null = is_null(private.as_fd());
            drop(private);
            // SAFETY: only asks whether the number is open.
            let is_closed = unsafe { libc::fcntl(number, libc::F_GETFD) } == -1;
            // SAFETY: runs no code of the parent.
            unsafe { libc::_exit(if was_null && is_closed { 7 } else { 8 }) }
        };
        // The parent's end is the only one: the pipe ends while the child may still run.
        drop(private);
        let mut bytes = Vec::new();
        let mut read = read;
        read.read_to_end(&mut bytes).expect("it ends");
        assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 7))));
    }

    #[test]
    fn a_child_without_free_descriptors_inherits_none() {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};

        let (one, two) = std::io::pipe().expect("a pipe");
        let private = [PrivateFd::from(OwnedFd::from(one)), PrivateFd::from(OwnedFd::from(two))];
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("it has a limit");
        // Up to the limit, which the child inherits.
        let mut all = Vec::new();
        setrlimit(Resource::RLIMIT_NOFILE, 64, hard).expect("a lower limit");
        while let Ok(file) = std::fs::File::open("/dev/zero") {
            all.push(file);
        }
        // SAFETY: the child makes a few system calls, and ends.
        let ForkResult::Parent { child } = (unsafe { fork() }).expect("it forks") else {
            let is_null = |fd: &PrivateFd| {
                nix::sys::stat::fstat(fd.as_fd())
                    .is_ok_and(|stat| stat.st_rdev == nix::sys::stat::makedev(1, 3))
            };
            // SAFETY: runs no code of the parent.
            unsafe { libc::_exit(if private.iter().all(is_null) { 7 } else { 8 }) }
        };
        drop(all);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("it was the limit before");
        assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 7))));
    }

    #[test]
    fn a_dropped_descriptor_is_closed_and_forgotten() {
        let (_read, write) = std::io::pipe().expect("a pipe");
        let number = write.as_raw_fd();
        // SAFETY: the descriptor was just made, and is given up here.
        let owned = unsafe { OwnedFd::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(write)) };
        let private = ForkLock::take().keep(owned);
        assert!(PRIVATE.lock().ignore_poison().contains(&number));
        drop(private);
        assert!(!PRIVATE.lock().ignore_poison().contains(&number));
    }
}
