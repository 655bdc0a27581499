//! Workers that are threads.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::populate::view::View;
use crate::populate::work::{Means, Tally, Task};
use hostbuf_os::cores::Cores;

/// How much is mapped at a time: its page tables, 32 MiB at most, are given back before the next.
/// Shorter would be slower: while one thread changes mappings, the others cannot take pages.
const STRETCH: u64 = 16 << 30;

/// The caller works too; it writes, the others fault.
pub(super) fn run(task: Task, cores: &Cores, progress: &mut dyn FnMut(u64)) -> Result<u64, i32> {
    let tally = &Tally::default();
    let mut tell = || progress(tally.done.load(Ordering::Relaxed));
    for start in (0..task.length).step_by(STRETCH as usize) {
        let end = (start + STRETCH).min(task.length);
        let whole = &View::map(task.fd, start, end - start, task.pages)?;
        let view = move |at, _| Ok((whole, at - start));
        // A thread that begins changes mappings for its stack, and would wait for those who take
        // pages already.
        let (here, begun) = mpsc::channel();
        let gate = &Mutex::new(());
        std::thread::scope(|scope| {
            let closed = gate.lock();
            let other = |first: Cores| {
                let here = here.clone();
                let work = move || {
                    cores.begin_at(&first);
                    let _ = here.send(());
                    drop(gate.lock());
                    task.work(tally, end, Means::Fault, view, &mut || {})
                };
                // A thread that cannot be had leaves its part to the others.
                std::thread::Builder::new().spawn_scoped(scope, work).ok()
            };
            let others = cores.spread(task.workers(cores.threads()) - 1);
            let others: Vec<_> = others.into_iter().filter_map(other).collect();
            begun.iter().take(others.len()).for_each(drop);
            drop(closed);
            let own = task.work(tally, end, Means::Write, view, &mut tell);
            while others.iter().any(|w| !w.is_finished()) {
                tell();
                std::thread::sleep(Duration::from_millis(1));
            }
            others.into_iter().fold(own, |all, w| all.and(w.join().unwrap_or(Err(libc::EIO))))
        })?;
    }
    Ok(tally.huge.load(Ordering::Relaxed))
}
