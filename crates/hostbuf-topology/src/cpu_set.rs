//! Sets of CPUs, in the kernel's list format.

use std::fmt;
use std::str::FromStr;

/// A set of CPUs by their numbers in the kernel. Its text is the kernel's list format, as in
/// `cpulist` files, `taskset -c` and `numactl`: `0-3,8,10-11`.
///
/// ```
/// use hostbuf_topology::CpuSet;
///
/// let set: CpuSet = "0-3,8".parse()?;
/// assert_eq!(set.count(), 5);
/// assert_eq!(set.to_string(), "0-3,8");
/// # Ok::<(), hostbuf_topology::CpuListError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CpuSet {
    /// One bit for each CPU. The last word is not 0.
    bits: Vec<u64>,
}

/// A text that is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuListError {
    part: String,
}

impl fmt::Display for CpuListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = CpuSet::MAX_CPU;
        write!(
            f,
            "invalid CPU list at {:?}: expected numbers up to {last} and ranges, as in 0-3,8",
            self.part
        )
    }
}

impl std::error::Error for CpuListError {}

impl CpuSet {
    /// The largest number of a CPU in a set. The kernel's limit is 8192 CPUs today.
    pub const MAX_CPU: usize = 65_535;

    /// Returns the empty set.
    #[must_use]
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// Returns the CPUs on which the calling thread may run, or the empty set if `/proc` does not
    /// report them.
    #[must_use]
    pub fn of_this_thread() -> CpuSet {
        CpuSet::of_status("Cpus_allowed_list:")
    }

    /// Returns the list of the calling thread's status that begins with `name`. Lists of nodes have
    /// the format of lists of CPUs.
    pub(crate) fn of_status(name: &str) -> CpuSet {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let list = status.lines().find_map(|line| line.strip_prefix(name));
        list.and_then(|list| list.parse().ok()).unwrap_or_default()
    }

    /// Parses the kernel's format of masks: words of 32 bits in hexadecimal, separated by commas,
    /// as in the `cpumap` files.
    ///
    /// # Errors
    /// [`CpuListError`] if `text` is no mask, or contains a CPU beyond
    /// [`MAX_CPU`](CpuSet::MAX_CPU).
    pub fn from_mask(text: &str) -> Result<CpuSet, CpuListError> {
        let error = |part: &str| CpuListError { part: part.into() };
        let mut set = CpuSet::new();
        for (index, word) in text.trim().rsplit(',').enumerate() {
            let bits = u32::from_str_radix(word.trim(), 16).map_err(|_| error(word))?;
            for bit in (0..32).filter(|bit| bits >> bit & 1 == 1) {
                set.insert(index * 32 + bit).map_err(|_| error(word))?;
            }
        }
        Ok(set)
    }

    /// Adds a CPU.
    ///
    /// # Errors
    /// [`CpuListError`] if `cpu` is beyond [`MAX_CPU`](CpuSet::MAX_CPU).
    pub fn insert(&mut self, cpu: usize) -> Result<(), CpuListError> {
        if cpu > CpuSet::MAX_CPU {
            return Err(CpuListError { part: cpu.to_string() });
        }
        if self.bits.len() <= cpu / 64 {
            self.bits.resize(cpu / 64 + 1, 0);
        }
        self.bits[cpu / 64] |= 1 << (cpu % 64);
        Ok(())
    }

