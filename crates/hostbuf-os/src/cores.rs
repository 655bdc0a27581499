//! Sets of cores, and the affinity of threads.

use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// A set of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores(CpuSet);

/// Returns the NUMA node on which the calling thread runs now, or `None` if the kernel does not
/// report it.
#[must_use]
pub fn node() -> Option<u32> {
    let core = nix::sched::sched_getcpu().ok()?;
    let entries = std::fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    entries.flatten().find_map(|entry| number(entry.file_name()))
}

impl Cores {
    /// The number of bytes that [`to_bytes`](Cores::to_bytes) returns.
    pub const BYTES: usize = CpuSet::count() / 8;

    /// Returns the cores on which the calling thread may run. The set is empty if they are unknown,
    /// as on a machine with more cores than a set can contain.
    #[must_use]
    pub fn own() -> Cores {
        Cores(sched_getaffinity(Pid::from_raw(0)).unwrap_or_else(|_| CpuSet::new()))
    }

    /// Returns the number of threads that these cores can run: the number of cores, or that of the
    /// standard library if the cores are unknown.
    #[must_use]
    pub fn threads(&self) -> usize {
        match self.count() {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            count => count,
        }
    }

    /// Returns the number of cores.
    #[must_use]
    pub fn count(&self) -> usize {
        self.numbers().count()
    }

    /// Makes the set of the cores with these numbers. Numbers beyond the capacity of a set are
    /// ignored.
    #[must_use]
    pub fn from_numbers(numbers: impl IntoIterator<Item = usize>) -> Cores {
        let mut cores = CpuSet::new();
        for core in numbers.into_iter().filter(|&core| core < CpuSet::count()) {
            let _ = cores.set(core);
        }
        Cores(cores)
    }

    fn numbers(&self) -> impl Iterator<Item = usize> {
        (0..CpuSet::count()).filter(|&core| self.0.is_set(core).unwrap_or(false))
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(mut self, other: &Cores) -> Cores {
        for core in other.numbers() {
            // The number comes from a set of the same size.
            let _ = self.0.set(core);
        }
        self
    }

    /// Returns the cores that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Cores) -> Cores {
        Cores::from_numbers(self.numbers().filter(|&core| other.0.is_set(core).unwrap_or(false)))
    }

    /// Returns one core for each of `others` threads besides the calling thread, in turn. The core
    /// of the calling thread is used only if there is no other.
    #[must_use]
    pub fn spread(&self, others: usize) -> Vec<Cores> {
        let here = nix::sched::sched_getcpu().unwrap_or(usize::MAX);
        let mut elsewhere: Vec<usize> = self.numbers().filter(|&core| core != here).collect();
        if elsewhere.is_empty() {
            elsewhere.push(here);
        }
        let one = |&core: &usize| {
            let mut set = CpuSet::new();
            // If the number is not valid the set stays empty, and applying it fails: the thread
            // then stays on its core.
            let _ = set.set(core);
            Cores(set)
        };
        elsewhere.iter().cycle().take(others).map(one).collect()
    }

    /// Moves the calling thread to `first`, one of the sets of [`spread`](Cores::spread), and then
    /// lets it run on all cores of `self`. The kernel tends to leave a new thread on the core of
    /// its creator. If the thread may not use these cores, it stays on its core.
    pub fn begin_at(&self, first: &Cores) {
        let _ = first.apply();
        let _ = self.apply();
    }

    /// Lets the calling thread run on all of these cores.
    ///
    /// # Errors
    /// As `sched_setaffinity(2)`: `EINVAL` if this process may use none of them.
    pub fn apply(&self) -> io::Result<()> {
        Ok(sched_setaffinity(Pid::from_raw(0), &self.0)?)
    }

    /// Encodes the set for another process, with one bit for each core.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Cores::BYTES] {
        let mut bytes = [0; Cores::BYTES];
        self.numbers().for_each(|core| bytes[core / 8] |= 1 << (core % 8));
        bytes
    }

    /// Decodes the result of [`to_bytes`](Cores::to_bytes). Bits beyond the capacity of a set are
    /// ignored.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Cores {
        let bit = move |(i, b): (usize, &u8)| {
            let b = *b;
            (0..8).filter(move |n| b >> n & 1 == 1).map(move |n| i * 8 + n)
        };
        Cores::from_numbers(bytes.iter().enumerate().flat_map(bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intersection_has_the_cores_of_both_sets() {
        let of = |numbers: &[usize]| Cores::from_numbers(numbers.iter().copied());
        assert_eq!(of(&[0, 1, 2]).intersection(&of(&[1, 2, 3])), of(&[1, 2]));
        assert_eq!(of(&[0]).intersection(&of(&[1])).count(), 0);
    }

    #[test]
    fn a_thread_restricts_its_cores_and_extends_them_again() {
        let all = Cores::own();
        assert_eq!(Cores::from_bytes(&all.to_bytes()), all);
        let spread = all.spread(all.count() - 1);
        assert_eq!(spread.iter().fold(0, |sum, one| sum + one.count()), all.count() - 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let one = all.spread(1)[0];
                one.apply().unwrap();
                assert_eq!((Cores::own(), one.count()), (one, 1));
                one.union(&all).apply().unwrap();
                assert_eq!(Cores::own(), all);
            });
        });
    }
}
