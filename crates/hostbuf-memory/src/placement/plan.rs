//! The node of every page of a file.

use hostbuf_os::NodeId;

/// A part of a file and the nodes of its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedRange {
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The number of bytes.
    pub length: u64,
    pattern: Option<NodePattern>,
}

/// The nodes of the pages of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodePattern {
    /// This many pages on each node, one node after another. Together these are all pages of the
    /// range.
    Blocks(Vec<(NodeId, u64)>),
    /// A turn of nodes with the number of consecutive pages on each, repeated.
    Turn(Vec<(NodeId, u64)>),
    /// All pages on the first of these nodes, and memory for a copy of them on each of the others.
    Copies(Vec<NodeId>),
}

impl NodePattern {
    /// Returns the node of page `page`, and the number of the first page behind it that is on
    /// another node.
    fn run_at(&self, page: u64) -> (NodeId, u64) {
        let (runs, begin) = match self {
            NodePattern::Blocks(runs) => (runs, 0),
            // All pages are on the one node.
            NodePattern::Turn(runs) if runs.len() == 1 => return (runs[0].0, u64::MAX),
            NodePattern::Copies(nodes) => return (nodes[0], u64::MAX),
            NodePattern::Turn(runs) => {
                let turn: u64 = runs.iter().map(|(_, pages)| pages).sum();
                (runs, page / turn * turn)
            }
        };
        let mut end = begin;
        for &(node, pages) in runs {
            end += pages;
            if page < end {
                return (node, end);
            }
        }
        unreachable!("the blocks of a range contain all its pages")
    }

    /// Returns the number of pages on each node if the range has `pages` pages, in the order of the
    /// pattern.
    pub(crate) fn counts(&self, pages: u64) -> Vec<(NodeId, u64)> {
        match self {
            NodePattern::Blocks(runs) => runs.clone(),
            NodePattern::Turn(runs) => {
                let turn: u64 = runs.iter().map(|(_, pages)| pages).sum();
                let mut rest = pages % turn;
                let mut count = |&(node, weight): &(NodeId, u64)| {
                    let last = weight.min(rest);
                    rest -= last;
                    (node, pages / turn * weight + last)
                };
                runs.iter().map(&mut count).collect()
            }
            NodePattern::Copies(nodes) => vec![(nodes[0], pages)],
        }
    }

    /// Returns the number of pages that each node must have free, those of the copies included.
    pub(crate) fn needs(&self, pages: u64) -> Vec<(NodeId, u64)> {
        match self {
            NodePattern::Copies(nodes) => nodes.iter().map(|&node| (node, pages)).collect(),
            other => other.counts(pages),
        }
    }
}

impl PlannedRange {
    pub(crate) fn new(offset: u64, length: u64, pattern: Option<NodePattern>) -> PlannedRange {
        PlannedRange { offset, length, pattern }
    }

    /// Returns whether the range has a placement.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        self.pattern.is_some()
    }

    /// Returns the nodes that may get a copy of the range, without the node of its own pages.
    #[must_use]
    pub fn nodes_of_copies(&self) -> &[NodeId] {
        match &self.pattern {
            Some(NodePattern::Copies(nodes)) => &nodes[1..],
            _ => &[],
        }
    }

    /// Returns the offset of the end of the range.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// The nodes of all pages of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlan {
    /// The number of bytes of a page, of which every range has whole ones.
    page: u64,
    /// The ranges, one after another from the beginning of the file to its end.
    ranges: Vec<PlannedRange>,
}

impl FilePlan {
    pub(crate) fn new(page: u64, ranges: Vec<PlannedRange>) -> FilePlan {
        FilePlan { page, ranges }
    }

    /// Returns the plan of a file of `length` bytes without a placement.
    #[must_use]
    pub fn unplaced(length: u64) -> FilePlan {
        FilePlan::new(1, vec![PlannedRange::new(0, length, None)])
    }

    /// Returns the ranges, one after another from the beginning of the file to its end.
    #[must_use]
    pub fn ranges(&self) -> &[PlannedRange] {
        &self.ranges
    }

    /// Returns the number of bytes of all ranges with a placement.
    #[must_use]
    pub fn placed_bytes(&self) -> u64 {
        self.ranges.iter().filter(|range| range.is_placed()).map(|range| range.length).sum()
    }

