//! Slices, compared with a naive copy element by element.

use proptest::prelude::*;

use super::*;
use crate::table::{ArrayOrder, Dtype, TensorEntry};

fn tensor(shape: &[u64], dtype: Dtype, order: ArrayOrder) -> TensorEntry {
    let bytes = dtype.bytes(shape.iter().product()).expect("whole bytes");
    TensorEntry {
        name: "t".into(),
        dtype,
        shape: shape.to_vec(),
        order,
        byte_order: Default::default(),
        file: 0,
        range: 100..100 + bytes,
    }
}

/// Returns the position of an element in memory, in elements.
fn position(index: &[u64], shape: &[u64], order: ArrayOrder) -> u64 {
    let step = |at: u64, dim: usize| at * shape[dim] + index[dim];
    match order {
        ArrayOrder::C => (0..shape.len()).fold(0, step),
        ArrayOrder::Fortran => (0..shape.len()).rev().fold(0, step),
    }
}

/// Selects elements along a dimension, one by one. An element has one byte.
fn naive(entry: &TensorEntry, bytes: &[u8], dim: usize, chosen: &[u64]) -> Vec<u8> {
    let mut shape = entry.shape.clone();
    shape[dim] = chosen.len() as u64;
    let count = shape.iter().product::<u64>();
    let mut into = vec![0; count as usize];
    for number in 0..count {
        let (mut rest, mut index) = (number, vec![0; shape.len()]);
        for (at, &size) in index.iter_mut().zip(&shape) {
            (*at, rest) = (rest % size, rest / size);
        }
        let to = position(&index, &shape, entry.order);
        index[dim] = chosen[index[dim] as usize];
        into[to as usize] = bytes[position(&index, &entry.shape, entry.order) as usize];
    }
    into
}

fn copied(slice: &TensorSlice, bytes: &[u8]) -> Vec<u8> {
    let mut into = vec![0xaa; slice.bytes as usize];
    slice.copy(bytes, &mut into);
    into
}

fn order() -> impl Strategy<Value = ArrayOrder> {
    prop_oneof![Just(ArrayOrder::C), Just(ArrayOrder::Fortran)]
}

proptest! {
    #[test]
    fn slices_of_all_ranks_are_those_of_a_naive_copy(
        shape in proptest::collection::vec(0u64..7, 1..5),
        order in order(),
        dim in any::<proptest::sample::Index>(),
        ranks in 1usize..9,
    ) {
        let (entry, dim) = (tensor(&shape, Dtype::U8, order), dim.index(shape.len()));
        let bytes: Vec<u8> = (0..entry.bytes()).map(|at| (at * 7 + 1) as u8).collect();
        // As numpy.array_split of a list into pieces of one length.
        let all: Vec<u64> = (0..shape[dim]).collect();
        let mut chunks = all.chunks((shape[dim] as usize).div_ceil(ranks).max(1));
        for rank in 0..ranks {
            let slice = entry.slice(dim, rank, ranks).expect("an element has whole bytes");
            let chosen = chunks.next().unwrap_or_default();
            prop_assert_eq!(slice.shape[dim], chosen.len() as u64);
            prop_assert_eq!(copied(&slice, &bytes), naive(&entry, &bytes, dim, chosen));
        }
    }

    #[test]
    fn fused_slices_are_those_of_a_naive_copy(
        sizes in proptest::collection::vec((1u64..4, any::<bool>()), 1..4),
        others in (1u64..4, 1u64..4),
        order in order(),
        dim in 0usize..3,
        doubled in 1usize..4,
    ) {
        // Twice as many ranks as the parts with few shares have.
        let ranks = 2 * doubled;
        let parts: Vec<FusedPart> = sizes
            .iter()
            .map(|&(size, is_few)| match is_few {
                true => FusedPart::new(size * doubled as u64).shares(doubled),
                false => FusedPart::new(size * ranks as u64),
            })
            .collect();
        let mut shape = vec![others.0, others.1];
        shape.insert(dim, parts.iter().map(FusedPart::size).sum());
        let entry = tensor(&shape, Dtype::U8, order);
        let bytes: Vec<u8> = (0..entry.bytes()).map(|at| (at * 5 + 3) as u8).collect();
        for rank in 0..ranks {
            let mut chosen = Vec::new();
            let mut start = 0;
            for (part, &(size, is_few)) in parts.iter().zip(&sizes) {
                let share = if is_few { rank as u64 / 2 } else { rank as u64 };
                chosen.extend(start + share * size..start + (share + 1) * size);
                start += part.size();
            }
            let slice = entry.fused_slice(dim, &parts, rank, ranks).expect("the shares are equal");
            prop_assert_eq!(copied(&slice, &bytes), naive(&entry, &bytes, dim, &chosen));
        }
    }
}

