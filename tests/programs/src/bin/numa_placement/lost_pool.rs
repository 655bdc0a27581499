//! A pool of huge pages from which another program takes pages meanwhile.

use hostbuf::segment::Segments;
use hostbuf::{BufferOptions, Pages};
use hostbuf_memory::memfd::{self, Backing};
use hostbuf_memory::populate::Workers;
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::BoundMemory;
use hostbuf_programs::numa::sys_node::{HUGE_PAGE, free_pool_pages, with_memory};

/// Checks that automatic pages are others if a pool lacks some when they are allocated, and that
/// pages of the pool that were requested are an error.
pub fn is_replaced() -> Outcome {
    let last = *with_memory()?.last().ok_or("no node")?;
    let free = free_pool_pages(last)?;
    let create = |pages| {
        let options = BufferOptions::new((free * HUGE_PAGE) as u64).pages(pages);
        Segments::create(1, &[options.numa(last.to_string().parse().map_err(text)?)]).map_err(text)
    };
    let taken = 2 * HUGE_PAGE;
    let lose_pool = || {
        let file = memfd::create("other", taken as u64, Backing::Hugetlb(HUGE_PAGE as u64)).map_err(text)?;
        let memory = BoundMemory::shared(&file, taken)?;
        memory.take(0, taken, last)?;
        Ok::<_, String>(memory)
    };
    let mut automatic = create(Pages::Auto)?;
    let other = lose_pool()?;
    automatic.populate(Workers::of_this_process(), &mut |_| {}).map_err(text)?;
    let left = free_pool_pages(last)?;
    expect(left == free - 2, format!("{left} of {free} huge pages are free"))?;
    drop((automatic, other));
    let mut requested = create(Pages::Huge2M)?;
    let _other = lose_pool()?;
    let error = requested.populate(Workers::of_this_process(), &mut |_| {}).err();
    let error = error.ok_or("more huge pages than the node has")?.to_string();
    expect(error.contains(&format!("node {last}'s reserved pool of pages of 2 MiB")), &error)?;
    Ok(error)
}
