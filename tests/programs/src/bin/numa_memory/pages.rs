//! Checks of the nodes of pages.

#![allow(unsafe_code, reason = "forks a child that a check looks into")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::bound_memory::BoundMemory;
use hostbuf_programs::numa::file_pages::file_page_nodes;
use hostbuf_programs::numa::page_nodes::{count_by_node, describe, page_nodes};
use hostbuf_programs::numa::sys_node::{HUGE_PAGE, PAGE, free_pool_pages, with_memory};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::waitpid;
use nix::unistd::{self, ForkResult};

fn memory_file(length: usize, flags: MFdFlags) -> Result<File, String> {
    let file = File::from(memfd_create("pages", flags).map_err(text)?);
    file.set_len(length as u64).map_err(text)?;
    Ok(file)
}

/// Takes pages of `page` bytes on the nodes with memory in turn, each node one page more often than
/// the one before. Returns the node of each page.
fn take_pattern(memory: &BoundMemory, page: usize) -> Result<Vec<Option<u32>>, String> {
    let nodes = with_memory()?;
    let order = nodes.iter().enumerate().flat_map(|(i, &node)| std::iter::repeat_n(node, i + 1));
    let pattern: Vec<u32> = order.cycle().take(memory.len() / page).collect();
    for (index, &node) in pattern.iter().enumerate() {
        memory.take(index * page, page, node)?;
    }
    Ok(pattern.into_iter().map(Some).collect())
}

fn compare(found: &[Option<u32>], wanted: &[Option<u32>]) -> Outcome {
    let differ = found.iter().zip(wanted).filter(|(found, wanted)| found != wanted).count();
    let counts = describe(&count_by_node(found));
    expect(found.len() == wanted.len() && differ == 0, format!("{differ} pages differ: {counts}"))?;
    Ok(counts)
}

/// Compares the counts with those of numa_maps, which the kernel collects in another way.
fn compare_with_maps(memory: &BoundMemory, found: &[Option<u32>]) -> Result<(), String> {
    let maps = fs::read_to_string("/proc/self/numa_maps").map_err(text)?;
    let begin = memory.address();
    let mut counts = BTreeMap::new();
    for line in maps.lines() {
        let mut words = line.split(' ');
        let at = usize::from_str_radix(words.next().unwrap_or_default(), 16).map_err(text)?;
        if !(begin..begin + memory.len()).contains(&at) {
            continue;
        }
        for (node, pages) in words.filter_map(|word| word.strip_prefix('N')?.split_once('=')) {
            *counts.entry(Some(node.parse().map_err(text)?)).or_default() +=
                pages.parse::<usize>().map_err(text)?;
        }
    }
    expect(counts == count_by_node(found), format!("numa_maps says {}", describe(&counts)))
}

/// Checks single pages of private memory, of which one call of move_pages does not ask for all.
pub fn private() -> Outcome {
    let memory = BoundMemory::private(600 * PAGE)?;
    let wanted = take_pattern(&memory, PAGE)?;
    let found = page_nodes(0, memory.address(), memory.len(), PAGE).map_err(text)?;
    compare_with_maps(&memory, &found)?;
    compare(&found, &wanted)?;
    let memory = BoundMemory::private(5000 * PAGE)?;
    let last = *with_memory()?.last().ok_or("no node")?;
    memory.take(4000 * PAGE, 500 * PAGE, last)?;
    let found = page_nodes(0, memory.address(), memory.len(), PAGE).map_err(text)?;
    let wanted: Vec<_> = (0..5000).map(|page| (4000..4500).contains(&page).then_some(last)).collect();
    compare(&found, &wanted)
}

pub fn of_file() -> Outcome {
    let file = memory_file(600 * PAGE, MFdFlags::empty())?;
    let memory = BoundMemory::shared(&file, 600 * PAGE)?;
    let wanted = take_pattern(&memory, PAGE)?;
    drop(memory);
    compare(&file_page_nodes(&file, PAGE).map_err(text)?, &wanted)
}

/// Checks that the question does not allocate the pages that a file lacks.
pub fn holes() -> Outcome {
    let file = memory_file(64 * PAGE, MFdFlags::empty())?;
    let memory = BoundMemory::shared(&file, 64 * PAGE)?;
    let last = *with_memory()?.last().ok_or("no node")?;
    memory.take(3 * PAGE, 5 * PAGE, last)?;
    memory.take(20 * PAGE, PAGE, last)?;
    let before = file.metadata().map_err(text)?.blocks();
    let found = file_page_nodes(&file, PAGE).map_err(text)?;
    let after = file.metadata().map_err(text)?.blocks();
    expect(before == after && before == 6 * 8, format!("{before} blocks, then {after}"))?;
    let wanted: Vec<_> = (0..64).map(|page| ((3..8).contains(&page) || page == 20).then_some(last)).collect();
    compare(&found, &wanted)
}

/// Checks pages that were allocated and never written.
pub fn allocated() -> Outcome {
    let file = memory_file(16 * PAGE, MFdFlags::empty())?;
    fallocate(&file, FallocateFlags::empty(), 0, 16 * PAGE as i64).map_err(text)?;
    let found = file_page_nodes(&file, PAGE).map_err(text)?;
    expect(found.len() == 16 && found.iter().all(Option::is_some), format!("{found:?}"))?;
    Ok(describe(&count_by_node(&found)))
}

