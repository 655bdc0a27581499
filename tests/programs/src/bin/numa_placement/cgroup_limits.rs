//! Limits of cgroups on the memory of all nodes together.

use hostbuf::job::Solo;
use hostbuf::segment::Segments;
use hostbuf::{BufferOptions, HostBuffer, Pages};
use hostbuf_memory::populate::Workers;
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::sys_node::{HUGE_PAGE, with_memory};

use crate::own_group::OwnGroup;

/// Checks that errors name the cgroup whose limit is the cause, and not the node.
pub fn are_the_cause() -> Outcome {
    let last = with_memory()?.last().ok_or("no node")?.to_string();
    let options = |length: usize, pages| {
        let options = BufferOptions::new(length as u64).pages(pages);
        Ok::<_, String>(options.numa(last.parse().map_err(text)?))
    };
    let blames = |error: String, file: &str| {
        let well = error.contains("cgroup") && error.contains(file) && !error.contains("node");
        expect(well, format!("{file}: {error}")).map(|()| error)
    };
    let mut errors = Vec::new();
    let group = OwnGroup::join("hugetlb")?;
    let mut segments = Segments::create(1, &[options(4 * HUGE_PAGE, Pages::Huge2M)?]).map_err(text)?;
    // The pages are reserved already, and allocated after the limit was lowered.
    group.set("hugetlb.2MB.max", &(2 * HUGE_PAGE).to_string())?;
    let populated = segments.populate(Workers::of_this_process(), &mut |_| {});
    let error = populated.err().ok_or("huge pages beyond the limit")?.to_string();
    errors.push(blames(error, "hugetlb.2MB.max")?);
    drop((segments, group));
    for file in ["hugetlb.2MB.max", "hugetlb.2MB.rsvd.max"] {
        let group = OwnGroup::join("hugetlb")?;
        group.set(file, &(2 * HUGE_PAGE).to_string())?;
        let refused = HostBuffer::allocate(&Solo, options(4 * HUGE_PAGE, Pages::Huge2M)?);
        let error = refused.err().ok_or("huge pages beyond the limit")?.to_string();
        errors.push(blames(error, file)?);
        let buffer = HostBuffer::allocate(&Solo, options(4 * HUGE_PAGE, Pages::Auto)?).map_err(text)?;
        expect(buffer.pages() != Pages::Huge2M, "automatic pages are beyond the limit")?;
    }
    let group = OwnGroup::join("memory")?;
    for pages in [Pages::Small, Pages::Transparent] {
        let mut segments = Segments::create(1, &[options(32 << 20, pages)?]).map_err(text)?;
        let limit = group.number("memory.current", "")? + (16 << 20);
        group.set("memory.max", &limit.to_string())?;
        let populated = segments.populate(Workers::of_this_process(), &mut |_| {});
        let error = populated.err().ok_or("memory beyond the limit")?.to_string();
        errors.push(blames(error, "memory cgroup")?);
        drop(segments);
        group.set("memory.max", "max")?;
    }
    Ok(errors.join("; "))
}
