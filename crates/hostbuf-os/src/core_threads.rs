//! Threads that divide work among a set of cores.

use std::sync::Mutex;

use crate::cores::Cores;

/// The largest number of threads, which suffices for the memory bandwidth of a node.
const MAX_THREADS: usize = 32;

/// Calls `work` with each of `parts`, on at most 32 threads spread over `cores`, including the
/// calling thread. Returns the results in the order of the parts.
///
/// # Panics
/// If `work` panics.
pub fn on_cores<T: Send, R: Send>(cores: &Cores, parts: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let threads = cores.threads().min(parts.len()).clamp(1, MAX_THREADS);
    let queue = Mutex::new(parts.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let run = || {
        let mut done = Vec::new();
        while let Some((number, part)) = next() {
            done.push((number, work(part)));
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let on = |first: Cores| {
            let start = move || {
                cores.begin_at(&first);
                run()
            };
            // If a thread cannot be started, the others process its parts.
            std::thread::Builder::new().spawn_scoped(scope, start).ok()
        };
        let others: Vec<_> = cores.spread(threads - 1).into_iter().filter_map(on).collect();
        let own = run();
        let others = others.into_iter().flat_map(|thread| thread.join().expect("a part has panicked"));
        own.into_iter().chain(others).collect::<Vec<_>>()
    });
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_done_once_and_the_results_are_in_order() {
        for count in [0, 1, 2, 1000] {
            let results = on_cores(&Cores::own(), (0..count).collect(), |number: usize| number * 3);
            assert_eq!(results, (0..count).map(|number| number * 3).collect::<Vec<_>>());
        }
    }
}
