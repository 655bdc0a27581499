//! Sets of the monitor's userfaultfds.

/// The largest number of userfaultfds of one monitor: a set of them has 16 bits.
pub(crate) const MOST_DESCRIPTORS: usize = 16;

/// A set of the monitor's userfaultfds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DescriptorSet(u16);

impl DescriptorSet {
    /// The set without descriptors.
    pub(crate) const EMPTY: DescriptorSet = DescriptorSet(0);

    /// Returns the set that contains only the descriptor `number`.
    pub(super) fn of(number: usize) -> DescriptorSet {
        debug_assert!(number < MOST_DESCRIPTORS);
        DescriptorSet(1 << number)
    }

    /// Returns the set of the first `count` descriptors.
    pub(crate) fn first(count: usize) -> DescriptorSet {
        DescriptorSet((((1u32) << count) - 1) as u16)
    }

    /// Makes the set whose descriptors are the numbers of the bits that are set.
    #[inline(always)]
    pub(crate) fn from_bits(bits: u16) -> DescriptorSet {
        DescriptorSet(bits)
    }

    /// Returns the set as bits, one for each descriptor.
    #[inline(always)]
    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// Returns the union of both sets.
    #[inline(always)]
    pub(crate) fn with(self, other: DescriptorSet) -> DescriptorSet {
        DescriptorSet(self.0 | other.0)
    }

    /// Returns the descriptors of this set that are not in `other`.
    #[inline(always)]
    pub(crate) fn without(self, other: DescriptorSet) -> DescriptorSet {
        DescriptorSet(self.0 & !other.0)
    }

    /// Returns whether all of `other` is in this set.
    #[inline]
    pub(crate) fn contains(self, other: DescriptorSet) -> bool {
        other.0 & !self.0 == 0
    }

    /// Returns the numbers of the descriptors, lowest first.
    #[inline(always)]
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let number = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (number < MOST_DESCRIPTORS).then_some(number)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_contains_the_descriptors_added_to_it() {
        let set = DescriptorSet::of(3).with(DescriptorSet::of(15));
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 15]);
        assert_eq!(DescriptorSet::EMPTY.iter().count(), 0);
        assert_eq!(DescriptorSet::first(16).iter().count(), 16);
        assert!(DescriptorSet::first(16).contains(set) && !set.contains(DescriptorSet::first(4)));
        assert_eq!(DescriptorSet::from_bits(set.bits()), set);
    }
}
