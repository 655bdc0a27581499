//! The free memory of one NUMA node.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::node_id::NodeId;

/// Returns the number of bytes of ordinary pages that can be allocated on `node`, or `None` if the
/// kernel does not report them. As for `MemAvailable`, these are the free pages above the kernel's
/// reserves and most of the page cache.
#[must_use]
pub fn available(node: NodeId) -> Option<u64> {
    NodeGauge::open(node)?.available()
}

/// The ordinary memory of a node, measured repeatedly without allocating or locking.
#[derive(Debug)]
pub struct NodeGauge {
    meminfo: File,
    reserves: Reserves,
}

impl NodeGauge {
    /// Opens the kernel's report on `node`, or returns `None` if there is none.
    #[must_use]
    pub fn open(node: NodeId) -> Option<NodeGauge> {
        let meminfo = File::open(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
        let zones = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
        Some(NodeGauge { meminfo, reserves: Reserves::of(node, &zones, crate::memory::page_size()) })
    }

    /// Returns the number of bytes of ordinary pages that can be allocated now, as [`available`].
    /// Neither allocates nor locks.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        // The report has some forty lines of less than 50 bytes.
        let mut text = [0; 4096];
        let length = self.meminfo.read_at(&mut text, 0).ok()?;
        available_of(std::str::from_utf8(&text[..length]).ok()?, self.reserves)
    }
}

/// Returns the bytes of [`available`] from the texts of a host's files: the `meminfo` of `node`,
/// and `/proc/zoneinfo`, without which the kernel's reserves count as available.
#[must_use]
pub fn available_in(node: NodeId, meminfo: &str, zoneinfo: &str) -> Option<u64> {
    // The host may have pages of another size than this one. The memory of a node consists of the
    // managed pages of its zones.
    let zones = parse_zones(zoneinfo).filter(|zone| zone.node == node.0);
    let pages = zones.map(|zone| zone.managed).sum::<u64>().max(1);
    let page =
        (bytes_of(meminfo, " MemTotal").unwrap_or(0) / pages / 4 * 3).max(1).checked_next_power_of_two()?;
    available_of(meminfo, Reserves::of(node, zoneinfo, page))
}

/// Returns the number of free bytes in the pool of pages of `page` bytes of `node`, 0 if there is
/// no such pool.
#[must_use]
pub fn free_in_pool(node: NodeId, page: u64) -> u64 {
    let path =
        format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{}kB/free_hugepages", page / 1024);
    let free = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    free.unwrap_or(0).saturating_mul(page)
}

/// The bytes of a node that ordinary requests do not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reserves {
    /// The free bytes that the kernel keeps.
    free: u64,
    /// The bytes of the low watermarks, which the kernel keeps of the cache too.
    low: u64,
}

impl Reserves {
    /// Returns the reserves of a node from `/proc/zoneinfo`, for pages of `page` bytes.
    fn of(node: NodeId, zones: &str, page: u64) -> Reserves {
        let mut reserves = Reserves::default();
        for zone in parse_zones(zones).filter(|zone| zone.node == node.0) {
            reserves.free = reserves.free.saturating_add(zone.reserve().saturating_mul(page));
            reserves.low = reserves.low.saturating_add(zone.low.saturating_mul(page));
        }
        reserves
    }
}

/// Estimates the available bytes of a node as the kernel does for the host in
/// `si_mem_available()` (mm/page_alloc.c).
fn available_of(meminfo: &str, reserves: Reserves) -> Option<u64> {
    let bytes = |name: &str| bytes_of(meminfo, name);
    let free = bytes(" MemFree")?;
    let cache = bytes(" Active(file)").unwrap_or(0).saturating_add(bytes(" Inactive(file)").unwrap_or(0));
    // A part of the cache is in use.
    let reclaimable = |all: u64| all - (all / 2).min(reserves.low);
    let available = free.saturating_add(reclaimable(cache));
    let available = available.saturating_add(reclaimable(bytes(" SReclaimable").unwrap_or(0)));
    Some(available.saturating_sub(reserves.free))
}

/// Returns the bytes of the line of a node's meminfo that has this name.
fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.split_once(name).map(|(_, rest)| rest))?;
    line.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// One zone of memory, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Zone {
    node: u32,
    managed: u64,
    low: u64,
    high: u64,
    /// The pages that are kept for requests that need this zone.
    protected: u64,
}

impl Zone {
    /// Returns the number of pages that ordinary requests do not get.
    fn reserve(&self) -> u64 {
        self.high.saturating_add(self.protected).min(self.managed)
    }
}

