//! The free pages in the kernel's per-CPU page lists (`pcp` in mm/page_alloc.c).
//!
//! `MemFree` does not count them. They are tens of MiB on a small node, and the kernel drains the
//! lists before an allocation fails.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::node_id::NodeId;

/// Returns the number of pages of `node` in the per-CPU lists of all CPUs, from `/proc/zoneinfo`.
pub fn pages_in(node: NodeId, zoneinfo: &str) -> u64 {
    let mut sum = ListSum::new(node);
    zoneinfo.lines().for_each(|line| sum.line(line.as_bytes()));
    sum.pages
}

/// Returns the number of pages of `node` in the per-CPU lists of all CPUs now, or 0 if the file
/// cannot be read. Neither allocates nor locks.
pub fn pages_now(node: NodeId, zoneinfo: &File) -> u64 {
    let mut sum = ListSum::new(node);
    let mut buffer = [0; 4096];
    let (mut kept, mut offset) = (0, 0);
    while let Ok(length @ 1..) = zoneinfo.read_at(&mut buffer[kept..], offset) {
        offset += length as u64;
        let end = kept + length;
        let lines = buffer[..end].iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
        buffer[..lines].split(|&byte| byte == b'\n').for_each(|line| sum.line(line));
        buffer.copy_within(lines..end, 0);
        kept = end - lines;
    }
    sum.pages
}

/// The sum of the per-CPU lists of one node.
struct ListSum {
    node: NodeId,
    in_node: bool,
    pages: u64,
}

impl ListSum {
    fn new(node: NodeId) -> ListSum {
        ListSum { node, in_node: false, pages: 0 }
    }

    fn line(&mut self, line: &[u8]) {
        let Ok(line) = std::str::from_utf8(line) else { return };
        if let Some(rest) = line.strip_prefix("Node ") {
            let node = rest.split(',').next().and_then(|node| node.parse().ok());
            self.in_node = node == Some(self.node.0);
        } else if let Some(("count", pages)) = line.trim_start().split_once(':').filter(|_| self.in_node) {
            self.pages = self.pages.saturating_add(pages.trim().parse().unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a report on two nodes with two zones each. Each CPU has one page of each zone of
    /// node 0, and two of each zone of node 1.
    fn report(cpus: usize) -> String {
        let zone = |node: u64, name: &str| {
            let lists = |cpu| {
                let count = node + 1;
                format!("    cpu: {cpu}\n              count: {count}\n              high:  9\n")
            };
            let cpus: String = (0..cpus).map(lists).collect();
            format!("Node {node}, zone {name}\n  pages free 70\n        high 5\n  pagesets\n{cpus}")
        };
        format!("{}{}{}{}", zone(0, "DMA"), zone(0, "Normal"), zone(1, "Normal"), zone(1, "Movable"))
    }

    #[test]
    fn the_lists_of_all_zones_of_the_node_are_added() {
        for (node, pages) in [(0, 2), (1, 4), (2, 0)] {
            assert_eq!(pages_in(NodeId(node), &report(3)), 3 * pages);
        }
        assert_eq!(pages_in(NodeId(0), "Node 0, zone\n count: x\n count 7\n"), 0);
    }

    #[test]
    fn reports_of_all_lengths_are_read_in_parts() {
        let path = std::env::temp_dir().join(format!("hostbuf-per-cpu-lists-{}", std::process::id()));
        for cpus in [0, 1, 17, 100, 1000] {
            std::fs::write(&path, report(cpus)).unwrap();
            let file = File::open(&path).unwrap();
            assert_eq!(pages_now(NodeId(1), &file), cpus as u64 * 4);
        }
        // A line that is longer than the buffer ends the count.
        std::fs::write(&path, format!("{}{}\n count: 1\n", report(1), "x".repeat(5000))).unwrap();
        assert_eq!(pages_now(NodeId(1), &File::open(&path).unwrap()), 4);
        std::fs::remove_file(path).unwrap();
    }
}
