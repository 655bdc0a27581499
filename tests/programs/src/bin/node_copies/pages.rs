//! The copies on each kind of pages.

use std::sync::Arc;

use hostbuf::job::{Collective, Local, Reduce};
use hostbuf::register::{Access, Mlock};
use hostbuf::{HostBuffer, Pages, Proof, RankNode};
use hostbuf_os::cores::Cores;
use hostbuf_programs::checks::{Outcome, expect, text};
use hostbuf_programs::numa::sys_node::{free_pool_pages, with_memory};

use crate::contents::{Filled, sealed};

/// Returns the node to which this rank is bound.
pub fn own_node() -> Result<u32, String> {
    let node = std::env::var("HOSTBUF_NUMA_NODE").map_err(|_| "this rank is not bound to a node")?;
    node.parse().map_err(text)
}

/// Checks that each rank reads all pages with copies from its own node, by the pointers that it had
/// before, and that the memory is free again afterwards.
pub fn are_on_the_node_of_their_rank(group: &Local) -> Outcome {
    let mut seen = Vec::new();
    for pages in [Pages::Small, Pages::Transparent, Pages::Huge2M] {
        let pool = || with_memory()?.into_iter().map(free_pool_pages).collect::<Result<Vec<_>, _>>();
        let free = pool()?;
        group.barrier().map_err(text)?;
        let filled = Filled::new(group, pages)?;
        seen.push(check(group, &filled, pages).map_err(|why| format!("{pages}: {why}"))?);
        drop(filled);
        group.barrier().map_err(text)?;
        let left = pool()?;
        expect(left == free, format!("{free:?} huge pages were free, and now {left:?}"))?;
        group.barrier().map_err(text)?;
    }
    Ok(seen.join("; "))
}

/// Checks a buffer of the launcher with the sections `grid` and `halo`.
pub fn of_a_launched_buffer(group: &Local) -> Outcome {
    let buffer = HostBuffer::attach().map_err(text)?;
    let pages = buffer.pages();
    check(group, &Filled::of(group, buffer)?, pages)
}

/// Freezes a buffer, and checks where its pages are before and after.
fn check(group: &Local, filled: &Filled, pages: Pages) -> Outcome {
    let (own, nodes) = (own_node()?, with_memory()?);
    expect(filled.buffer.pages() == pages, format!("pages {}", filled.buffer.pages()))?;
    expect(filled.nodes() == nodes[..1], format!("before: a copy on the nodes {:?}", filled.nodes()))?;
    let (at, before) = (filled.buffer.as_ptr(), filled.sum()?);
    let frozen = filled.buffer.freeze(group).map_err(text)?;
    expect(frozen.proof() == &Proof::Sealed, format!("{:?}", frozen.proof()))?;
    let ranks = frozen.rank_nodes();
    let mine = ranks.get(group.rank()).ok_or("no node of this rank")?;
    expect(mine.node.0 == own && mine.is_local, format!("{mine:?} instead of node {own}"))?;
    let counts = filled.expect_pages(own, sealed())?;
    expect(filled.buffer.as_ptr() == at && filled.sum()? == before, "other bytes")?;
    let mut sums = [before, !before];
    group.all_reduce(&mut sums, Reduce::Min).map_err(text)?;
    expect(sums[0] == !sums[1], "the ranks read different bytes")?;
    let read: std::collections::BTreeSet<u32> = ranks.iter().map(|rank| rank.node.0).collect();
    expect(read.iter().eq(&nodes), format!("the ranks read from {read:?}"))?;
    expect(filled.nodes() == nodes, format!("after: a copy on the nodes {:?}", filled.nodes()))?;
    // A second freeze makes no other copies.
    let again = filled.buffer.freeze(group).map_err(text)?;
    expect(again.rank_nodes() == ranks, "other nodes after a second freeze")?;
    filled.expect_pages(own, sealed())?;
    Ok(format!("{pages} ({counts})"))
}

/// Prints the report of `hostbuf stat` of a frozen buffer of the launcher, after each rank has
/// registered a section. The variable HOSTBUF has the path of the command.
pub fn are_in_the_report(group: &Local) -> Outcome {
    let filled = Filled::of(group, HostBuffer::attach().map_err(text)?)?;
    filled.buffer.freeze(group).map_err(text)?;
    let device = Arc::new(Mlock::new());
    let grid = ..filled.buffer.section("grid").map_err(text)?.len();
    let registered = filled.buffer.register(&device, grid, Access::READ).map_err(text)?;
    group.barrier().map_err(text)?;
    if group.rank() == 0 {
        let command = std::env::var("HOSTBUF").map_err(text)?;
        let status = std::process::Command::new(command).arg("stat").status().map_err(text)?;
        expect(status.success(), status.to_string())?;
    }
    group.barrier().map_err(text)?;
    drop(registered);
    Ok("printed".into())
}

/// Checks that ranks that may run on all cores read from the first node, and that `rank_nodes`
/// marks them as not local.
pub fn are_shared_by_unbound_ranks(group: &Local) -> Outcome {
    let filled = Filled::new(group, Pages::Small)?;
    let frozen = filled.buffer.freeze(group).map_err(text)?;
    let first = with_memory()?[0];
    let all = frozen.rank_nodes().iter().all(|rank| rank.node.0 == first && !rank.is_local);
    expect(all && frozen.rank_nodes().len() == group.size(), format!("{:?}", frozen.rank_nodes()))?;
    filled.expect_pages(first, sealed())?;
    Ok(remote(frozen.rank_nodes()))
}

/// Checks that a rank whose cores span nodes reads from the node with most of them. The CPUs 0 and
/// 1 are on node 0, and 2 and 3 on node 1.
pub fn of_ranks_whose_cores_span_nodes(group: &Local) -> Outcome {
    let filled = Filled::new(group, Pages::Small)?;
    let (cpus, node, is_local) =
        [(&[0][..], 0, true), (&[1, 2, 3], 1, false), (&[2, 3], 1, true), (&[0, 1, 2, 3], 0, false)]
            [group.rank()];
    let before = Cores::own();
    Cores::from_numbers(cpus.iter().copied()).apply().map_err(text)?;
    let frozen = filled.buffer.freeze(group);
    before.apply().map_err(text)?;
    let ranks = frozen.map_err(text)?.rank_nodes().to_vec();
    let mine = ranks.get(group.rank()).ok_or("no node of this rank")?;
    expect((mine.node.0, mine.is_local) == (node, is_local), format!("{mine:?}"))?;
    filled.expect_pages(node, sealed())?;
    Ok(remote(&ranks))
}

/// Names the ranks that may read from a remote node.
fn remote(ranks: &[RankNode]) -> String {
    let remote = ranks.iter().filter(|rank| !rank.is_local);
    let each: Vec<String> =
        remote.map(|rank| format!("rank {} from node {}", rank.rank, rank.node)).collect();
    each.join(", ")
}

/// Checks that no device may write into copies, and that it may read them.
pub fn refuse_device_writes(group: &Local) -> Outcome {
    let filled = Filled::new(group, Pages::Small)?;
    filled.buffer.freeze(group).map_err(text)?;
    let device = Arc::new(Mlock::new());
    let error = filled.buffer.register(&device, .., Access::READ | Access::WRITE);
    let error = error.err().ok_or("a device may write into copies")?.to_string();
    expect(error.contains("frozen"), &error)?;
    let registered = filled.buffer.register(&device, .., Access::READ).map_err(text)?;
    drop(registered);
    Ok(error)
}
