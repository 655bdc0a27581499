//! The launcher's signals, read from a signalfd.

use std::os::fd::{AsFd, BorrowedFd};

use hostbuf::{Error, Result};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::ignored_signal::is_ignored;

/// The signals that are forwarded to the program's job.
const FORWARDED: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// A signal and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceivedSignal {
    pub(super) signal: Signal,
    /// True if the terminal has sent it to the whole foreground process group, and so to the ranks
    /// too.
    pub(super) by_terminal: bool,
}

impl ReceivedSignal {
    /// Returns whether the signal ends the job.
    pub(super) fn ends(self) -> bool {
        matches!(self.signal, Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP)
    }
}

/// The launcher's signals, blocked and read one by one.
pub(super) struct Signals {
    fd: SignalFd,
    before: SigSet,
    leads_session: bool,
}

impl Signals {
    /// Blocks the signals in this thread and opens a signalfd for them.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub(super) fn block() -> Result<Signals> {
        let os = |doing: &str| {
            let doing = doing.to_owned();
            move |e: nix::Error| Error::Os { doing, source: e.into() }
        };
        let mut signals = SigSet::from_iter(FORWARDED);
        signals.add(Signal::SIGCHLD);
        // Under nohup SIGHUP is ignored and must not end the job, but a signalfd returns blocked
        // signals even if ignored.
        if is_ignored(Signal::SIGHUP) {
            signals.remove(Signal::SIGHUP);
        }
        let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK).map_err(os("blocking signals"))?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let fd = SignalFd::with_flags(&signals, flags).map_err(os("opening a signal descriptor"))?;
        let own = nix::unistd::getpid();
        let leads_session = nix::unistd::getsid(None).is_ok_and(|leader| leader == own);
        Ok(Signals { fd, before, leads_session })
    }

    /// Returns the signal mask from before, which children get.
    pub(super) fn before(&self) -> SigSet {
        self.before
    }

    /// Stops this process as SIGTSTP does by default: the kernel ignores it in an orphaned process
    /// group, whose processes nobody would continue. Returns when the process runs again.
    pub(super) fn stop(&self) {
        let stop = SigSet::from(Signal::SIGTSTP);
        // Blocked, it is pending until it is unblocked.
        let _ =
            raise(Signal::SIGTSTP).and_then(|()| stop.thread_unblock()).and_then(|()| stop.thread_block());
    }

    /// Returns the next pending signal other than SIGCHLD.
    pub(super) fn next(&self) -> Option<ReceivedSignal> {
        loop {
            let info = self.fd.read_signal().ok()??;
            let Ok(signal) = Signal::try_from(info.ssi_signo as i32) else { continue };
            if signal == Signal::SIGCHLD {
                continue;
            }
            // The kernel sends the signals of a terminal's keys to the foreground process group,
            // which includes the ranks' job. It sends the hangup of a terminal to the session
            // leader alone.
            let to_leader_alone = signal == Signal::SIGHUP && self.leads_session;
            let by_terminal = info.ssi_code == libc::SI_KERNEL && !to_leader_alone;
            return Some(ReceivedSignal { signal, by_terminal });
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