    /// Returns the number of bytes that copies on all nodes that may get one would take.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.length * range.nodes_of_copies().len() as u64).sum()
    }

    /// Returns the nodes on which the plan has pages, in ascending order.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> =
            self.ranges.iter().flat_map(|range| self.bytes(range)).map(|(node, _)| node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Returns the number of bytes of one range of the plan on each node, in ascending order of the
    /// nodes, without those that have none.
    #[must_use]
    pub fn bytes(&self, range: &PlannedRange) -> Vec<(NodeId, u64)> {
        let counts = range.pattern.as_ref().map(|pattern| pattern.counts(range.length / self.page));
        let mut counts = counts.unwrap_or_default();
        counts.retain(|(_, pages)| *pages > 0);
        counts.iter_mut().for_each(|(_, pages)| *pages *= self.page);
        counts.sort_unstable();
        counts
    }

    /// Returns the parts of `from..to` that are on `node`, with the number of their range, each an
    /// offset and a length. Neither allocates nor locks.
    pub(crate) fn parts(&self, node: NodeId, from: u64, to: u64) -> impl Iterator<Item = PlanPart> {
        let mut at = from;
        std::iter::from_fn(move || {
            while at < to {
                let (part, on) = self.part_at(at, to)?;
                at = part.offset + part.length;
                if on == Some(node) {
                    return Some(part);
                }
            }
            None
        })
    }

    /// Returns the longest part from `at` on that is in one range, on one node and below `to`, with
    /// that node.
    fn part_at(&self, at: u64, to: u64) -> Option<(PlanPart, Option<NodeId>)> {
        let range = self.ranges.iter().position(|range| at < range.end())?;
        let PlannedRange { offset, pattern, .. } = &self.ranges[range];
        let end = self.ranges[range].end().min(to);
        let run = pattern.as_ref().map(|pattern| pattern.run_at((at - offset) / self.page));
        let end = run.map_or(end, |(_, last)| end.min(offset.saturating_add(last.saturating_mul(self.page))));
        Some((PlanPart { range, offset: at, length: end - at }, run.map(|(node, _)| node)))
    }
}

/// Consecutive pages of one range of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanPart {
    /// The index of the range.
    pub(crate) range: usize,
    /// The offset in the file.
    pub(crate) offset: u64,
    /// The number of bytes.
    pub(crate) length: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn patterns() -> impl Strategy<Value = (u64, Option<NodePattern>)> {
        let runs = prop::collection::vec((0u32..5, 1u64..6), 1..5)
            .prop_map(|runs| runs.into_iter().map(|(node, pages)| (NodeId(node), pages)).collect::<Vec<_>>());
        let blocks = runs.clone().prop_map(|runs| {
            (runs.iter().map(|(_, pages)| pages).sum::<u64>(), Some(NodePattern::Blocks(runs)))
        });
        let turn = (1u64..40, runs).prop_map(|(pages, runs)| (pages, Some(NodePattern::Turn(runs))));
        let copies = (1u64..10, 1u32..4).prop_map(|(pages, nodes)| {
            (pages, Some(NodePattern::Copies((2..2 + nodes).map(NodeId).collect())))
        });
        prop_oneof![blocks, turn, copies, (1u64..10).prop_map(|pages| (pages, None))]
    }

    fn plans() -> impl Strategy<Value = FilePlan> {
        prop::collection::vec(patterns(), 1..4).prop_map(|list| {
            let mut at = 0;
            let ranges = list.into_iter().map(|(pages, pattern)| {
                let range = PlannedRange::new(at, pages * PAGE, pattern);
                at = range.end();
                range
            });
            FilePlan::new(PAGE, ranges.collect())
        })
    }

    /// Returns the node of a page by walking through the pattern page by page.
    fn node_of(pattern: &NodePattern, page: u64) -> NodeId {
        let (NodePattern::Blocks(runs) | NodePattern::Turn(runs)) = pattern else {
            return pattern.counts(1)[0].0;
        };
        let pages = runs.iter().flat_map(|(node, pages)| std::iter::repeat_n(*node, *pages as usize));
        pages.collect::<Vec<_>>().into_iter().cycle().nth(page as usize).unwrap()
    }

    proptest! {
        /// The parts of all windows of all nodes contain each placed page exactly once, on the node
        /// of its pattern, and the counts are theirs.
        #[test]
        fn every_page_has_the_node_of_its_pattern(plan in plans(), window in 1u64..20) {
            let end = plan.ranges.last().unwrap().end();
            let mut found = vec![None; (end / PAGE) as usize];
            let mut bytes = vec![std::collections::BTreeMap::new(); plan.ranges.len()];
            for node in plan.nodes() {
                for from in (0..end).step_by((window * PAGE) as usize) {
                    for part in plan.parts(node, from, (from + window * PAGE).min(end)) {
                        *bytes[part.range].entry(node).or_insert(0) += part.length;
                        for page in part.offset / PAGE..(part.offset + part.length) / PAGE {
                            prop_assert!(found[page as usize].replace(node).is_none());
                        }
                    }
                }
            }
            for (range, bytes) in plan.ranges.iter().zip(bytes) {
                for page in 0..range.length / PAGE {
                    let expected = range.pattern.as_ref().map(|pattern| node_of(pattern, page));
                    prop_assert_eq!(found[(range.offset / PAGE + page) as usize], expected);
                }
                let mut counts = std::collections::BTreeMap::new();
                for (node, count) in plan.bytes(range) {
                    *counts.entry(node).or_insert(0) += count;
                }
                prop_assert_eq!(bytes, counts);
            }
        }

        /// Without weights, the counts of two nodes differ by at most one page.
        #[test]
        fn interleaving_differs_by_at_most_one_page(nodes in 1u32..65, pages in 0u64..100_000) {
            let turn = NodePattern::Turn((0..nodes).map(|node| (NodeId(node), 1)).collect());
            let counts: Vec<u64> = turn.counts(pages).into_iter().map(|(_, count)| count).collect();
            prop_assert_eq!(counts.iter().sum::<u64>(), pages);
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }
}
