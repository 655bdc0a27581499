//! Agents that are threads of this process, for tests.

use std::cell::Cell;
use std::sync::{Barrier, Mutex};

use hostbuf::Result;
use hostbuf::job::Collective;

/// A function that gets the rank of an agent, the number of a broadcast, and its bytes after it.
pub(crate) type Broadcast<'t> = &'t (dyn Fn(usize, usize, &mut [u8]) + Sync);

/// One thread of this process as the agent of a host.
pub(crate) struct ThreadAgent<'t> {
    rank: usize,
    parts: &'t Mutex<Vec<Vec<u8>>>,
    all: &'t Barrier,
    broadcasts: Cell<usize>,
    after_broadcast: Broadcast<'t>,
}

impl ThreadAgent<'_> {
    /// Returns the results of `work` of `count` agents.
    pub(crate) fn run<T: Send>(
        count: usize,
        after_broadcast: Broadcast<'_>,
        work: impl Fn(&ThreadAgent<'_>) -> T + Sync,
    ) -> Vec<T> {
        let (parts, all) = (&Mutex::new(vec![Vec::new(); count]), &Barrier::new(count));
        std::thread::scope(|scope| {
            let work = &work;
            let agent = |rank| {
                scope.spawn(move || {
                    work(&ThreadAgent { rank, parts, all, broadcasts: Cell::new(0), after_broadcast })
                })
            };
            let threads: Vec<_> = (0..count).map(agent).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn exchange(&self, own: &[u8]) -> Vec<Vec<u8>> {
        self.parts.lock().unwrap()[self.rank] = own.to_vec();
        self.all.wait();
        let all = self.parts.lock().unwrap().clone();
        self.all.wait();
        all
    }
}

impl Collective for ThreadAgent<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.parts.lock().unwrap().len()
    }

    fn all_gather(&self, own: &[u8], all: &mut [u8]) -> Result<()> {
        all.copy_from_slice(&self.exchange(own).concat());
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        let own = if self.rank == root { &*bytes } else { &[] };
        bytes.copy_from_slice(&self.exchange(own)[root]);
        let number = self.broadcasts.replace(self.broadcasts.get() + 1);
        (self.after_broadcast)(self.rank, number, bytes);
        Ok(())
    }

    fn split(&self, _: usize) -> Result<Box<dyn Collective>> {
        unreachable!("no test splits")
    }
}
