//! The layout of an array in a block.
//!
//! The accepted layouts are those of an array whose elements lie apart from each other and behind
//! the start of the block, in any order of the dimensions and with any padding: arrays in C and
//! Fortran order, slices of them, images with padded rows.
//!
//! - The first element starts the block. So strides are not negative.
//! - No two elements overlap, since the producer writes the array through this layout. So the
//!   stride of a broadcast dimension, 0, is refused too. This also bounds a contiguous copy of the
//!   array, which a consumer may make: it is never larger than the block, whatever a header states.
//! - Strides are multiples of the size of an element, as DLPack counts them in elements.
//!
//! A dimension of one element and each dimension of an empty array has a stride that no element
//! depends on. Libraries disagree about it, so such a stride is neither checked nor kept: it
//! becomes the stride that a contiguous array would have there.

use super::MAX_DIMENSIONS;
use super::element_type::ElementType;
use super::invalid_layout::InvalidLayout;

/// The element type, the shape and the strides of an array that starts at the first byte of a
/// block.
///
/// ```
/// use hostbuf_pool::{ArrayLayout, ElementType};
///
/// let image = ArrayLayout::contiguous(ElementType::UInt8, &[1080, 1920, 4])?;
/// assert_eq!(image.extent_bytes(), 8_294_400);
/// // The same image with rows of 8192 bytes.
/// let padded = ArrayLayout::new(ElementType::UInt8, &[1080, 1920, 4], &[8192, 4, 1])?;
/// assert_eq!(padded.extent_bytes(), 1079 * 8192 + 1920 * 4);
/// # Ok::<(), hostbuf_pool::InvalidLayout>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArrayLayout {
    element: ElementType,
    dimensions: usize,
    /// The extents; 0 behind the last dimension.
    shape: [u64; MAX_DIMENSIONS],
    /// The strides in bytes; 0 behind the last dimension.
    strides: [i64; MAX_DIMENSIONS],
    extent_bytes: u64,
}

impl ArrayLayout {
    /// The largest number of dimensions.
    pub const MAX_DIMENSIONS: usize = MAX_DIMENSIONS;

    /// Returns the layout of a contiguous array in C order: the last dimension varies fastest. An
    /// empty `shape` is that of a single element.
    ///
    /// # Errors
    /// [`InvalidLayout::TooManyDimensions`], [`InvalidLayout::Overflow`].
    pub fn contiguous(element: ElementType, shape: &[u64]) -> Result<ArrayLayout, InvalidLayout> {
        ArrayLayout::with_strides(element, shape, |_| None)
    }

    /// Returns the layout of an array with these extents and strides, the strides in bytes. The
    /// stride of a dimension with one element does not matter, nor does any stride of an empty
    /// array.
    ///
    /// # Errors
    /// [`InvalidLayout`]: for more than [`ArrayLayout::MAX_DIMENSIONS`], for strides that are
    /// negative or no multiple of the size of an element, for elements that overlap, as in a
    /// broadcast array, and for a span of more than `i64::MAX` bytes.
    pub fn new(element: ElementType, shape: &[u64], strides: &[i64]) -> Result<ArrayLayout, InvalidLayout> {
        if shape.len() != strides.len() {
            return Err(InvalidLayout::StrideCount { dimensions: shape.len(), strides: strides.len() });
        }
        let is_empty = shape.contains(&0);
        ArrayLayout::with_strides(element, shape, |dimension| {
            (!is_empty && shape[dimension] > 1).then(|| strides[dimension])
        })
    }

