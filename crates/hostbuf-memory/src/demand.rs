//! The memory that one file needs.

use crate::demand_part::DemandPart;
use crate::error::{Error, Result};
use crate::pages::Pages;
use crate::placement::{FilePlan, NodeSpace, Placement, PlannedRange};

/// The memory that one file needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// The requested size in bytes.
    pub size: u64,
    /// The requested pages.
    pub pages: Pages,
    /// True if the pages are allocated at the first touch.
    pub lazy: bool,
    /// The parts of the file, from its beginning on. Behind them, and in a part without a
    /// placement, pages are on any node.
    parts: Vec<DemandPart>,
}

impl Demand {
    /// Makes the demand for `size` bytes, whose pages are allocated at once.
    #[must_use]
    pub const fn new(size: u64, pages: Pages) -> Demand {
        Demand { size, pages, lazy: false, parts: Vec::new() }
    }

    /// Sets whether the pages are allocated at the first touch.
    #[must_use]
    pub fn lazy(mut self, lazy: bool) -> Demand {
        self.lazy = lazy;
        self
    }

    /// Sets the placement of the whole file.
    #[must_use]
    pub fn placement(self, placement: Placement) -> Demand {
        let length = self.length();
        self.parts(vec![DemandPart::new(length, Some(placement))])
    }

    /// Sets the parts of the file, from its beginning on. Their lengths are multiples of
    /// [`part_unit`](Demand::part_unit).
    #[must_use]
    pub fn parts(mut self, parts: Vec<DemandPart>) -> Demand {
        self.parts = parts;
        self
    }

    /// Returns the number of bytes of which the length of every part is a multiple: a page of the
    /// requested kind, for [`Pages::Auto`] one that suits every kind but 1 GiB.
    #[must_use]
    pub fn part_unit(&self) -> u64 {
        self.pages.unit(self.size)
    }

    /// Returns the size, rounded up to whole pages.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.pages.round_up(self.size)
    }

    /// Returns whether a part of the file has a placement.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        self.parts.iter().any(|part| part.placement.is_some())
    }

    /// Returns whether the file and every part of it consist of whole pages of `page` bytes.
    #[must_use]
    pub fn has_whole(&self, page: u64) -> bool {
        self.size.is_multiple_of(page) && self.parts.iter().all(|part| part.length.is_multiple_of(page))
    }

    /// Plans the nodes of all pages of the file on `pages`, which are not [`Pages::Auto`], and
    /// takes their bytes out of `space`.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace) and
    /// [`Error::Placement`](crate::Error::Placement) if a placement cannot be had on this host.
    pub(crate) fn plan(&self, pages: Pages, space: &mut NodeSpace) -> Result<FilePlan> {
        let mut at = 0;
        let mut ranges = Vec::new();
        for DemandPart { length, placement, name } in &self.parts {
            if placement.is_some() && !length.is_multiple_of(pages.size()) {
                let what = format!("a part of {length} bytes does not consist of whole pages {pages}");
                return Err(Error::Invalid { what });
            }
            let pattern = placement.as_ref().map(|placement| space.plan(name, placement, *length, pages));
            ranges.push(PlannedRange::new(at, *length, pattern.transpose()?));
            at += length;
        }
        if at < self.length() {
            ranges.push(PlannedRange::new(at, self.length() - at, None));
        }
        Ok(FilePlan::new(pages.size(), ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::NodeMemory;
    use hostbuf_os::NodeId;

    #[test]
    fn parts_are_planned_one_after_another() {
        const MIB: u64 = 1 << 20;
        let nodes = [0, 1].map(|node| NodeMemory::new(NodeId(node), 16 * MIB)).to_vec();
        let part = |mib: u64, placement: &str| DemandPart::new(mib * MIB, placement.parse().ok());
        let demand =
            Demand::new(11 * MIB, Pages::Transparent).parts(vec![part(4, "1"), part(2, ""), part(4, "0,1")]);
        assert_eq!((demand.length(), demand.part_unit()), (12 * MIB, 2 * MIB));
        let plan = demand.plan(Pages::Transparent, &mut NodeSpace::new(nodes.clone())).unwrap();
        let found: Vec<_> = plan
            .ranges()
            .iter()
            .map(|range| (range.offset / MIB, range.length / MIB, plan.bytes(range)))
            .collect();
        let on = |node, mib: u64| vec![(NodeId(node), mib * MIB)];
        assert_eq!(found, [(0, 4, on(1, 4)), (4, 2, vec![]), (6, 4, on(0, 4)), (10, 2, vec![])]);
        // The parts of one file share the memory of a node.
        let twice = Demand::new(20 * MIB, Pages::Small).parts(vec![part(10, "0"), part(10, "0")]);
        assert!(twice.plan(Pages::Small, &mut NodeSpace::new(nodes)).is_err());
    }
}
