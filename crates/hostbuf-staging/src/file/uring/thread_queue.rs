//! The io_uring of each thread.

#![allow(unsafe_code, reason = "registers memory that the caller of a function keeps")]

use std::cell::RefCell;
use std::ptr::NonNull;

use super::io_queue::IoQueue;

/// The io_uring of a thread.
struct ThreadQueue {
    /// The memory of the slots that the thread fills and empties.
    slots: Option<NonNull<[u8]>>,
    queue: Option<IoQueue>,
}

thread_local! {
    static QUEUE: RefCell<ThreadQueue> = const { RefCell::new(ThreadQueue { slots: None, queue: None }) };
}

/// Runs the work of a thread that fills and empties the slots in `memory`. The io_uring of the
/// thread registers the memory when the thread first uses it. When this function returns, the
/// registration has ended, and no page is pinned any more.
///
/// # Safety
/// The memory stays mapped until this function returns.
pub(crate) unsafe fn with_slot_memory<T>(memory: NonNull<[u8]>, work: impl FnOnce() -> T) -> T {
    /// A guard that ends the registration, even if the work panics.
    struct Ending;
    impl Drop for Ending {
        fn drop(&mut self) {
            set_slots(None);
        }
    }
    set_slots(Some(memory));
    let _ending = Ending;
    work()
}

/// Ends the io_uring of the thread. The next one registers `slots`.
fn set_slots(slots: Option<NonNull<[u8]>>) {
    let ended = QUEUE.with_borrow_mut(|thread| {
        thread.slots = slots;
        thread.queue.take()
    });
    drop(ended);
}

/// Calls `operation` with the io_uring of the calling thread, which the first call makes.
///
/// # Errors
/// The reason why the thread has no io_uring; those of the operation are in its result.
pub(super) fn with_queue<T>(operation: impl FnOnce(&mut IoQueue) -> T) -> Result<T, String> {
    let called = QUEUE.try_with(|cell| {
        let thread = &mut *cell.borrow_mut();
        let usable = thread.queue.take().filter(IoQueue::is_usable);
        let queue = match usable {
            Some(queue) => queue,
            None => {
                let mut queue = IoQueue::new()?;
                if let Some(slots) = thread.slots {
                    // SAFETY: `with_slot_memory` guarantees the memory, and drops the queue
                    // before that ends.
                    unsafe { queue.register(slots) };
                }
                queue
            }
        };
        Ok(operation(thread.queue.insert(queue)))
    });
    called.unwrap_or_else(|_| Err("the calling thread has ended its io_uring".to_owned()))
}
