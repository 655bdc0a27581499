//! The windows of a file that a host reads.

use std::ops::Range;

/// The number of bytes that a thread claims at a time.
pub(super) const WINDOW: u64 = 8 << 20;
/// The number of windows of each host that are read before they are exchanged. The files of unit
/// tests are small.
pub(super) const ROUND: u64 = if cfg!(test) { 1 } else { 16 };

/// The windows of a file that a host reads: one of as many as there are hosts. The first window of
/// each further file belongs to the next host, so that the hosts share small files too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowShare {
    host: u64,
    hosts: u64,
    file: u64,
}

impl WindowShare {
    /// All windows, for a host that reads alone.
    pub(super) const ALL: WindowShare = WindowShare { host: 0, hosts: 1, file: 0 };

    /// Returns the share of a host of `hosts` in the file with this index.
    pub(super) fn new(host: usize, hosts: usize, file: usize) -> WindowShare {
        WindowShare { host: host as u64, hosts: hosts as u64, file: file as u64 }
    }

    /// Returns whether other hosts read windows, too.
    pub(super) fn is_shared(self) -> bool {
        self.hosts > 1
    }

    /// Returns the host that reads a window.
    pub(super) fn host_of(self, window: u64) -> u64 {
        (window % self.hosts + self.file % self.hosts) % self.hosts
    }

    /// Returns whether this host reads a window.
    pub(super) fn is_own(self, window: u64) -> bool {
        self.host_of(window) == self.host
    }

    /// Returns the rounds of a file of `bytes` bytes: ranges of windows that all hosts read before
    /// they exchange them. There is at least one, and a host that reads alone has one.
    pub(super) fn rounds(self, bytes: u64) -> impl Iterator<Item = Range<u64>> {
        let windows = bytes.div_ceil(WINDOW);
        let step = if self.is_shared() { ROUND.saturating_mul(self.hosts) } else { windows.max(1) };
        let round = move |number: u64| number * step..((number + 1) * step).min(windows);
        (0..windows.div_ceil(step).max(1)).map(round)
    }
}

/// Returns the place of a window in a file of `bytes` bytes.
pub(super) fn place(window: u64, bytes: u64) -> Range<u64> {
    let start = window * WINDOW;
    start..(start + WINDOW).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_is_in_one_round_of_one_host() {
        for (hosts, file, windows) in
            [(1, 0, 50u64), (3, 0, 7), (3, 1, 49), (3, 5, 1), (4, 2, 0), (5, 9, 3), (2, 3, 2 * ROUND + 1)]
        {
            let mut seen = vec![0; windows as usize];
            let mut lengths = Vec::new();
            for host in 0..hosts {
                let share = WindowShare::new(host, hosts, file);
                let rounds: Vec<_> = share.rounds(windows * WINDOW).collect();
                assert!(!rounds.is_empty() && (share.is_shared() || rounds.len() == 1));
                for window in rounds.iter().cloned().flatten().filter(|&window| share.is_own(window)) {
                    seen[window as usize] += 1;
                }
                for round in &rounds {
                    let own = round.clone().filter(|&window| share.is_own(window)).count() as u64;
                    assert!(own <= ROUND || !share.is_shared(), "{hosts} {file} {windows}");
                }
                lengths.push(rounds.len());
            }
            assert!(seen.iter().all(|count| *count == 1), "{hosts} {file} {windows}: {seen:?}");
            // The rounds are collective.
            lengths.dedup();
            assert_eq!(lengths.len(), 1, "{hosts} {file} {windows}");
        }
    }

    #[test]
    fn the_last_window_ends_with_the_file() {
        assert_eq!(place(1, 2 * WINDOW + 5), WINDOW..2 * WINDOW);
        assert_eq!(place(2, 2 * WINDOW + 5), 2 * WINDOW..2 * WINDOW + 5);
    }
}