    /// Returns the layout whose stride of a dimension is that of `stride`, or that of a contiguous
    /// array if there is none.
    fn with_strides(
        element: ElementType,
        shape: &[u64],
        stride: impl Fn(usize) -> Option<i64>,
    ) -> Result<ArrayLayout, InvalidLayout> {
        let dimensions = shape.len();
        if dimensions > MAX_DIMENSIONS {
            return Err(InvalidLayout::TooManyDimensions(dimensions));
        }
        let mut layout = ArrayLayout {
            element,
            dimensions,
            shape: [0; MAX_DIMENSIONS],
            strides: [0; MAX_DIMENSIONS],
            extent_bytes: 0,
        };
        layout.shape[..dimensions].copy_from_slice(shape);
        // The stride of a contiguous array: the bytes of one step of the dimension before.
        let mut step = signed(element.size_bytes())?;
        for dimension in (0..dimensions).rev() {
            layout.strides[dimension] = stride(dimension).unwrap_or(step);
            step = signed(shape[dimension].max(1))?
                .checked_mul(layout.strides[dimension])
                .ok_or(InvalidLayout::Overflow)?;
        }
        layout.extent_bytes = layout.checked_extent()?;
        Ok(layout)
    }

    /// Checks the strides, and returns the number of bytes from the start of the block to the end
    /// of the last element.
    fn checked_extent(&self) -> Result<u64, InvalidLayout> {
        if self.shape().contains(&0) {
            return Ok(0);
        }
        let element = self.element.size_bytes();
        let mut by_stride = [0; MAX_DIMENSIONS];
        let mut long_dimensions = 0;
        for dimension in (0..self.dimensions).filter(|&dimension| self.shape[dimension] > 1) {
            let stride = self.strides[dimension];
            match u64::try_from(stride) {
                Err(_) => return Err(InvalidLayout::NegativeStride { dimension, stride }),
                Ok(bytes) if bytes % element != 0 => {
                    return Err(InvalidLayout::UnalignedStride { dimension, stride, element });
                }
                Ok(_) => {}
            }
            by_stride[long_dimensions] = dimension;
            long_dimensions += 1;
        }
        let by_stride = &mut by_stride[..long_dimensions];
        by_stride.sort_unstable_by_key(|&dimension| self.strides[dimension]);
        // The bytes that the dimensions with smaller strides span together. Elements lie apart if
        // each stride is at least as large.
        let mut extent = signed(element)?;
        for &dimension in by_stride.iter() {
            let stride = self.strides[dimension];
            if stride < extent {
                let smallest = extent.unsigned_abs();
                return Err(InvalidLayout::Overlap { dimension, stride, smallest });
            }
            extent = signed(self.shape[dimension] - 1)?
                .checked_mul(stride)
                .and_then(|last| last.checked_add(extent))
                .ok_or(InvalidLayout::Overflow)?;
        }
        Ok(extent.unsigned_abs())
    }

    /// Returns the type of the elements.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// Returns the extents of the dimensions, in elements.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape[..self.dimensions]
    }

    /// Returns the strides of the dimensions in bytes. DLPack counts them in elements: divide by
    /// the size of an element.
    #[must_use]
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.dimensions]
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        // An array whose elements lie apart has no more of them than bytes, and an empty one has
        // none, whatever its other extents are.
        if self.extent_bytes == 0 { 0 } else { self.shape().iter().product() }
    }

    /// Returns the number of bytes from the start of the block to the end of the last element: 0
    /// for an empty array.
    #[must_use]
    pub const fn extent_bytes(&self) -> u64 {
        self.extent_bytes
    }

    /// Returns whether the elements lie in C order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        ArrayLayout::contiguous(self.element, self.shape()).as_ref() == Ok(self)
    }

    /// Checks that the array ends within the first `available` bytes of its block.
    ///
    /// # Errors
    /// [`InvalidLayout::OutOfBounds`].
    pub const fn check_bounds(&self, available: u64) -> Result<(), InvalidLayout> {
        if self.extent_bytes > available {
            return Err(InvalidLayout::OutOfBounds { extent: self.extent_bytes, available });
        }
        Ok(())
    }
}

