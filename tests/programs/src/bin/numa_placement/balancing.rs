//! Automatic NUMA balancing, which moves pages to the node of their reader.

#![allow(unsafe_code, reason = "reads a byte of every page of a buffer")]

use std::fs;
use std::time::{Duration, Instant};

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer, NodeId, Pages};
use hostbuf_os::mempolicy::{MemoryPolicy, NodeMask};
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::page_nodes::{count_by_node, describe, page_nodes};
use hostbuf_programs::numa::sys_node::{self, PAGE, with_memory};
use nix::mount::{MsFlags, mount};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

const LENGTH: u64 = 4 << 20;

/// The time within which the kernel moves pages that have no policy.
const LIMIT: Duration = Duration::from_secs(90);

/// Checks that balancing leaves a buffer with a placement alone, while it moves one without.
pub fn leaves_placed_pages() -> Outcome {
    let nodes = with_memory()?;
    let (reader, far) = (nodes[0], *nodes.last().ok_or("no node")?);
    balance_quickly()?;
    let allocate =
        |options: BufferOptions| HostBuffer::allocate(&Solo, options.pages(Pages::Small)).map_err(text);
    let one = allocate(BufferOptions::new(LENGTH).name("one").numa(far.to_string().parse().map_err(text)?))?;
    let both = allocate(BufferOptions::new(LENGTH).name("both").numa("interleave".parse().map_err(text)?))?;
    MemoryPolicy::Bind(NodeMask::new([NodeId(far)]).map_err(text)?).apply().map_err(text)?;
    let control = allocate(BufferOptions::new(LENGTH).name("control"))?;
    MemoryPolicy::Default.apply().map_err(text)?;
    let before = (where_is(&one)?, where_is(&both)?);
    run_on(reader)?;
    let begun = Instant::now();
    loop {
        [&one, &both, &control].into_iter().for_each(touch);
        let moved = where_is(&control)?.iter().filter(|node| **node == Some(reader)).count();
        if moved as u64 > LENGTH / PAGE as u64 / 2 {
            break;
        }
        expect(begun.elapsed() < LIMIT, format!("balancing has moved {moved} pages in {LIMIT:?}"))?;
    }
    let after = (where_is(&one)?, where_is(&both)?);
    let counts = |nodes: &[Option<u32>]| describe(&count_by_node(nodes));
    expect(before == after, format!("placed pages have moved: {}; {}", counts(&after.0), counts(&after.1)))?;
    Ok(format!(
        "control: {}; placed: {}; {}",
        counts(&where_is(&control)?),
        counts(&after.0),
        counts(&after.1)
    ))
}

/// Switches balancing on, with short periods between its scans.
fn balance_quickly() -> Result<(), String> {
    const DEBUGFS: &str = "/sys/kernel/debug";
    let write = |path: &str, value: &str| fs::write(path, value).map_err(|error| format!("{path}: {error}"));
    if !fs::exists(format!("{DEBUGFS}/sched")).map_err(text)? {
        mount(None::<&str>, DEBUGFS, Some("debugfs"), MsFlags::empty(), None::<&str>).map_err(text)?;
    }
    let scan = |name: &str| format!("{DEBUGFS}/sched/numa_balancing/scan_{name}");
    write(&scan("delay_ms"), "10")?;
    write(&scan("period_min_ms"), "20")?;
    write(&scan("period_max_ms"), "100")?;
    write("/proc/sys/kernel/numa_balancing", "1")
}

/// Moves this thread to the first CPU of a node.
fn run_on(node: u32) -> Result<(), String> {
    let list = sys_node::read(node, "cpulist")?;
    let digits = list.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    let mut set = CpuSet::new();
    set.set(digits.parse().map_err(|_| list.clone())?).map_err(text)?;
    sched_setaffinity(Pid::from_raw(0), &set).map_err(text)
}

/// Reads a byte of every page.
fn touch(buffer: &HostBuffer) {
    let begin = buffer.as_ptr().as_ptr() as usize;
    for at in (begin..begin + buffer.len()).step_by(PAGE) {
        // SAFETY: inside the buffer, which is mapped and readable.
        unsafe { (at as *const u8).read_volatile() };
    }
}

/// Returns the node of each page.
fn where_is(buffer: &HostBuffer) -> Result<Vec<Option<u32>>, String> {
    touch(buffer);
    page_nodes(0, buffer.as_ptr().as_ptr() as usize, buffer.len(), PAGE).map_err(text)
}
