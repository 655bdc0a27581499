//! The choice of the kind of pages for demands of [`Pages::Auto`].

use crate::demand::Demand;
use crate::pages::Pages;
use crate::placement::NodeSpace;
use crate::space::free_in_pool;

/// Resolves [`Pages::Auto`] for each of `demands` on this host now. Explicit demands of a pool come
/// first, then the others in their order. A demand with a placement gets pages of a pool only if
/// each of its nodes has them; `nodes` is the free memory of the nodes, if a demand has one.
#[must_use]
pub fn resolve_all(demands: &[Demand], nodes: Option<&NodeSpace>) -> Vec<Pages> {
    resolve_within(demands, &free_in_pool, nodes.cloned())
}

/// Resolves [`Pages::Auto`] for each of `demands` as if the pools were empty.
pub(crate) fn resolve_without_pools(demands: &[Demand]) -> Vec<Pages> {
    resolve_within(demands, &|_| 0, None)
}

/// Resolves the pages of `demands` for pools in which `free` returns the number of free bytes for a
/// page size.
fn resolve_within(demands: &[Demand], free: &dyn Fn(u64) -> u64, mut nodes: Option<NodeSpace>) -> Vec<Pages> {
    let explicit = |page: u64| -> u64 {
        let its = demands.iter().filter(|d| d.pages != Pages::Auto && d.pages.size() == page);
        its.filter(|d| d.pages != Pages::Transparent).map(|d| d.size.next_multiple_of(page)).sum()
    };
    let mut taken = [(2 << 20, explicit(2 << 20)), (1 << 30, explicit(1 << 30))];
    // The plan of a demand that cannot be met takes nothing; create_all reports it.
    let mut take_on_nodes = |demand: &Demand, pages| {
        nodes.as_mut().is_none_or(|space| {
            let mut rest = space.clone();
            let planned = demand.plan(pages, &mut rest).is_ok();
            if planned {
                *space = rest;
            }
            planned
        })
    };
    for demand in demands.iter().filter(|d| d.pages != Pages::Auto) {
        take_on_nodes(demand, demand.pages);
    }
    let mut one = |demand: &Demand| {
        if demand.pages != Pages::Auto {
            return demand.pages;
        }
        let mut pool_has = |pages: Pages| {
            let page = pages.size();
            let taken: u64 = taken.iter().filter(|(p, _)| *p == page).map(|(_, bytes)| bytes).sum();
            free(page) >= demand.size.next_multiple_of(page).saturating_add(taken)
                && take_on_nodes(demand, pages)
        };
        let pages = if demand.has_whole(1 << 30) && pool_has(Pages::Huge1G) {
            Pages::Huge1G
        } else if demand.size >= 2 << 20 && pool_has(Pages::Huge2M) {
            Pages::Huge2M
        } else {
            let pages = if demand.size >= 2 << 20 { Pages::Transparent } else { Pages::Small };
            take_on_nodes(demand, pages);
            pages
        };
        for (page, bytes) in taken.iter_mut().filter(|(page, _)| pages == pool_of(*page)) {
            *bytes += demand.size.next_multiple_of(*page);
        }
        pages
    };
    demands.iter().map(&mut one).collect()
}

fn pool_of(page: u64) -> Pages {
    if page == 1 << 30 { Pages::Huge1G } else { Pages::Huge2M }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::NodeMemory;
    use hostbuf_os::NodeId;

    #[test]
    fn automatic_pages_are_the_largest_that_the_pools_have() {
        const MIB: u64 = 1 << 20;
        const GIB: u64 = 1 << 30;
        // The number of bytes that are free on pages of 2 MiB and of 1 GiB.
        let resolved = |sizes: &[u64], free: [u64; 2]| {
            let demands: Vec<_> = sizes.iter().map(|&size| Demand::new(size, Pages::Auto)).collect();
            resolve_within(&demands, &|page| if page == GIB { free[1] } else { free[0] }, None)
        };
        assert_eq!(resolved(&[2 * GIB], [2 * GIB, 2 * GIB]), [Pages::Huge1G]);
        // Pages of 1 GiB are used only for whole GiB, and only if enough of them are free.
        assert_eq!(resolved(&[GIB + MIB], [2 * GIB, 2 * GIB]), [Pages::Huge2M]);
        assert_eq!(resolved(&[2 * GIB], [2 * GIB, GIB]), [Pages::Huge2M]);
        assert_eq!(resolved(&[2 * GIB], [2 * GIB - 1, GIB]), [Pages::Transparent]);
        assert_eq!(resolved(&[2 * MIB, 2 * MIB - 1], [GIB, 0]), [Pages::Huge2M, Pages::Small]);
        assert_eq!(resolved(&[2 * MIB], [0, 0]), [Pages::Transparent]);
        // Buffers share the pools, and each takes whole pages.
        assert_eq!(resolved(&[GIB, GIB], [0, GIB]), [Pages::Huge1G, Pages::Transparent]);
        assert_eq!(resolved(&[3 * MIB, 3 * MIB], [7 * MIB, 0]), [Pages::Huge2M, Pages::Transparent]);
    }
    #[test]
    fn a_pool_that_is_short_on_one_node_is_not_used_there() {
        const MIB: u64 = 1 << 20;
        let node =
            |node, pool: u64| NodeMemory { huge_2m: pool * MIB, ..NodeMemory::new(NodeId(node), 64 * MIB) };
        let space = NodeSpace::new(vec![node(0, 8), node(1, 2)]);
        let resolved = |placements: &[&str]| {
            let placed = |text: &&str| Demand::new(4 * MIB, Pages::Auto).placement(text.parse().unwrap());
            let demands: Vec<_> = placements.iter().map(placed).collect();
            resolve_within(&demands, &|page| if page == 2 * MIB { 10 * MIB } else { 0 }, Some(space.clone()))
        };
        assert_eq!(resolved(&["0", "1"]), [Pages::Huge2M, Pages::Transparent]);
        assert_eq!(resolved(&["interleave", "0", "0"]), [Pages::Huge2M, Pages::Huge2M, Pages::Transparent]);
    }
}
