//! A node whose free memory is the page cache of files.

use std::fs::File;
use std::io::Seek;
use std::path::Path;

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer, Pages};
use hostbuf_os::NodeId;
use hostbuf_os::mempolicy::{MemoryPolicy, NodeMask};
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::FullNode;
use hostbuf_programs::numa::sys_node::{available, memory, with_memory};

/// Checks that the kernel frees the page cache of a node for placed pages.
pub fn is_freed() -> Outcome {
    let drive = ["/dev/nvme0n1", "/dev/vda"].into_iter().map(Path::new).find(|path| path.exists());
    let drive = drive.ok_or("this machine has no drive")?;
    let last = *with_memory()?.last().ok_or("no node")?;
    let _full = FullNode::new(last, 72 << 20)?;
    // The kernel drops the cache of a drive that nobody has open.
    let drive = File::open(drive).map_err(text)?;
    let mut seen = Vec::new();
    for pages in [Pages::Small, Pages::Auto] {
        seen.push(for_pages(pages, last, &drive).map_err(|why| format!("{pages}: {why}"))?);
    }
    Ok(seen.join("; "))
}

/// Fills the node with the cache of the drive, and allocates a part of that memory.
fn for_pages(pages: Pages, node: u32, mut drive: &File) -> Outcome {
    let before = available(node)?;
    let mask = NodeMask::new([NodeId(node)]).map_err(text)?;
    drive.rewind().map_err(text)?;
    MemoryPolicy::Bind(mask).apply().map_err(text)?;
    let read = std::io::copy(&mut drive, &mut std::io::sink());
    MemoryPolicy::Default.apply().map_err(text)?;
    read.map_err(text)?;
    // Measured for each buffer: the pages of a freed one may stay in the lists of a CPU, which the
    // kernel does not count as free.
    let (free, cache) = (available(node)?, memory(node, "Inactive(file)")? + memory(node, "Active(file)")?);
    let length = (free + cache / 4) as u64;
    expect(cache > 32 << 20, format!("{before} bytes were free, {free} are, and the cache has {cache}"))?;
    let options = BufferOptions::new(length).pages(pages).numa(node.to_string().parse().map_err(text)?);
    let buffer = HostBuffer::allocate(&Solo, options).map_err(text)?;
    let on: Vec<_> = buffer.sections().flat_map(|section| section.nodes.clone()).collect();
    expect(on.len() == 1 && on[0].node.0 == node, format!("obtained {on:?}"))?;
    Ok(format!("{pages}: {length} bytes with {free} free and {cache} in the cache"))
}