    /// Returns true if `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.bits.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// Returns true if the set has no CPU.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bits.is_empty()
    }

    /// Returns the number of CPUs.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Iterates over the numbers of the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let in_word = |(index, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit)
        };
        self.bits.iter().enumerate().flat_map(in_word)
    }

    /// Returns the CPUs of both sets.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        let mut bits: Vec<u64> = self.bits.iter().zip(&other.bits).map(|(a, b)| a & b).collect();
        while bits.last() == Some(&0) {
            bits.pop();
        }
        CpuSet { bits }
    }

    /// Returns the CPUs of either set.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        let (long, short) = if self.bits.len() < other.bits.len() { (other, self) } else { (self, other) };
        let mut bits = long.bits.clone();
        bits.iter_mut().zip(&short.bits).for_each(|(a, b)| *a |= b);
        CpuSet { bits }
    }

    /// Returns true if `other` has all CPUs of this set.
    #[must_use]
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.intersection(other) == *self
    }
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    /// Parses the kernel's list format. An empty text is the empty set.
    fn from_str(text: &str) -> Result<CpuSet, CpuListError> {
        let mut set = CpuSet::new();
        for part in text.trim().split(',').filter(|_| !text.trim().is_empty()) {
            let error = || CpuListError { part: part.into() };
            let number = |text: &str| {
                let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse().ok().filter(|cpu| digits && *cpu <= CpuSet::MAX_CPU).ok_or_else(error)
            };
            let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            let (first, last): (usize, usize) = (number(first)?, number(last)?);
            if first > last {
                return Err(error());
            }
            for cpu in first..=last {
                set.insert(cpu)?;
            }
        }
        Ok(set)
    }
}

impl FromIterator<usize> for CpuSet {
    /// Collects numbers of CPUs. Numbers beyond [`MAX_CPU`](CpuSet::MAX_CPU) are left out.
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> CpuSet {
        let mut set = CpuSet::new();
        for cpu in cpus {
            let _ = set.insert(cpu);
        }
        set
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_are_parsed_as_the_kernel_writes_them() {
        let table = [
            ("", "", 0),
            ("\n", "", 0),
            ("0\n", "0", 1),
            ("0-3,8,10-11\n", "0-3,8,10-11", 7),
            ("0,1", "0-1", 2),
            ("3,1,2", "1-3", 3),
            ("63-64", "63-64", 2),
            ("65535", "65535", 1),
        ];
        for (text, written, count) in table {
            let set: CpuSet = text.parse().unwrap();
            assert_eq!((set.to_string().as_str(), set.count(), set.is_empty()), (written, count, count == 0));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in
            ["a", "1-", "-1", "2-1", "1,,2", "65536", "0-65536", "99999999999999999999", "+1", "1-2-3", "0x1"]
        {
            let error = text.parse::<CpuSet>().unwrap_err().to_string();
            assert!(error.contains("expected numbers up to 65535"), "{text}: {error}");
        }
    }

    #[test]
    fn masks_have_their_lowest_word_last() {
        assert_eq!(CpuSet::from_mask("00000000,0000ff00\n").unwrap().to_string(), "8-15");
        assert_eq!(CpuSet::from_mask("1,80000000").unwrap().to_string(), "31-32");
        assert!(CpuSet::from_mask("g").is_err() && CpuSet::from_mask("").is_err());
        assert!(CpuSet::from_mask(&format!("1{}", ",0".repeat(4096))).is_err());
    }

    #[test]
    fn this_thread_runs_on_a_cpu() {
        assert!(!CpuSet::of_this_thread().is_empty());
    }

    proptest! {
        #[test]
        fn a_set_is_its_text(cpus in prop::collection::btree_set(0_usize..300, 0..80)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), cpus.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set.clone());
            prop_assert!(cpus.iter().all(|&cpu| set.contains(cpu)));
        }

        #[test]
        fn operations_are_those_of_sets(
            a in prop::collection::btree_set(0_usize..200, 0..40),
            b in prop::collection::btree_set(0_usize..200, 0..40),
        ) {
            let set = |cpus: &std::collections::BTreeSet<usize>| cpus.iter().copied().collect::<CpuSet>();
            prop_assert_eq!(set(&a).intersection(&set(&b)), set(&(&a & &b)));
            prop_assert_eq!(set(&a).union(&set(&b)), set(&(&a | &b)));
            prop_assert_eq!(set(&a).is_subset(&set(&b)), a.is_subset(&b));
        }
    }
}
