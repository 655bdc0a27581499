//! The tensors of a table by the hashes of their names.

use xxhash_rust::xxh3::xxh3_64;

use super::tensor_entry::TensorEntry;

/// The indices of tensors, sorted by the hashes of their names. A search stays within a few cache
/// lines, while one by the names themselves touches a name at each step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameIndex(Vec<(u64, usize)>);

impl NameIndex {
    pub(super) fn new(tensors: &[TensorEntry]) -> NameIndex {
        let hash = |(index, tensor): (usize, &TensorEntry)| (xxh3_64(tensor.name.as_bytes()), index);
        let mut hashes: Vec<_> = tensors.iter().enumerate().map(hash).collect();
        hashes.sort_unstable();
        NameIndex(hashes)
    }

    /// Returns the tensor of this name. `tensors` are those of which the index was made.
    pub(super) fn find<'t>(&self, tensors: &'t [TensorEntry], name: &str) -> Option<&'t TensorEntry> {
        let hash = xxh3_64(name.as_bytes());
        let first = self.0.partition_point(|&(other, _)| other < hash);
        let same_hash = self.0[first..].iter().take_while(|&&(other, _)| other == hash);
        same_hash.map(|&(_, index)| &tensors[index]).find(|tensor| tensor.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{ArrayOrder, ByteOrder, Dtype};

    #[test]
    fn each_name_is_found_and_no_other_one() {
        let entry = |number: usize| TensorEntry {
            name: format!("layer.{number}"),
            dtype: Dtype::U8,
            shape: vec![],
            order: ArrayOrder::C,
            byte_order: ByteOrder::Little,
            file: number,
            range: 0..1,
        };
        let tensors: Vec<TensorEntry> = (0..2000).map(entry).collect();
        let mut index = NameIndex::new(&tensors);
        let finds = |index: &NameIndex, name: &str| index.find(&tensors, name).map(|tensor| tensor.file);
        for number in 0..2000 {
            assert_eq!(finds(&index, &format!("layer.{number}")), Some(number));
        }
        assert_eq!((finds(&index, "layer.2000"), finds(&index, "")), (None, None));
        assert_eq!(NameIndex::new(&[]).find(&[], "layer.0"), None);
        // Two names with one hash.
        let hash = xxh3_64(b"layer.7");
        index = NameIndex(vec![(hash, 5), (hash, 7), (hash, 9)]);
        assert_eq!(finds(&index, "layer.7"), Some(7));
    }
}
