//! The cores that a thread may run on.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// A set of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores(CpuSet);

/// The NUMA node that the calling thread runs on now; `None` where the kernel counts none.
#[must_use]
pub fn node() -> Option<u32> {
    let core = nix::sched::sched_getcpu().ok()?;
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    entries.flatten().find_map(|entry| number(entry.file_name()))
}

impl Cores {
    /// How many bytes [`to_bytes`](Cores::to_bytes) gives.
    pub const BYTES: usize = CpuSet::count() / 8;

    /// Those of the calling thread; none where they cannot be asked, as on a machine with more
    /// cores than this can count.
    #[must_use]
    pub fn own() -> Cores {
        Cores(sched_getaffinity(Pid::from_raw(0)).unwrap_or_else(|_| CpuSet::new()))
    }

    /// How many threads they are good for: as many as they are, and where they are unknown as many
    /// as the standard library says.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.count() {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            count => count,
        }
    }

    /// How many they are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.numbers().count()
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..CpuSet::count()).filter(|&core| self.0.is_set(core).unwrap_or(false))
    }

    /// Those of both.
    #[must_use]
    pub fn or(mut self, other: &Cores) -> Cores {
        for core in other.numbers() {
            // The number comes from a set of the same size.
            let _ = self.0.set(core);
        }
        self
    }

    /// One core for each of `others` threads beside the calling one, in turn, and none that it runs
    /// on now unless there is no other.
    #[must_use]
    pub fn spread(&self, others: usize) -> Vec<Cores> {
        let here = nix::sched::sched_getcpu().unwrap_or(usize::MAX);
        let mut elsewhere: Vec<usize> = self.numbers().filter(|&core| core != here).collect();
        if elsewhere.is_empty() {
            elsewhere.push(here);
        }
        let one = |&core: &usize| {
            let mut set = CpuSet::new();
            // Without this core it stays empty, and cannot be taken: then the thread stays where it
            // is.
            let _ = set.set(core);
            Cores(set)
        };
        elsewhere.iter().cycle().take(others).map(one).collect()
    }

    /// Moves the calling thread to one of [`spread`](Cores::spread), and then lets it run on all of
    /// these. The kernel likes to leave a new thread on the core of the one that made it. Cores
    /// that this thread may not have leave it where it is.
    pub fn begin_at(&self, first: &Cores) {
        let _ = first.take();
        let _ = self.take();
    }

    /// Lets the calling thread run on all of them.
    ///
    /// # Errors
    /// As `sched_setaffinity(2)`: `EINVAL` when none of them is given to this process.
    pub fn take(&self) -> io::Result<()> {
        Ok(sched_setaffinity(Pid::from_raw(0), &self.0)?)
    }

    /// One bit for each core, for another process.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Cores::BYTES] {
        let mut bytes = [0; Cores::BYTES];
        self.numbers().for_each(|core| bytes[core / 8] |= 1 << (core % 8));
        bytes
    }

    /// What [`to_bytes`](Cores::to_bytes) gave; bits beyond what can be counted are left out.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Cores {
        let mut cores = CpuSet::new();
        let bits = bytes
            .iter()
            .enumerate()
            .flat_map(|(i, b)| (0..8).filter(move |n| b >> n & 1 == 1).map(move |n| i * 8 + n));
        for core in bits.take_while(|&core| core < CpuSet::count()) {
            let _ = cores.set(core);
        }
        Cores(cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_cores_up_and_takes_them_back() {
        let all = Cores::own();
        assert_eq!(Cores::from_bytes(&all.to_bytes()), all);
        let spread = all.spread(all.count() - 1);
        assert_eq!(spread.iter().fold(0, |sum, one| sum + one.count()), all.count() - 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let one = all.spread(1)[0];
                one.take().unwrap();
                assert_eq!((Cores::own(), one.count()), (one, 1));
                one.or(&all).take().unwrap();
                assert_eq!(Cores::own(), all);
            });
        });
    }
}
