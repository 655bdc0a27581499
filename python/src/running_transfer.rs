//! A transfer that goes on until it has ended, whether Python has a handle of it or not.

use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_staging::{Transfer, TransferError};

use crate::transfer_array::KeptArray;

/// The first error of the transfers of a file whose results nobody has asked for.
#[derive(Default)]
pub struct UnaskedError(Mutex<Option<TransferError>>);

impl UnaskedError {
    fn add(&self, error: TransferError) {
        self.0.lock().ignore_poison().get_or_insert(error);
    }

    pub fn take(&self) -> Option<TransferError> {
        self.0.lock().ignore_poison().take()
    }
}

/// A transfer that goes on until it has ended. The waker with which it is polled once keeps it.
pub struct RunningTransfer {
    /// Set as soon as the transfer has the waker.
    transfer: OnceLock<Transfer>,
    pub process: ForkGuard,
    pub kept: Arc<KeptArray>,
    failure: Arc<UnaskedError>,
    progress: Mutex<TransferProgress>,
    ended: Condvar,
}

#[derive(Default)]
struct TransferProgress {
    has_ended: bool,
    /// Python has no handle any more, and nobody has asked for the result.
    is_abandoned: bool,
    /// Somebody has asked for the result, or has cancelled the transfer.
    is_known: bool,
    /// Those of the loops whose tasks wait.
    wakers: Vec<Waker>,
}

impl RunningTransfer {
    /// Lets a transfer go on until it has ended.
    pub fn new(
        mut transfer: Transfer,
        kept: Arc<KeptArray>,
        failure: Arc<UnaskedError>,
    ) -> Arc<RunningTransfer> {
        let running = Arc::new(RunningTransfer {
            transfer: OnceLock::new(),
            process: ForkGuard::current(),
            kept,
            failure,
            progress: Mutex::default(),
            ended: Condvar::new(),
        });
        let waker = Waker::from(running.clone());
        if Pin::new(&mut transfer).poll(&mut Context::from_waker(&waker)).is_ready() {
            running.progress.lock().ignore_poison().has_ended = true;
        }
        let _ = running.transfer.set(transfer);
        running
    }

    pub fn transfer(&self) -> &Transfer {
        self.transfer.get().expect("it is set before anybody has the object")
    }

    /// Returns whether this process has started the transfer.
    pub fn is_own(&self) -> bool {
        self.process.is_current()
    }

    pub fn has_ended(&self) -> bool {
        self.progress.lock().ignore_poison().has_ended
    }

    /// Waits for the end, at most for `limit`, and returns whether the transfer has ended.
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let progress = self.progress.lock().ignore_poison();
        let (progress, _) =
            self.ended.wait_timeout_while(progress, limit, |progress| !progress.has_ended).ignore_poison();
        progress.has_ended
    }

    /// Wakes `waker` at the end, or returns false if the transfer has ended.
    pub fn wake_at_end(&self, waker: Waker) -> bool {
        let mut progress = self.progress.lock().ignore_poison();
        if !progress.has_ended {
            progress.wakers.push(waker);
        }
        !progress.has_ended
    }

    /// Returns the result of a transfer that has ended.
    pub fn result(&self) -> Result<u64, TransferError> {
        self.progress.lock().ignore_poison().is_known = true;
        self.transfer().wait()
    }

    /// Cancels the transfer. That is no error for the file to report.
    pub fn cancel(&self) {
        if self.is_own() {
            self.progress.lock().ignore_poison().is_known = true;
            self.transfer().cancel();
        }
    }

    /// States that Python has no handle any more. The file reports an error that nobody has asked
    /// for.
    pub fn abandon(&self) {
        let mut progress = self.progress.lock().ignore_poison();
        if progress.is_known {
            return;
        }
        progress.is_abandoned = true;
        if progress.has_ended {
            self.report();
        }
    }

    fn report(&self) {
        if let Some(Err(error)) = self.transfer.get().map(Transfer::wait) {
            self.failure.add(error);
        }
    }
}

impl Wake for RunningTransfer {
    /// Ends the transfer. A thread of the ring calls this, without the interpreter.
    fn wake(self: Arc<Self>) {
        let wakers = {
            let mut progress = self.progress.lock().ignore_poison();
            // Before others see the end: closing the file raises the error.
            if progress.is_abandoned && !progress.is_known {
                self.report();
            }
            progress.has_ended = true;
            std::mem::take(&mut progress.wakers)
        };
        self.ended.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }
}
