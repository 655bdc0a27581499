//! The streams of threads for short copies.

use std::cell::RefCell;
use std::mem::take;
use std::sync::Mutex;

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::forking::hold_around_fork;
use hostbuf_os::poison::IgnorePoison;

use crate::cuda_context::CudaContext;
use crate::cuda_error::CudaError;

/// A context of the driver: the primary context of a GPU from one initialisation to the next. A
/// context that was reset and made again has another number, and may have the same address.
#[derive(Clone, Copy, PartialEq)]
struct ContextInstance {
    /// The address of the driver's functions.
    driver: usize,
    device: i32,
    process: ForkGuard,
    number: u64,
}

impl ContextInstance {
    /// Returns whether `other` has replaced this context, so that its streams are gone.
    fn is_replaced_by(&self, other: &ContextInstance) -> bool {
        (self.driver, self.device) == (other.driver, other.device) && self != other
    }
}

/// A stream that ends with its context.
#[derive(Clone, Copy)]
struct KeptStream {
    context: ContextInstance,
    /// The driver's pointer, which is only ever passed back to it.
    handle: usize,
}

/// The streams of threads that have ended, for the next threads.
static FREE_STREAMS: Mutex<Vec<KeptStream>> = Mutex::new(Vec::new());

/// The streams of a thread, one for each context.
#[derive(Default)]
struct ThreadStreams(Vec<KeptStream>);

thread_local! {
    static OWN_STREAMS: RefCell<ThreadStreams> = RefCell::default();
}

/// Returns the stream of the calling thread for a context, which `create` makes unless the thread
/// has one or a thread that has ended has left one. Returns `None` if the driver cannot tell a
/// context from one that was made later, or if the thread is ending.
///
/// # Errors
/// The driver's, and [`CudaError::Forked`] in a forked child.
pub(crate) fn of_thread(
    context: &CudaContext,
    create: impl FnOnce() -> Result<usize, CudaError>,
) -> Result<Option<usize>, CudaError> {
    let number = match context.number() {
        Err(CudaError::MissingFunction { .. }) => return Ok(None),
        number => number?,
    };
    let context = ContextInstance {
        driver: context.driver().address(),
        device: context.gpu().device(),
        process: ForkGuard::current(),
        number,
    };
    hold_around_fork!(FREE_STREAMS: Vec<KeptStream>);
    let found = OWN_STREAMS.try_with(|own| {
        let own = &mut own.borrow_mut().0;
        if let Some(handle) = own.iter().find(|one| one.context == context).map(|one| one.handle) {
            return Ok(handle);
        }
        own.retain(|one| !one.context.is_replaced_by(&context));
        let handle = match take_free(&context) {
            Some(handle) => handle,
            None => create()?,
        };
        own.push(KeptStream { context, handle });
        Ok(handle)
    });
    found.ok().transpose()
}

/// Takes a stream of a thread that has ended.
fn take_free(context: &ContextInstance) -> Option<usize> {
    let mut free = FREE_STREAMS.lock().ignore_poison();
    free.retain(|one| !one.context.is_replaced_by(context));
    let index = free.iter().rposition(|one| one.context == *context)?;
    Some(free.swap_remove(index).handle)
}

impl Drop for ThreadStreams {
    /// Leaves the streams to other threads. It does not call the driver, which may have shut down.
    fn drop(&mut self) {
        let mut own = take(&mut self.0);
        own.retain(|one| one.context.process.is_current());
        if !own.is_empty() {
            FREE_STREAMS.lock().ignore_poison().append(&mut own);
        }
    }
}
