//! A node whose free memory is the page cache of files.

use std::fs::File;
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
    let before = available(last)?;
    let mask = NodeMask::new([NodeId(last)]).map_err(text)?;
    MemoryPolicy::Bind(mask).apply().map_err(text)?;
    // The kernel drops the cache of a drive that nobody has open.
    let mut drive = File::open(drive).map_err(text)?;
    let read = std::io::copy(&mut drive, &mut std::io::sink());
    MemoryPolicy::Default.apply().map_err(text)?;
    read.map_err(text)?;
    let (free, cache) = (available(last)?, memory(last, "Inactive(file)")? + memory(last, "Active(file)")?);
    let length = (free + cache / 4) as u64;
    expect(cache > 32 << 20, format!("{before} bytes were free, {free} are, and the cache has {cache}"))?;
    for pages in [Pages::Small, Pages::Auto] {
        let options = BufferOptions::new(length).pages(pages).numa(last.to_string().parse().map_err(text)?);
        let buffer = HostBuffer::allocate(&Solo, options).map_err(text)?;
        let on: Vec<_> = buffer.sections().flat_map(|section| section.nodes.clone()).collect();
        expect(on.len() == 1 && on[0].node.0 == last, format!("obtained {on:?}"))?;
    }
    Ok(format!("{length} bytes with {free} free and {cache} in the cache"))
}