#[test]
fn a_slice_of_the_first_dimension_is_one_range() {
    let slice = tensor(&[8, 3, 5], Dtype::F32, ArrayOrder::C).slice(0, 1, 4).expect("it is even");
    assert_eq!((slice.bytes, &slice.shape[..]), (120, &[2, 3, 5][..]));
    let [part] = slice.parts[..] else { panic!("{slice:?}") };
    assert!(part.is_contiguous());
    assert_eq!((part.offset, part.width, part.height), (120, 120, 1));
}

#[test]
fn a_slice_of_columns_is_one_copy_of_rows() {
    let slice = tensor(&[6, 8], Dtype::BF16, ArrayOrder::C).slice(1, 3, 4).expect("it is even");
    let [part] = slice.parts[..] else { panic!("{slice:?}") };
    assert!(!part.is_contiguous());
    assert_eq!((part.offset, part.pitch, part.width, part.height), (12, 16, 4, 6));
    assert_eq!((part.target_offset, part.target_pitch), (0, 4));
}

#[test]
fn an_uneven_division_is_that_of_torch_chunk() {
    let entry = tensor(&[5, 2], Dtype::F32, ArrayOrder::C);
    let rows: Vec<u64> =
        (0..4).map(|rank| entry.slice(0, rank, 4).expect("any division is allowed").shape[0]).collect();
    assert_eq!(rows, [2, 2, 1, 0]);
    assert!(entry.slice(0, 3, 4).expect("an empty slice is one").parts.is_empty());
}

#[test]
fn elements_of_less_than_a_byte_are_divided_at_bytes_only() {
    let entry = tensor(&[4, 6], Dtype::F4, ArrayOrder::C);
    assert_eq!(entry.slice(1, 0, 3).expect("two elements are a byte").parts[0].width, 1);
    assert_eq!(entry.slice(0, 0, 4).expect("a row has three bytes").bytes, 3);
    let error = entry.slice(1, 0, 2).expect_err("three elements are one byte and a half");
    assert_eq!(error, SliceError::WithinByte { dim: 1, bits: 4 });
}

#[test]
fn slices_that_do_not_exist_are_errors() {
    let entry = tensor(&[12, 2], Dtype::F32, ArrayOrder::C);
    assert_eq!(entry.slice(2, 0, 1), Err(SliceError::NoDimension { dim: 2, dims: 2 }));
    assert_eq!(entry.slice(0, 2, 2), Err(SliceError::NoRank { rank: 2, ranks: 2 }));
    assert_eq!(entry.slice(0, 0, 0), Err(SliceError::NoRank { rank: 0, ranks: 0 }));
    let parts = [FusedPart::new(8), FusedPart::new(4)];
    let uneven = entry.fused_slice(0, &parts, 0, 8).expect_err("4 is no multiple of 8");
    assert_eq!(uneven, SliceError::Uneven { part: 1, size: 4, shares: 8 });
    assert!(uneven.to_string().contains("FusedPart::shares"), "{uneven}");
    let few = [FusedPart::new(8), FusedPart::new(4).shares(3)];
    assert_eq!(entry.fused_slice(0, &few, 0, 8), Err(SliceError::Shares { part: 1, shares: 3, ranks: 8 }));
    let sum = entry.fused_slice(0, &parts[..1], 0, 2);
    assert_eq!(sum, Err(SliceError::Parts { dim: 0, sum: 8, size: 12 }));
}
