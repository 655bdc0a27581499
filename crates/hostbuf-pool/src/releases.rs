//! Holds that end after an operation of a device.

use std::any::Any;
use std::io;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;
use nix::sys::signal::SigSet;

/// The longest time between the completion of an operation and the end of its hold.
const PAUSE: Duration = Duration::from_millis(1);

/// The completion of an operation of a device, such as a CUDA event that was recorded behind a
/// copy.
pub trait Completion: Send + 'static {
    /// Returns whether the operation has completed. It does not wait.
    ///
    /// # Errors
    /// The device's error. It counts as completion: a device that has failed executes nothing
    /// more.
    fn is_complete(&self) -> io::Result<bool>;

    /// Waits until the operation has completed.
    ///
    /// # Errors
    /// The device's error.
    fn wait(&self) -> io::Result<()>;
}

/// An object that is dropped when an operation has completed.
struct PendingRelease {
    completion: Box<dyn Completion>,
    held: Box<dyn Any + Send>,
}

/// The releases that the thread has not yet taken.
struct ReleaseQueue {
    added: Vec<PendingRelease>,
    /// The process whose thread takes them.
    thread_of: Option<ForkGuard>,
}

static QUEUE: Mutex<ReleaseQueue> = Mutex::new(ReleaseQueue { added: Vec::new(), thread_of: None });
static ADDED: Condvar = Condvar::new();

/// Drops `held` when `completion` is complete.
pub(crate) fn add(completion: Box<dyn Completion>, held: Box<dyn Any + Send>) {
    hold_around_fork!(QUEUE: ReleaseQueue);
    let mut queue = QUEUE.lock().ignore_poison();
    if !queue.thread_of.is_some_and(ForkGuard::is_current) {
        // Releases that a parent has left are the parent's: its device does not know this process.
        mem::forget(mem::take(&mut queue.added));
        let started = hostbuf_os::thread::spawn(c"hostbuf-release", || {
            // The program's handlers run in the program's threads.
            let _ = SigSet::all().thread_block();
            run();
        });
        if let Err(error) = started {
            drop(queue);
            tracing::warn!(%error, "cannot start the thread that releases memory: waiting instead");
            report(completion.wait());
            return;
        }
        queue.thread_of = Some(ForkGuard::current());
    }
    queue.added.push(PendingRelease { completion, held });
    drop(queue);
    ADDED.notify_one();
}

/// Takes releases and ends them, in the order in which their operations complete.
fn run() {
    let mut pending: Vec<PendingRelease> = Vec::new();
    loop {
        let mut queue = QUEUE.lock().ignore_poison();
        if queue.added.is_empty() {
            queue = match pending.is_empty() {
                true => ADDED.wait(queue).ignore_poison(),
                false => ADDED.wait_timeout(queue, PAUSE).ignore_poison().0,
            };
        }
        pending.append(&mut queue.added);
        drop(queue);
        pending.retain(|release| !release.is_complete());
    }
}

impl PendingRelease {
    /// Returns whether the operation has completed. One that cannot be asked counts as complete.
    fn is_complete(&self) -> bool {
        // A completion is the code of a user: a panic must not end the thread.
        let asked = panic::catch_unwind(AssertUnwindSafe(|| self.completion.is_complete()));
        asked.unwrap_or_else(|_| Err(io::Error::other("asking for it has panicked"))).unwrap_or_else(
            |error| {
                report(Err(error));
                true
            },
        )
    }
}

fn report(result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!(%error, "an operation of a device on released memory has failed");
    }
}

impl Drop for PendingRelease {
    fn drop(&mut self) {
        // The object of a user may panic, which must not end the thread.
        let held = mem::replace(&mut self.held, Box::new(()));
        let _ = panic::catch_unwind(AssertUnwindSafe(|| drop(held)));
    }
}
