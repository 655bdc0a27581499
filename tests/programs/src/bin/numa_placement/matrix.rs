//! Every kind of pages with every placement. The nodes of all pages are compared with a list that
//! this program makes page by page, and the counts with those that the buffer reports.

#![allow(unsafe_code, reason = "reads a byte of every page of a buffer")]

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer, Pages, Section};
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::page_nodes::{count_by_node, describe, page_nodes};
use hostbuf_programs::numa::sys_node::{HUGE_PAGE, PAGE, free_pool_pages, with_memory};

/// The length of a buffer in huge pages: no multiple of the number of nodes or of a sum of weights.
const HUGE_PAGES: usize = 7;

/// A placement and the nodes of one turn.
type Turn = (String, Vec<u32>);

/// Returns the placements to try, and for each the nodes of the pages of one turn.
fn placements() -> Result<Vec<Turn>, String> {
    let nodes = with_memory()?;
    let (first, last) = (nodes[0], *nodes.last().ok_or("no node")?);
    Ok(vec![
        (first.to_string(), vec![first]),
        (last.to_string(), vec![last]),
        // The last node has memory for all. For one that has not, see `spill`.
        (format!("{last},{first}"), vec![last]),
        ("interleave".into(), nodes.clone()),
        (format!("interleave:{last},{first}"), vec![last, first]),
        (format!("interleave:{first},{last}/3,1"), vec![first, first, first, last]),
        (format!("interleave:{last},{first}/1,2"), vec![last, first, first]),
    ])
}

/// Checks buffers with each placement, on pages of this kind.
pub fn on(pages: Pages) -> Outcome {
    let page = if pages == Pages::Small { PAGE } else { HUGE_PAGE };
    let mut seen = Vec::new();
    for (placement, turn) in placements()? {
        let options = BufferOptions::new((HUGE_PAGES * HUGE_PAGE) as u64)
            .pages(pages)
            .numa(placement.parse().map_err(text)?);
        let buffer = HostBuffer::allocate(&Solo, options).map_err(|error| format!("{placement}: {error}"))?;
        let huge = if pages == Pages::Small { 0 } else { buffer.len() as u64 };
        let obtained = (buffer.pages(), buffer.huge_bytes());
        expect(obtained == (pages, huge), format!("{placement}: obtained {obtained:?}"))?;
        let wanted = turn.iter().copied().cycle();
        let counts =
            compare(&buffer, 0, buffer.len(), page, wanted).map_err(|why| format!("{placement}: {why}"))?;
        seen.push(format!("{placement} ({counts})"));
    }
    Ok(seen.join("; "))
}

/// Checks pages of this kind while the kernel gives huge pages to all memory files.
pub fn of_huge_files(pages: Pages) -> Outcome {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let write = |value| std::fs::write(SETTING, value).map_err(|error| format!("{SETTING}: {error}"));
    write("always")?;
    let outcome = on(pages);
    write("never")?;
    outcome
}

/// Compares the nodes of all small pages of a part of a buffer with `wanted`, the nodes of its
/// pages of `page` bytes, and with the counts of the section that begins there.
pub fn compare(
    buffer: &HostBuffer,
    offset: usize,
    length: usize,
    page: usize,
    wanted: impl Iterator<Item = u32>,
) -> Outcome {
    let begin = buffer.as_ptr().as_ptr() as usize + offset;
    for at in (begin..begin + length).step_by(PAGE) {
        // SAFETY: inside the buffer, which is mapped and readable.
        unsafe { (at as *const u8).read_volatile() };
    }
    let found = page_nodes(0, begin, length, PAGE).map_err(text)?;
    let wanted: Vec<Option<u32>> =
        wanted.flat_map(|node| std::iter::repeat_n(Some(node), page / PAGE)).take(length / PAGE).collect();
    let counts = count_by_node(&found);
    let differ = found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count();
    let all = found.len() == length / PAGE && wanted.len() == found.len();
    expect(all && differ == 0, format!("{differ} of {} pages differ: {}", found.len(), describe(&counts)))?;
    let section = buffer.sections().find(|section| section.offset == offset as u64).ok_or("no section")?;
    let reported: Vec<_> = section
        .nodes
        .iter()
        .filter(|on| on.requested == on.obtained)
        .map(|on| (Some(on.node.0), on.obtained as usize / PAGE))
        .collect();
    let reported = reported.into_iter().collect();
    expect(counts == reported, format!("{} instead of {}", describe(&reported), describe(&counts)))?;
    Ok(describe(&counts))
}

/// Checks several sections of one buffer, and the rest of it.
pub fn sections() -> Outcome {
    let nodes = with_memory()?;
    let (first, last) = (nodes[0], *nodes.last().ok_or("no node")?);
    let huge = HUGE_PAGE as u64;
    let options = BufferOptions::new(8 * huge)
        .pages(Pages::Transparent)
        .numa(last.to_string().parse().map_err(text)?)
        .section(Section::new("grid", 2 * huge).numa(first.to_string().parse().map_err(text)?))
        .section(Section::new("halo", huge + 1))
        .section(Section::new("all", 3 * huge).numa("interleave".parse().map_err(text)?));
    let buffer = HostBuffer::allocate(&Solo, options).map_err(text)?;
    let start = buffer.as_ptr().as_ptr() as usize;
    let mut seen = Vec::new();
    for (name, pages, turn) in [("grid", 0..2, vec![first]), ("halo", 2..4, vec![last]), ("all", 4..7, nodes)]
    {
        let span = buffer.section(name).map_err(text)?;
        let (offset, length) = (pages.start * HUGE_PAGE, pages.len() * HUGE_PAGE);
        let well = span.start() == start + offset && span.len() == length;
        expect(well, format!("section {name} is {span:?}"))?;
        let counts = compare(&buffer, offset, length, HUGE_PAGE, turn.into_iter().cycle());
        seen.push(format!("{name} ({})", counts.map_err(|why| format!("{name}: {why}"))?));
    }
    compare(&buffer, 7 * HUGE_PAGE, HUGE_PAGE, HUGE_PAGE, std::iter::repeat(last))?;
    Ok(seen.join("; "))
}

/// Checks that pages of a pool are used only if each node of the placement has them.
pub fn automatic() -> Outcome {
    let nodes = with_memory()?;
    let (first, last) = (nodes[0], *nodes.last().ok_or("no node")?);
    let free = free_pool_pages(last)?;
    let pages_of = |pages: usize| {
        let options =
            BufferOptions::new((pages * HUGE_PAGE) as u64).numa(last.to_string().parse().map_err(text)?);
        let buffer = HostBuffer::allocate(&Solo, options).map_err(text)?;
        compare(&buffer, 0, buffer.len(), HUGE_PAGE, std::iter::repeat(last))?;
        Ok::<Pages, String>(buffer.pages())
    };
    let (enough, short) = (pages_of(free)?, pages_of(free + 1)?);
    let host = free_pool_pages(first)? + free;
    expect(host > free, "the other node has no pages")?;
    let well = (enough, short) == (Pages::Huge2M, Pages::Transparent);
    expect(well, format!("{free} pages: {enough}, one more: {short}"))?;
    Ok(format!("{free} pages of the pool: {enough}, one more: {short}"))
}
