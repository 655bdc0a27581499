//! The processes below another one.

use std::collections::HashMap;
use std::fs;

use hostbuf_os::process;

/// Returns the descendants of the process `root`, without `except` and their descendants.
pub(crate) fn below(root: i32, except: &[u32]) -> Vec<i32> {
    let numbers = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in numbers {
        if let Some(parent) = process::parent(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        let below = below.into_iter().filter(|&child| !except.contains(&(child as u32)));
        for child in below {
            next.push(child);
            found.push(child);
        }
    }
    // A zombie holds no memory and needs no signal.
    found.retain(|&pid| process::state(pid).is_some_and(|state| state != 'Z' && state != 'X'));
    found
}
