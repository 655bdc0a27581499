//! The contents of a buffer with copies, and where its pages are.

#![allow(unsafe_code, reason = "reads and fills sections by their address")]

use std::fs::File;
use std::os::fd::AsFd;

use hostbuf::job::{Collective, Local};
use hostbuf::{BufferOptions, HostBuffer, List, NodeId, Pages, Placement, Section, Span};
use hostbuf_memory::{Seals, memfd};
use hostbuf_programs::checks::{expect, text};
use hostbuf_programs::numa::page_nodes::{count_by_node, describe, page_nodes};
use hostbuf_programs::numa::sys_node::{HUGE_PAGE, PAGE};

/// The length of the section with a placement of its own in the middle of the buffer.
const HALO: usize = HUGE_PAGE;

/// A list that holds other lists by pointer.
type NestedLists = List<'static, List<'static, u64>>;

/// A filled buffer with two parts that get copies, and one between them that gets none.
pub struct Filled {
    pub buffer: HostBuffer,
    table: &'static NestedLists,
}

impl Filled {
    /// Allocates a buffer of four huge pages, and fills it with a list of lists, linked by
    /// pointers.
    pub fn new(group: &Local, pages: Pages) -> Result<Filled, String> {
        Filled::of_huge_pages(4, group, pages)
    }

    /// Allocates a buffer of as many huge pages as `count`, and fills it as [`new`](Filled::new).
    pub fn of_huge_pages(count: u64, group: &Local, pages: Pages) -> Result<Filled, String> {
        let huge = HUGE_PAGE as u64;
        let options = BufferOptions::new(count * huge)
            .pages(pages)
            .numa(Placement::Copies)
            .section(Section::new("grid", huge))
            .section(Section::new("halo", HALO as u64).numa(Placement::Node(NodeId(0))));
        Filled::of(group, HostBuffer::allocate(group, options).map_err(text)?)
    }

    /// Fills a buffer with the sections `grid` and `halo`.
    pub fn of(group: &Local, buffer: HostBuffer) -> Result<Filled, String> {
        let table = buffer.initialize(|arena| {
            for name in ["grid", "halo"] {
                fill(buffer.section(name)?);
            }
            let mut table = List::new_in(arena);
            for length in 0..300u64 {
                let mut list = List::new_in(arena);
                list.extend((0..length).map(|number| number * length));
                table.push(list);
            }
            arena.place(table)
        });
        let table = std::ptr::from_ref(table.map_err(text)?).cast::<NestedLists>();
        group.barrier().map_err(text)?;
        // SAFETY: the buffer lives as long as this value, which alone uses the reference.
        Ok(Filled { table: unsafe { &*table }, buffer })
    }

    /// Reads everything through the pointers and the sections. Returns the sum.
    pub fn sum(&self) -> Result<u64, String> {
        let mut sum =
            self.table.iter().flat_map(|list| list.iter()).fold(0, |sum: u64, n| sum.wrapping_add(*n));
        for name in ["grid", "halo"] {
            let words = words(self.buffer.section(name).map_err(text)?);
            sum = words.iter().fold(sum, |sum, word| sum.rotate_left(1).wrapping_add(*word));
        }
        Ok(sum)
    }

    /// Checks that all pages are on `node`, except those of the section `halo`, which are on node
    /// 0, and that all have `seals`.
    pub fn expect_pages(&self, node: u32, seals: Seals) -> Result<String, String> {
        let begin = self.buffer.as_ptr().as_ptr() as usize;
        let halo = self.buffer.section("halo").map_err(text)?;
        let mut seen = Vec::new();
        for (from, to, expected) in [
            (begin, halo.start(), node),
            (halo.start(), halo.end(), 0),
            (halo.end(), begin + self.buffer.len(), node),
        ] {
            touch(from, to);
            let counts = count_by_node(&page_nodes(0, from, to - from, PAGE).map_err(text)?);
            let found = seals_at(from)?;
            let only = counts.len() == 1 && counts.contains_key(&Some(expected));
            let what =
                format!("{} of {from:#x}..{to:#x}, expected node {expected}, {found:?}", describe(&counts));
            expect(only && found.contains(seals), what)?;
            seen.push(describe(&counts));
        }
        Ok(seen.join(", "))
    }

    /// Returns the nodes of the section `grid` that have its bytes.
    pub fn nodes(&self) -> Vec<u32> {
        let section = self.buffer.sections().next().expect("the first section");
        section.nodes.iter().filter(|on| on.obtained == section.length).map(|on| on.node.0).collect()
    }
}

/// Fills a section with numbers that are not zero.
fn fill(span: Span) {
    // SAFETY: in the buffer, aligned to a page, and only the filler uses it.
    let words = unsafe { std::slice::from_raw_parts_mut(span.start() as *mut u64, span.len() / 8) };
    for (i, word) in words.iter_mut().enumerate() {
        *word = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

fn words(span: Span) -> &'static [u64] {
    // SAFETY: in the buffer, which the caller keeps, aligned to a page, and nothing writes to it.
    unsafe { std::slice::from_raw_parts(span.start() as *const u64, span.len() / 8) }
}

/// Makes all pages a part of the page table.
fn touch(from: usize, to: usize) {
    for at in (from..to).step_by(PAGE) {
        // SAFETY: inside the buffer, which is mapped and readable.
        unsafe { (at as *const u8).read_volatile() };
    }
}

/// Returns the seals of the memory file that is mapped at `address`.
pub fn seals_at(address: usize) -> Result<Seals, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(text)?;
    let range = maps.lines().filter_map(|line| line.split_once(' ').map(|(range, _)| range)).find(|range| {
        let bound = |text: &str| usize::from_str_radix(text, 16).unwrap_or(0);
        range.split_once('-').is_some_and(|(from, to)| (bound(from)..bound(to)).contains(&address))
    });
    let range = range.ok_or_else(|| format!("nothing is mapped at {address:#x}"))?;
    let file = File::open(format!("/proc/self/map_files/{range}")).map_err(text)?;
    memfd::seals(file.as_fd()).map_err(text)
}

/// Returns the seals of a frozen buffer and of its copies.
pub fn sealed() -> Seals {
    Seals::WRITE | Seals::SEAL
}