fn signed(number: u64) -> Result<i64, InvalidLayout> {
    i64::try_from(number).map_err(|_| InvalidLayout::Overflow)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    const U8: ElementType = ElementType::UInt8;
    const F32: ElementType = ElementType::Float32;

    /// Returns the offset of each element in bytes, from the definition of a stride.
    fn offsets(shape: &[u64], strides: &[i64]) -> Vec<i64> {
        let mut offsets = vec![0];
        for (&extent, &stride) in shape.iter().zip(strides) {
            offsets = offsets
                .iter()
                .flat_map(|offset| (0..extent as i64).map(move |index| offset + index * stride))
                .collect();
        }
        offsets
    }

    /// Returns valid layouts: slices of contiguous arrays, with their dimensions in any order.
    pub(in crate::header) fn array_layouts() -> impl Strategy<Value = ArrayLayout> {
        let dimensions =
            prop::collection::vec((0..6u64, 1..4u64, 0..4u64), 0..=MAX_DIMENSIONS).prop_shuffle();
        (dimensions, prop::sample::select(ElementType::ALL), any::<prop::sample::Index>()).prop_map(
            |(dimensions, element, turn)| {
                let mut step = element.size_bytes();
                let mut parts = vec![];
                for (extent, every, padding) in dimensions {
                    parts.push((extent, (step * every) as i64));
                    step *= extent.max(1) * every + padding;
                }
                if !parts.is_empty() {
                    let turn = turn.index(parts.len());
                    parts.rotate_left(turn);
                }
                let (shape, strides): (Vec<u64>, Vec<i64>) = parts.into_iter().unzip();
                ArrayLayout::new(element, &shape, &strides).expect("its elements lie apart")
            },
        )
    }

    proptest! {
        /// Small strides and extents, so that many layouts are nearly valid.
        #[test]
        fn an_accepted_layout_has_the_extent_of_its_elements(
            (shape, strides) in (0..5usize).prop_flat_map(|dimensions| (
                prop::collection::vec(0..5u64, dimensions),
                prop::collection::vec(-4..40i64, dimensions),
            )),
            element in prop::sample::select(ElementType::ALL),
        ) {
            let strides: Vec<i64> = strides.iter().map(|stride| stride * element.size_bytes() as i64).collect();
            let mut offsets = offsets(&shape, &strides);
            offsets.sort_unstable();
            let size = element.size_bytes() as i64;
            match ArrayLayout::new(element, &shape, &strides) {
                Ok(layout) => {
                    prop_assert_eq!(layout.elements(), offsets.len() as u64);
                    prop_assert_eq!(layout.extent_bytes() as i64, offsets.last().map_or(0, |last| last + size));
                    prop_assert!(offsets.first().is_none_or(|first| *first == 0));
                    prop_assert!(offsets.windows(2).all(|pair| pair[0] + size <= pair[1]));
                    // The same elements in the same places.
                    let mut kept = self::offsets(layout.shape(), layout.strides());
                    kept.sort_unstable();
                    prop_assert_eq!(kept, offsets);
                    prop_assert_eq!(ArrayLayout::new(element, &shape, layout.strides()), Ok(layout));
                }
                Err(InvalidLayout::NegativeStride { stride, .. }) => prop_assert!(stride < 0),
                // Nested dimensions are sufficient for elements that lie apart, not necessary, so
                // the elements of a refused layout need not overlap.
                Err(InvalidLayout::Overlap { stride, smallest, .. }) => prop_assert!((stride as u64) < smallest),
                Err(other) => prop_assert!(false, "{other}"),
            }
        }

        #[test]
        fn transposed_slices_are_accepted(layout in array_layouts()) {
            let size = layout.element().size_bytes();
            prop_assert!(layout.elements() * size <= layout.extent_bytes());
            let contiguous = ArrayLayout::contiguous(layout.element(), layout.shape()).expect("it is smaller");
            prop_assert_eq!(layout.is_contiguous(), layout.strides() == contiguous.strides());
            prop_assert_eq!(contiguous.extent_bytes(), layout.elements() * size);
        }

        #[test]
        fn no_numbers_panic_or_reach_beyond_their_extent(
            (shape, strides) in (0..=9usize).prop_flat_map(|dimensions| (
                prop::collection::vec(prop_oneof![0..4u64, any::<u64>()], dimensions),
                prop::collection::vec(prop_oneof![0..64i64, any::<i64>(), Just(i64::MAX)], dimensions),
            )),
            element in prop::sample::select(ElementType::ALL),
        ) {
            if let Ok(layout) = ArrayLayout::new(element, &shape, &strides) {
                prop_assert!(layout.extent_bytes() <= i64::MAX as u64);
                prop_assert!(layout.elements() * element.size_bytes() <= layout.extent_bytes());
                let last: i128 = layout.shape().iter().zip(layout.strides())
                    .map(|(&extent, &stride)| (i128::from(extent) - 1) * i128::from(stride)).sum();
                if layout.elements() > 0 {
                    prop_assert_eq!(last + i128::from(element.size_bytes()), i128::from(layout.extent_bytes()));
                }
            }
            let _ = ArrayLayout::contiguous(element, &shape);
        }

        #[test]
        fn bounds_are_exact(layout in array_layouts()) {
            let extent = layout.extent_bytes();
            prop_assert_eq!(layout.check_bounds(extent), Ok(()));
            if let Some(available) = extent.checked_sub(1) {
                prop_assert_eq!(
                    layout.check_bounds(available),
                    Err(InvalidLayout::OutOfBounds { extent, available })
                );
            }
        }
    }

    #[test]
    fn contiguous_arrays_have_strides_in_c_order() {
        let layout = ArrayLayout::contiguous(F32, &[2, 3, 4]).unwrap();
        assert_eq!(layout.strides(), [48, 16, 4]);
        assert_eq!((layout.elements(), layout.extent_bytes()), (24, 96));
        assert!(layout.is_contiguous());
        let one = ArrayLayout::contiguous(F32, &[]).unwrap();
        assert_eq!((one.elements(), one.extent_bytes(), one.strides().len()), (1, 4, 0));
        let empty = ArrayLayout::contiguous(F32, &[0, 3]).unwrap();
        assert_eq!((empty.elements(), empty.extent_bytes(), empty.strides()), (0, 0, &[12, 4][..]));
        assert!(empty.is_contiguous());
    }

    #[test]
    fn padded_and_transposed_arrays_are_not_contiguous() {
        assert!(!ArrayLayout::new(U8, &[4, 3], &[8, 1]).unwrap().is_contiguous());
        assert!(!ArrayLayout::new(U8, &[4, 3], &[1, 4]).unwrap().is_contiguous());
    }

    #[test]
    fn strides_without_an_effect_are_replaced() {
        let layout = ArrayLayout::new(F32, &[1, 5, 1], &[-7, 4, 0]).unwrap();
        assert_eq!(layout.strides(), [20, 4, 4]);
        assert!(layout.is_contiguous());
        let empty = ArrayLayout::new(F32, &[0, 5], &[-7, 1]).unwrap();
        assert_eq!(empty, ArrayLayout::contiguous(F32, &[0, 5]).unwrap());
    }

    #[test]
    fn invalid_layouts_are_refused() {
        let error = |shape: &[u64], strides: &[i64]| ArrayLayout::new(F32, shape, strides).unwrap_err();
        assert_eq!(error(&[1; 9], &[0; 9]), InvalidLayout::TooManyDimensions(9));
        assert_eq!(error(&[1, 2], &[4]), InvalidLayout::StrideCount { dimensions: 2, strides: 1 });
        assert_eq!(error(&[2, 3], &[-12, 4]), InvalidLayout::NegativeStride { dimension: 0, stride: -12 });
        let unaligned = InvalidLayout::UnalignedStride { dimension: 1, stride: 6, element: 4 };
        assert_eq!(error(&[2, 3], &[24, 6]), unaligned);
        let broadcast = InvalidLayout::Overlap { dimension: 0, stride: 0, smallest: 4 };
        assert_eq!(error(&[2, 3], &[0, 4]), broadcast);
        let window = InvalidLayout::Overlap { dimension: 0, stride: 8, smallest: 12 };
        assert_eq!(error(&[2, 3], &[8, 4]), window);
        assert_eq!(error(&[3], &[i64::MAX - 3]), InvalidLayout::Overflow);
        for shape in [&[1 << 61][..], &[1 << 32, 1 << 32], &[u64::MAX], &[0, 1 << 63], &[0, 1 << 40, 1 << 40]]
        {
            assert_eq!(ArrayLayout::contiguous(F32, shape), Err(InvalidLayout::Overflow), "{shape:?}");
        }
    }
}
