//! Nodes on which the requested pages cannot be had.

use std::os::fd::AsFd;

use hostbuf::job::Solo;
use hostbuf::segment::Segments;
use hostbuf::{BufferOptions, HostBuffer, Pages};
use hostbuf_memory::populate::Workers;
use hostbuf_os::{memory, process};
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::FullNode;
use hostbuf_programs::numa::fragmented_node::FragmentedNode;
use hostbuf_programs::numa::sys_node::{HUGE_PAGE, available, free_pool_pages, with_memory};

/// Checks a node that has free memory, but no free huge page: strict requests fail with the node in
/// the message, and others get small pages of the node.
pub fn collapse_refused() -> Outcome {
    let nodes = with_memory()?;
    let last = *nodes.last().ok_or("no node")?;
    let _fragmented = FragmentedNode::new(last, 80 << 20)?;
    // More than the pool has, so that automatic pages are not taken from there, and more than the
    // few huge pages that are left.
    let length = ((free_pool_pages(last)? + 24) * HUGE_PAGE) as u64;
    let options = |pages, placement: &str| {
        let options = BufferOptions::new(length).pages(pages);
        Ok::<_, String>(options.numa(placement.parse().map_err(text)?))
    };
    let refused = |placement: &str| {
        let error = HostBuffer::allocate(&Solo, options(Pages::Transparent, placement)?);
        error.err().map(|error| error.to_string()).ok_or_else(|| {
            let free = std::fs::read_to_string("/proc/buddyinfo").unwrap_or_default();
            format!("{placement}: huge pages of a node that has none: {free}")
        })
    };
    let node = last.to_string();
    let mut errors = Vec::new();
    for placement in [node.as_str(), &format!("interleave:{node}")] {
        errors.push(refused(placement)?);
        let error = &errors[errors.len() - 1];
        let well = error.contains(&format!("pages thp on node {last}")) && error.contains("--pages auto");
        expect(well, format!("{placement}: {error}"))?;
    }
    let buffer = HostBuffer::allocate(&Solo, options(Pages::Auto, &node)?).map_err(text)?;
    let on: Vec<_> = buffer.sections().flat_map(|section| section.nodes.clone()).collect();
    let well = on.len() == 1 && on[0].node.0 == last && on[0].obtained == buffer.len() as u64;
    expect(well && buffer.huge_bytes() < buffer.len() as u64, format!("obtained {on:?}"))?;
    Ok(format!("{}; {} bytes on huge pages with --pages auto", errors[0], buffer.huge_bytes()))
}

/// Checks a node that another process fills after its free memory was counted: this process gets
/// an error, and the OOM killer ends no process.
pub fn node_filled_meanwhile() -> Outcome {
    let last = *with_memory()?.last().ok_or("no node")?;
    let free = available(last)?;
    let options = BufferOptions::new((free * 3 / 4) as u64)
        .pages(Pages::Small)
        .numa(last.to_string().parse().map_err(text)?);
    let mut segments = Segments::create(1, &[options]).map_err(text)?;
    let oom_kills = memory::oom_kills();
    let mut full = None;
    let workers = Workers::of_this_process();
    let populated = segments.populate(workers, &mut |_| {
        if full.is_none() {
            full = Some(stopped_workers(|| FullNode::new(last, 8 << 20)));
        }
    });
    let _full = full.ok_or("no progress was reported")??;
    let error = populated.err().ok_or("the pages of a full node")?.to_string();
    let words =
        [format!("the free memory of node {last}"), "not enough memory".to_owned(), "try again".to_owned()];
    expect(words.iter().all(|word| error.contains(word)), &error)?;
    expect(memory::oom_kills() == oom_kills, format!("the OOM killer was called: {error}"))?;
    Ok(error)
}

/// Runs `work` while the children of this process are stopped.
fn stopped_workers<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let children = std::fs::read_to_string("/proc/thread-self/children").map_err(text)?;
    let pids: Vec<i32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    let send = |signal| {
        pids.iter().try_for_each(|&pid| {
            let child = process::pidfd(pid).map_err(text)?;
            process::signal(child.as_fd(), signal).map_err(text)
        })
    };
    send(libc::SIGSTOP)?;
    while pids.iter().any(|&pid| process::state(pid) == Some('R')) {
        std::thread::yield_now();
    }
    let result = work();
    send(libc::SIGCONT)?;
    Ok(result)
}
