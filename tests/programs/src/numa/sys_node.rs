//! Nodes and their memory, from `/sys/devices/system/node`.

use std::fs;
use std::path::PathBuf;

/// The size of a small page.
pub const PAGE: usize = 4096;
/// The page size of the pools of the virtual machines.
pub const HUGE_PAGE: usize = 2 << 20;

/// Returns the contents of a file of node `node`, without the line break.
pub fn read(node: u32, file: &str) -> Result<String, String> {
    let path = PathBuf::from(format!("/sys/devices/system/node/node{node}/{file}"));
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.trim_end().to_owned())
}

/// Returns the nodes that are online.
pub fn online() -> Result<Vec<u32>, String> {
    nodes("online")
}

/// Returns the nodes that have memory.
pub fn with_memory() -> Result<Vec<u32>, String> {
    nodes("has_memory")
}

fn nodes(file: &str) -> Result<Vec<u32>, String> {
    let path = format!("/sys/devices/system/node/{file}");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    numbers(text.trim_end())
}

/// Returns the numbers of a list of the kernel: "0-1,3" is 0, 1 and 3.
fn numbers(list: &str) -> Result<Vec<u32>, String> {
    let wrong = |_| format!("\"{list}\" is not a list of numbers");
    let mut found = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        found.extend(first.parse::<u32>().map_err(wrong)?..=last.parse().map_err(wrong)?);
    }
    Ok(found)
}

/// Returns the bytes of a line of the node's meminfo, such as "MemFree" or "MemTotal".
pub fn memory(node: u32, line: &str) -> Result<usize, String> {
    let text = read(node, "meminfo")?;
    let begin = format!("Node {node} {line}:");
    let kib =
        text.lines().find_map(|line| line.strip_prefix(&begin)?.trim().strip_suffix(" kB")?.parse().ok());
    kib.map(|kib: usize| kib << 10).ok_or_else(|| format!("node {node} has no line {line} in its meminfo"))
}

/// Returns the bytes that programs can allocate on a node before the kernel reclaims memory: the
/// free memory without the high watermarks of the node's zones.
///
/// The watermarks of a node are tens of MiB. A bound allocation below the low watermark starts the
/// reclaim; one below the minimum, with nothing to reclaim, starts the OOM killer.
pub fn available(node: u32) -> Result<usize, String> {
    let path = "/proc/zoneinfo";
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let begin = format!("Node {node}, zone ");
    let (mut own, mut pages) = (false, 0);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Node"), _) => own = line.starts_with(&begin),
            // The lists of free pages of each CPU have lines "high:".
            (Some("high"), Some(high)) if own => {
                pages += high.parse::<usize>().map_err(|_| line.to_owned())?;
            }
            _ => (),
        }
    }
    Ok(memory(node, "MemFree")?.saturating_sub(pages * PAGE))
}

/// Returns the number of free pages in the pool of huge pages of 2 MiB of a node.
pub fn free_pool_pages(node: u32) -> Result<usize, String> {
    pool(node, "free_hugepages")
}

/// Returns the number of pages in the pool of huge pages of 2 MiB of a node, free or not.
pub fn pool_pages(node: u32) -> Result<usize, String> {
    pool(node, "nr_hugepages")
}

fn pool(node: u32, file: &str) -> Result<usize, String> {
    let text = read(node, &format!("hugepages/hugepages-2048kB/{file}"))?;
    text.parse().map_err(|_| format!("node {node}: {file} is \"{text}\""))
}
