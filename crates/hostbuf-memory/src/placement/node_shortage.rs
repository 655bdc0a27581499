//! A placement that is larger than the free memory of its nodes.

use hostbuf_os::{Bytes, NodeId, process};

use crate::error::{Error, NoSpace};
use crate::pages::Pages;
use crate::placement::request::Placement;
use crate::placement::{name_nodes, plan::NodePattern};

/// The pages of a placement, and the free pages of its nodes.
pub(super) struct NodeShortage<'a> {
    /// The part of the request, such as `section "grid"`, or nothing.
    pub(super) part: &'a str,
    pub(super) placement: &'a Placement,
    pub(super) pages: Pages,
    /// The number of requested pages.
    pub(super) count: u64,
    /// The nodes of the pages.
    pub(super) pattern: &'a NodePattern,
    /// The nodes of the placement with the number of free pages of each.
    pub(super) free: Vec<(NodeId, u64)>,
}

impl NodeShortage<'_> {
    /// Returns the largest number of pages for which the placement can be had.
    fn largest(&self) -> u64 {
        match self.pattern {
            NodePattern::Blocks(_) => self.free.iter().map(|(_, free)| free).sum(),
            NodePattern::Copies(_) => self.free.iter().map(|(_, free)| *free).min().unwrap_or(0),
            NodePattern::Turn(runs) => {
                let turns = runs.iter().map(|&(node, weight)| self.free_on(node) / weight).min().unwrap_or(0);
                let whole: u64 = runs.iter().map(|(_, weight)| turns * weight).sum();
                let mut last = 0;
                for &(node, weight) in runs {
                    let more = weight.min(self.free_on(node) - turns * weight);
                    last += more;
                    if more < weight {
                        break;
                    }
                }
                whole + last
            }
        }
    }

    /// Returns the nodes that limit the size.
    fn limiting(&self) -> Vec<NodeId> {
        let runs = match self.pattern {
            NodePattern::Blocks(_) => return self.free.iter().map(|(node, _)| *node).collect(),
            NodePattern::Copies(_) => return self.lacking().into_iter().map(|(node, _)| node).collect(),
            NodePattern::Turn(runs) => runs,
        };
        // One page more would be on this node.
        let next = self.largest();
        let on_next = |&&(node, _): &&(NodeId, u64)| {
            self.pattern.counts(next + 1).contains(&(node, self.free_on(node) + 1))
        };
        runs.iter().find(on_next).map(|(node, _)| *node).into_iter().collect()
    }

    fn free_on(&self, node: NodeId) -> u64 {
        self.free.iter().find(|(id, _)| *id == node).map_or(0, |(_, free)| *free)
    }

    /// Returns the nodes with the number of pages that each lacks.
    fn lacking(&self) -> Vec<(NodeId, u64)> {
        match self.pattern {
            NodePattern::Blocks(_) => {
                let last = self.free.last().map(|(node, _)| (*node, self.count - self.largest()));
                last.into_iter().collect()
            }
            NodePattern::Turn(_) | NodePattern::Copies(_) => {
                let needs = self.pattern.needs(self.count).into_iter();
                let lack = needs.map(|(node, count)| (node, count.saturating_sub(self.free_on(node))));
                lack.filter(|(_, pages)| *pages > 0).collect()
            }
        }
    }

    /// Returns the error. `each` states the free memory of all nodes.
    pub(super) fn error(&self, each: &str) -> Error {
        let page = self.pages.size();
        let limiting = self.limiting();
        let pools = if limiting.len() == 1 { "pool" } else { "pools" };
        let limiting = name_nodes(limiting);
        let most = self.largest() * page;
        let less = if most > 0 { format!("request at most {}, ", Bytes(most)) } else { String::new() };
        let (memory, remedy) = match self.pages {
            Pages::Huge2M | Pages::Huge1G => {
                let files = self.lacking().into_iter().map(|(node, pages)| {
                    format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{}kB/nr_hugepages by {pages}", page / 1024)
                });
                (
                    format!("the reserved {pools} of pages of {} of {limiting}", Bytes(page)),
                    format!(
                        "reserve more pages (root: raise {}), {less}use another placement, or use --pages auto",
                        files.collect::<Vec<_>>().join(" and ")
                    ),
                )
            }
            _ => (
                format!("the free memory of {limiting}"),
                format!("{less}use another placement, or end other programs on {limiting}"),
            ),
        };
        let of = if self.part.is_empty() { String::new() } else { format!("{} with ", self.part) };
        Error::NoSpace(NoSpace {
            host: process::host_name(),
            requested: self.count * page,
            available: most,
            limit: format!("{memory} for {of}the placement {} ({each})", self.placement),
            remedy,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The largest size fits on all nodes, and one page more does not.
        #[test]
        fn one_page_more_than_the_largest_size_does_not_fit(
            nodes in prop::collection::vec((0u64..50, 1u64..5), 1..5),
        ) {
            let nodes: Vec<_> = nodes.into_iter().enumerate().map(|(i, (free, weight))| (NodeId(i as u32), free, weight)).collect();
            let pattern = NodePattern::Turn(nodes.iter().map(|&(node, _, weight)| (node, weight)).collect());
            let shortage = NodeShortage {
                part: "",
                placement: &"interleave".parse().unwrap(),
                pages: Pages::Small,
                count: 1000,
                pattern: &pattern,
                free: nodes.iter().map(|&(node, free, _)| (node, free)).collect(),
            };
            let short_on = |count| {
                let counts = pattern.counts(count);
                let short = counts.into_iter().filter(|&(node, count)| count > shortage.free_on(node));
                short.map(|(node, _)| node).collect::<Vec<_>>()
            };
            let largest = shortage.largest();
            prop_assert_eq!(short_on(largest), []);
            prop_assert_eq!(short_on(largest + 1), shortage.limiting());
        }
    }
}
