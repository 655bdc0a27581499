//! Sets of nodes whose first node has too little memory.

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer, Pages};
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::FullNode;
use hostbuf_programs::numa::sys_node::{HUGE_PAGE, PAGE, free_pool_pages, with_memory};

use crate::matrix::compare;

/// Checks that a set of nodes takes what its first node has, and the rest from the second: pages of
/// a pool, and small pages.
pub fn to_the_second_node() -> Outcome {
    let nodes = with_memory()?;
    let (first, last) = (nodes[0], *nodes.last().ok_or("no node")?);
    let free = free_pool_pages(last)?;
    let (on_last, pool) = allocate(last, first, Pages::Huge2M, free + 3)?;
    expect(on_last == free, format!("{on_last} of {free} pages of the pool on node {last}"))?;
    let _full = FullNode::new(last, 40 << 20)?;
    let (_, small) = allocate(last, first, Pages::Small, (64 << 20) / PAGE)?;
    Ok(format!("{pool}; {small}"))
}

/// Allocates pages on a set of two nodes that is too much for the first of them. Returns how many
/// pages are there, and the counts.
fn allocate(full: u32, other: u32, pages: Pages, count: usize) -> Result<(usize, String), String> {
    let page = if pages == Pages::Small { PAGE } else { HUGE_PAGE };
    let placement = format!("{full},{other}").parse().map_err(text)?;
    let options = BufferOptions::new((count * page) as u64).pages(pages).numa(placement);
    let buffer = HostBuffer::allocate(&Solo, options).map_err(|error| format!("{pages}: {error}"))?;
    let section = buffer.sections().next().ok_or("no section")?;
    let on_full: u64 = section.nodes.iter().filter(|on| on.node.0 == full).map(|on| on.obtained).sum();
    let on_full = on_full as usize / page;
    expect((1..count).contains(&on_full), format!("{pages}: {:?}", section.nodes))?;
    let wanted = std::iter::repeat_n(full, on_full).chain(std::iter::repeat(other));
    let counts = compare(&buffer, 0, buffer.len(), page, wanted).map_err(|why| format!("{pages}: {why}"))?;
    Ok((on_full, format!("{pages} {counts}")))
}