/// Parses `/proc/zoneinfo`.
fn parse_zones(text: &str) -> impl Iterator<Item = Zone> {
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        let node = loop {
            let rest = lines.next()?.strip_prefix("Node ");
            if let Some(node) = rest.and_then(|rest| rest.split(',').next()?.parse().ok()) {
                break node;
            }
        };
        let mut zone = Zone { node, ..Zone::default() };
        while let Some(line) = lines.next_if(|line| !line.starts_with("Node ")) {
            let mut words = line.split_ascii_whitespace();
            let (name, value) = (words.next(), words.next().and_then(|word| word.parse().ok()));
            match (name, value) {
                (Some("managed"), Some(pages)) => zone.managed = pages,
                (Some("low"), Some(pages)) => zone.low = pages,
                // The same word begins a line for each core.
                (Some("high"), Some(pages)) => zone.high = pages,
                (Some("protection:"), _) => {
                    let list = line.split_once('(').map_or("", |(_, list)| list.trim_end_matches(')'));
                    zone.protected =
                        list.split(',').filter_map(|word| word.trim().parse().ok()).max().unwrap_or(0);
                }
                _ => {}
            }
        }
        Some(zone)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONES: &str = "\
Node 0, zone    DMA32
  per-node stats
      nr_inactive_anon 0
  pages free     1000
        boost    0
        min      10
        low      20
        high     30
        spanned  1100
        present  1100
        managed  1000
        cma      0
        protection: (0, 0, 500, 500)
  pagesets
    cpu: 0
              count:    1
              high:     14
Node 0, zone   Normal
  pages free     5000
        low      100
        high     200
        managed  6000
        protection: (0, 0, 0, 0)
Node 1, zone   Normal
        low      7
        high     8
        managed  5
";

    #[test]
    fn zones_are_parsed_by_their_node() {
        let zones: Vec<Zone> = parse_zones(ZONES).collect();
        let dma = Zone { node: 0, managed: 1000, low: 20, high: 30, protected: 500 };
        assert_eq!(zones[0], dma);
        assert_eq!((zones[0].reserve(), zones[1].reserve(), zones[2].reserve()), (530, 200, 5));
        assert_eq!(zones.len(), 3);
        assert_eq!(parse_zones("Node x, zone\n  high 3\nlow").count(), 0);
    }

    #[test]
    fn the_cache_is_available_and_the_reserves_are_not() {
        let meminfo = "Node 0 MemTotal:  40000 kB\nNode 0 MemFree:  24000 kB\nNode 0 Active(file):  100 kB\n\
                       Node 0 Inactive(file): 300 kB\nNode 0 SReclaimable: 4000 kB\n";
        let low = 120 * 4;
        let expected = 24000 + (400 - 200) + (4000 - low) - 730 * 4;
        let reserves = Reserves::of(NodeId(0), ZONES, 4096);
        assert_eq!(available_of(meminfo, reserves), Some(expected * 1024));
        assert_eq!(available_of("garbage", reserves), None);
        assert_eq!(available_of("Node 3 MemFree: 1 kB", Reserves::default()), Some(1024));
    }

    #[test]
    fn the_size_of_a_page_is_that_of_the_host() {
        const ZONES: &str = "Node 1, zone Normal\n high 10\n managed 1000\n";
        for page in [4, 16, 64] {
            let meminfo = format!("Node 1 MemTotal: {} kB\nNode 1 MemFree: 2000 kB\n", page * 1000);
            let found = available_in(NodeId(1), &meminfo, ZONES);
            assert_eq!(found, Some((2000 - page * 10) * 1024), "{page}");
            assert_eq!(available_in(NodeId(1), &meminfo, ""), Some(2000 * 1024));
        }
        assert_eq!(available_in(NodeId(1), "", ZONES), None);
    }

    #[test]
    fn the_nodes_have_together_what_the_host_has() {
        let nodes = crate::mempolicy::allowed_nodes().expect("/proc is mounted");
        // A kernel without NUMA does not list nodes.
        let Some(sum) = nodes.iter().map(|&node| available(node)).sum::<Option<u64>>() else {
            assert!(!std::path::Path::new("/sys/devices/system/node/node0").exists());
            return;
        };
        let of_host = |name| crate::memory::meminfo(name).expect("/proc is mounted");
        let total_of = |node| {
            let path = format!("/sys/devices/system/node/node{node}/meminfo");
            bytes_of(&fs::read_to_string(path).expect("it is there"), " MemTotal").expect("it has a size")
        };
        // A hypervisor that resizes its guests may count memory for the host that no node has.
        let elsewhere = of_host("MemTotal").saturating_sub(nodes.iter().map(total_of).sum());
        let host = of_host("MemAvailable").saturating_sub(elsewhere);
        // Other processes allocate memory between the two.
        assert!(sum > host / 2 && sum / 2 < host, "{sum} and {host}, {elsewhere} elsewhere");
    }
}
