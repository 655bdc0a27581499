//! The rate at which the cores of a NUMA node make a sealed copy of a buffer, against a plain copy
//! by the same cores.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use hostbuf::{NodeId, Pages, Placement};
use hostbuf_memory::placement::HostNodes;
use hostbuf_memory::populate::{PageRequest, populate_placed};
use hostbuf_memory::{CreatedFile, Demand, FileMapping, NodeCopy, create_all};
use hostbuf_os::cores::Cores;
use hostbuf_os::{node_memory, on_cores};
use hostbuf_topology::Topology;

use crate::fixture::BenchResult;
use crate::sample::{note, sample, timed, turns, unmeasured};

/// The number of bytes that a thread copies at a time.
const PART: usize = 4 << 20;
const HUGE_PAGE: usize = 2 << 20;

/// Measures copies to node 0 of this host with the cores that node 0 has in the recorded tree at
/// `root`, so that a host with one node stands in for two.
pub(crate) fn compare(root: &str, bytes: usize, repeats: usize) -> BenchResult {
    let nodes = HostNodes::from(Topology::recorded(Path::new(root))?.nodes());
    let cores = nodes.cores(NodeId(0), &Cores::own());
    for (pages, name) in [(Pages::Small, "4k"), (Pages::Transparent, "thp"), (Pages::Huge2M, "2m")] {
        let key = format!("node-copy-{name}");
        if pages == Pages::Huge2M && node_memory::free_in_pool(NodeId(0), 2 << 20) < 2 * bytes as u64 {
            unmeasured(&key, "the pool of node 0 has too few pages of 2 MiB");
            continue;
        }
        note(&key, &format!("{} cores of the node, {bytes} bytes", cores.count()));
        let original = created(&nodes, bytes, pages)?;
        let request = PageRequest::new(&original.plan, original.pages);
        populate_placed(original.file.as_fd(), request, &|_| cores, &mut |_| {})?;
        let mapping = mapped(original.file.as_fd(), bytes, pages)?;
        for (number, part) in slice(&mapping).chunks_mut(8).enumerate() {
            part.copy_from_slice(&(number as u64 | 1).to_ne_bytes()[..part.len()]);
        }
        let source: &[u8] = slice(&mapping);
        for repeat in 0..=repeats {
            let rate = |seconds: f64| bytes as f64 / seconds;
            for turn in turns(repeat) {
                let (side, whole, copied) = if turn == 0 {
                    let copy = NodeCopy {
                        name: "bench".into(),
                        label: "the copy".into(),
                        sources: vec![source],
                        pages,
                        node: NodeId(0),
                        cores,
                        host: &nodes,
                    };
                    let (took, made) = timed(|| copy.make());
                    ("ours", took, made?.copy)
                } else {
                    let file = created(&nodes, bytes, pages)?;
                    let into = mapped(file.file.as_fd(), bytes, pages)?;
                    let (whole, ()) = timed(|| plain_copy(&cores, slice(&into), source));
                    let (copied, ()) = timed(|| plain_copy(&cores, slice(&into), source));
                    drop(into);
                    let into = mapped(file.file.as_fd(), bytes, pages)?;
                    let (unmapped, ()) = timed(|| plain_copy_into_unmapped(&cores, &into, source));
                    if repeat > 0 {
                        sample(&format!("{key}-unmapped"), "theirs", rate(unmapped.as_secs_f64()));
                    }
                    ("theirs", whole, copied)
                };
                if repeat > 0 {
                    sample(&key, side, rate(whole.as_secs_f64()));
                    sample(&format!("{key}-copied"), side, rate(copied.as_secs_f64()));
                    if side == "ours" {
                        sample(&format!("{key}-unmapped"), side, rate(copied.as_secs_f64()));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Copies by `memcpy`.
fn plain_copy(cores: &Cores, into: &mut [u8], from: &[u8]) {
    let parts = into.chunks_mut(PART).zip(from.chunks(PART)).collect();
    on_cores(cores, parts, |(into, from): (&mut [u8], &[u8])| into.copy_from_slice(from));
}

/// Copies by `memcpy` into a file that has pages, of which none is mapped yet: each part is mapped,
/// copied and unmapped by one thread.
fn plain_copy_into_unmapped(cores: &Cores, mapping: &FileMapping, from: &[u8]) {
    let parts = slice(mapping).chunks_mut(PART).zip(from.chunks(PART)).enumerate().collect();
    on_cores(cores, parts, |(number, (into, from)): (usize, (&mut [u8], &[u8]))| {
        let (offset, length) = ((number * PART) as u64, from.len() as u64);
        // Without the advice, before Linux 5.14, the stores fault.
        let _ = mapping.advise(offset, length, libc::MADV_POPULATE_READ);
        into.copy_from_slice(from);
        let _ = mapping.advise(offset, length, libc::MADV_DONTNEED);
    });
}

/// Creates a memory file without pages.
fn created(nodes: &HostNodes, bytes: usize, pages: Pages) -> Result<CreatedFile, Box<dyn std::error::Error>> {
    let demand = Demand::new(bytes as u64, pages).placement(Placement::Node(NodeId(0)));
    let files = create_all(&[demand], &["bench".to_owned()], Some(nodes))?;
    Ok(files.into_iter().next().ok_or("no file")?)
}

fn mapped(
    file: BorrowedFd<'_>,
    bytes: usize,
    pages: Pages,
) -> Result<FileMapping, Box<dyn std::error::Error>> {
    let mapping = FileMapping::new(file, 0, bytes as u64, HUGE_PAGE).map_err(|why| format!("{why:?}"))?;
    let advice = if pages == Pages::Transparent { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    if pages != Pages::Huge2M {
        // A kernel without transparent huge pages refuses the advice.
        let _ = mapping.advise(0, bytes as u64, advice);
    }
    Ok(mapping)
}

#[allow(unsafe_code, reason = "makes a slice of a mapped memory file")]
#[allow(clippy::mut_from_ref, reason = "the mapping is shared memory, which one slice uses at a time")]
fn slice(mapping: &FileMapping) -> &mut [u8] {
    // SAFETY: mapped for reading and writing as long as the slice lives, and no other process knows
    // the file. No two slices of one mapping are used at once.
    unsafe { std::slice::from_raw_parts_mut(mapping.start() as *mut u8, mapping.len() as usize) }
}
