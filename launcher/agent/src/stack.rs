//! Enough stack for a command, whatever the limit of the shell is.

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, SigmaskHow};

/// The size of the stack on which a command runs if the limit (`ulimit -s`) is lower, in bytes.
/// Unoptimised code needs about 250 KiB of it.
const SIZE: usize = 1 << 20;

/// Returns whether the stack of the main thread is large enough for a command.
#[must_use]
pub fn is_enough() -> bool {
    getrlimit(Resource::RLIMIT_STACK).is_ok_and(|(soft, _)| soft >= SIZE as u64)
}

/// Runs `main` in a thread with a stack that is large enough for a command.
pub fn in_a_thread<T: Send>(main: impl Fn() -> T + Sync) -> T {
    // The new thread handles the signals of the process, so this one must not receive them.
    let Ok(mask) = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK) else { return main() };
    let command = || {
        let _ = mask.thread_set_mask();
        main()
    };
    std::thread::scope(|scope| {
        match std::thread::Builder::new().stack_size(SIZE).spawn_scoped(scope, command) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // The limit of processes is reached. The stack may be enough nevertheless.
            Err(_) => command(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_its_own_has_the_signal_mask_of_its_caller() {
        let before = SigSet::thread_get_mask().expect("a mask");
        let mut block = before;
        block.add(nix::sys::signal::Signal::SIGUSR1);
        block.thread_set_mask().expect("a valid mask");
        let caller = std::thread::current().id();
        let (thread, mask) = in_a_thread(|| {
            // More than the smallest stack of a thread.
            let large = std::hint::black_box([1u8; SIZE / 8]);
            assert!(large.iter().all(|&byte| byte == 1));
            (std::thread::current().id(), SigSet::thread_get_mask().expect("a mask"))
        });
        assert_ne!(thread, caller);
        assert_eq!(mask, block);
        before.thread_set_mask().expect("a valid mask");
    }
}