/// Checks transparent huge pages, each made from one small page by MADV_COLLAPSE: it takes the node
/// of that page.
pub fn collapsed() -> Outcome {
    const EXTENTS: usize = 6;
    let file = memory_file(EXTENTS * HUGE_PAGE, MFdFlags::empty())?;
    let nodes = with_memory()?;
    let order = || nodes.iter().copied().cycle().take(EXTENTS);
    let memory = BoundMemory::shared(&file, EXTENTS * HUGE_PAGE)?;
    for (extent, node) in order().enumerate() {
        memory.take(extent * HUGE_PAGE, PAGE, node)?;
    }
    // Binding has split that mapping, and a huge page must lie in one.
    drop(memory);
    BoundMemory::shared(&file, EXTENTS * HUGE_PAGE)?.collapse()?;
    let found = file_page_nodes(&file, PAGE).map_err(text)?;
    let wanted: Vec<_> = order().flat_map(|node| std::iter::repeat_n(Some(node), HUGE_PAGE / PAGE)).collect();
    compare(&found, &wanted)
}

/// Checks pages of the pools, and that each is taken from the pool of its node.
pub fn of_pool() -> Outcome {
    let nodes = with_memory()?;
    let free = || nodes.iter().map(|&node| free_pool_pages(node)).collect::<Result<Vec<_>, _>>();
    let (before, last) = (free()?, *nodes.last().ok_or("no node")?);
    let file = memory_file(3 * HUGE_PAGE, MFdFlags::MFD_HUGETLB)?;
    let memory = BoundMemory::shared(&file, 3 * HUGE_PAGE)?;
    memory.take(0, HUGE_PAGE, last)?;
    let refused = file_page_nodes(&file, HUGE_PAGE);
    let well = refused.is_err_and(|error| error.to_string() == "the file has 2097152 of its 6291456 bytes");
    expect(well, "a file with holes was not refused")?;
    memory.take(HUGE_PAGE, HUGE_PAGE, nodes[0])?;
    memory.take(2 * HUGE_PAGE, HUGE_PAGE, last)?;
    let during = free()?;
    let mut wanted = before.clone();
    wanted[0] -= 1;
    *wanted.last_mut().ok_or("no node")? -= 2;
    expect(during == wanted, format!("free pages: {before:?}, then {during:?}"))?;
    let found = file_page_nodes(&file, HUGE_PAGE).map_err(text)?;
    let seen = compare(&found, &[Some(last), Some(nodes[0]), Some(last)])?;
    // Each small part of a huge page is on its node.
    let parts = file_page_nodes(&file, PAGE).map_err(text)?;
    let wanted: Vec<_> = found.iter().flat_map(|&node| std::iter::repeat_n(node, HUGE_PAGE / PAGE)).collect();
    compare(&parts, &wanted)?;
    drop((memory, file));
    let after = free()?;
    expect(after == before, format!("free pages: {before:?}, at the end {after:?}"))?;
    Ok(seen)
}

/// Checks the pages of another process, and those of its file, by the program `page_nodes`.
pub fn of_other_process() -> Outcome {
    let nodes = with_memory()?;
    let (first, last) = (nodes[0], *nodes.last().ok_or("no node")?);
    let file = memory_file(4 * PAGE, MFdFlags::empty())?;
    let memory = BoundMemory::shared(&file, 4 * PAGE)?;
    memory.take(0, PAGE, first)?;
    memory.take(PAGE, 2 * PAGE, last)?;
    let (mut ready, told) = pipe()?;
    // The child ends when this process closes the other end.
    let (mut end, alive) = pipe()?;
    // SAFETY: this process has one thread, so the child may call anything.
    let child = match unsafe { unistd::fork() }.map_err(text)? {
        ForkResult::Child => {
            drop(alive);
            let in_child = || -> Result<(), String> {
                // A page of its own node, in a mapping that the parent does not have.
                let private = BoundMemory::private(2 * PAGE)?;
                private.take(PAGE, PAGE, last)?;
                let mut told = File::from(told);
                writeln!(told, "{:x} {:x}", private.address(), memory.address()).map_err(text)?;
                drop(told);
                end.read(&mut [0]).map_err(text)?;
                Ok(())
            };
            // SAFETY: ends the child without the parent's destructors.
            unsafe { libc::_exit(i32::from(in_child().is_err())) }
        }
        ForkResult::Parent { child } => child,
    };
    drop((told, end));
    let mut said = String::new();
    ready.read_to_string(&mut said).map_err(text)?;
    let (private, shared) = said.trim_end().split_once(' ').ok_or("the child failed")?;
    let ask = |words: &[&str]| -> Result<String, String> {
        let own = std::env::current_exe().map_err(text)?;
        let output =
            Command::new(own.with_file_name("page_nodes")).arg(child.to_string()).args(words).output();
        let output = output.map_err(text)?;
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        expect(output.status.success(), err)?;
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    };
    let seen = ask(&["range", private, "8192"])?;
    expect(seen == format!("node {last}: 1, none: 1"), &seen)?;
    let descriptor = file.as_raw_fd().to_string();
    let of_file = ask(&["file", &descriptor])?;
    expect(of_file == format!("node {first}: 1, node {last}: 2, none: 1"), &of_file)?;
    // Forking does not copy the page table of shared memory, so the child has no page there.
    let of_mapping = ask(&["range", shared, "16384", "4096"])?;
    expect(of_mapping == "none: 4", &of_mapping)?;
    drop(alive);
    waitpid(child, None).map_err(text)?;
    Ok(of_file)
}

fn pipe() -> Result<(File, OwnedFd), String> {
    let (read, write) = unistd::pipe().map_err(text)?;
    Ok((File::from(read), write))
}
