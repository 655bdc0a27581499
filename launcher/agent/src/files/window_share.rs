//! The windows of a file that a host reads.

/// The number of bytes that a thread claims at a time.
pub(super) const WINDOW: u64 = 8 << 20;

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

    /// Returns the host that reads a window.
    pub(super) fn host_of(self, window: u64) -> u64 {
        (window % self.hosts + self.file % self.hosts) % self.hosts
    }

    /// Returns the window of this host with this number among its own. It may be behind the last
    /// window of the file.
    pub(super) fn window(self, number: u64) -> u64 {
        let first = (self.host + self.hosts - self.file % self.hosts) % self.hosts;
        first.saturating_add(number.saturating_mul(self.hosts))
    }

    /// Returns the number of windows of this host in a file of `bytes` bytes.
    pub(super) fn count(self, bytes: u64) -> u64 {
        bytes.div_ceil(WINDOW).saturating_sub(self.window(0)).div_ceil(self.hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_belongs_to_one_host() {
        for (hosts, file, windows) in [(1, 0, 5u64), (3, 0, 7), (3, 1, 7), (3, 5, 1), (4, 2, 0), (5, 9, 3)] {
            let mut seen = vec![0; windows as usize];
            for host in 0..hosts {
                let share = WindowShare::new(host, hosts, file);
                let own = (0..share.count(windows * WINDOW)).map(|number| share.window(number));
                for window in own {
                    assert_eq!(share.host_of(window), host as u64);
                    seen[window as usize] += 1;
                }
                assert!(share.window(share.count(windows * WINDOW)) >= windows);
            }
            assert!(seen.iter().all(|count| *count == 1), "{hosts} {file} {windows}: {seen:?}");
        }
    }
}
