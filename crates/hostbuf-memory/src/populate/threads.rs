//! Workers that are threads of this process.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::populate::view::FileView;
use crate::populate::work::{PopulateMethod, Tally, Task};
use hostbuf_os::cores::Cores;

/// The number of bytes that are mapped at a time. Their page tables take 32 MiB at most, and are
/// freed before the next part is mapped. Shorter parts would be slower: while one thread changes
/// mappings, the others cannot allocate pages.
const STRETCH: u64 = 16 << 30;

/// Populates the range of `task`. The calling thread is one of the workers: it writes, and the
/// others fault. Returns the number of bytes on huge pages.
pub(super) fn run(task: Task, cores: &Cores, progress: &mut dyn FnMut(u64)) -> Result<u64, i32> {
    let tally = &Tally::default();
    let mut report = || progress(tally.done.load(Ordering::Relaxed));
    for start in (task.start..task.end()).step_by(STRETCH as usize) {
        let end = (start + STRETCH).min(task.end());
        let whole = &FileView::map(task.fd, start, end - start, task.pages)?;
        let view = move |at, _| Ok((whole, at - start));
        // A new thread changes mappings for its stack, and would wait for the threads that are
        // already allocating pages.
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
                    task.work(tally, end, PopulateMethod::Fault, view, &mut || {})
                };
                // If a thread cannot be started, the others do its part.
                std::thread::Builder::new().spawn_scoped(scope, work).ok()
            };
            let others = cores.spread(task.workers(cores.threads()) - 1);
            let others: Vec<_> = others.into_iter().filter_map(other).collect();
            begun.iter().take(others.len()).for_each(drop);
            drop(closed);
            let own = task.work(tally, end, PopulateMethod::Write, view, &mut report);
            while others.iter().any(|w| !w.is_finished()) {
                report();
                std::thread::sleep(Duration::from_millis(1));
            }
            others.into_iter().fold(own, |all, w| all.and(w.join().unwrap_or(Err(libc::EIO))))
        })?;
    }
    Ok(tally.huge.load(Ordering::Relaxed))
}
