//! Record batches of files that Arrow's own writer has written.

use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Float64Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow_ipc::writer::FileWriter;
use hostbuf::BufferOptions;
use hostbuf::job::Solo;
use proptest::prelude::*;

use crate::error::{LoadError, LoadErrorKind};
use crate::load::LoadOptions;
use crate::tensors::Tensors;
use crate::test_folder::TestFolder;

fn batch(rows: i64) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let halves: ArrayRef =
        Arc::new(Float64Array::from_iter((0..rows).map(|at| (at % 3 > 0).then_some(at as f64 / 2.0))));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|at| format!("row {at}"))));
    let words: ArrayRef = Arc::new(
        (0..rows).map(|at| Some(["a", "b"][at as usize % 2])).collect::<DictionaryArray<Int32Type>>(),
    );
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..rows).map(|at| Some((0..at as i32 % 4).map(Some).collect::<Vec<_>>())),
    ));
    let columns =
        [("numbers", numbers), ("halves", halves), ("texts", texts), ("words", words), ("lists", lists)];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true)))
        .expect("the columns have one length")
}

fn file(batches: &[RecordBatch]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, &batches[0].schema()).expect("a valid schema");
    batches.iter().for_each(|batch| writer.write(batch).expect("memory is writable"));
    writer.finish().expect("memory is writable");
    drop(writer);
    bytes
}

fn load(paths: &[PathBuf]) -> Tensors {
    let buffer = BufferOptions::new(0);
    LoadOptions::new().allocate_and_load(&Solo, buffer, paths).expect("the files are valid")
}

#[test]
fn batches_are_equal_and_lie_in_the_buffer() {
    let folder = TestFolder::new("batches");
    let written = [batch(1000), batch(10)];
    let before = folder.write("before.bin", &[1; 100]);
    let tensors = load(&[before, folder.write("table.arrow", &file(&written))]);
    let batches = tensors.record_batches("table").expect("the file is valid");
    assert_eq!(batches, written);
    let numbers = batches[0].column(0).as_any().downcast_ref::<Int64Array>().expect("64-bit integers");
    assert!(tensors.buffer().contains(numbers.values().as_ptr().cast(), 8000), "the column is a copy");
    // The columns keep the buffer mapped.
    let numbers = numbers.clone();
    drop((batches, tensors));
    assert_eq!(numbers.value(999), 999);
}

#[test]
fn a_tensor_of_another_format_has_no_batches() {
    let folder = TestFolder::new("no-batches");
    let tensors = load(&[folder.write("other.bin", &[7; 100])]);
    let error = tensors.record_batches("other.bin").expect_err("it is no file of Arrow");
    assert_eq!(error.kind(), LoadErrorKind::Damaged);
    assert!(error.to_string().contains("other.bin is damaged"), "{error}");
    assert!(matches!(tensors.record_batches("table"), Err(LoadError::NoTensor { .. })));
}

proptest! {
    #[test]
    fn changed_files_are_no_danger(
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = file(&[batch(20)]);
        for (at, byte) in changes {
            // The ends are checked when the header is read.
            let at = 8 + at.index(bytes.len() - 24);
            bytes[at] = byte;
        }
        // An error, or any batches.
        let _ = super::batch_decoder::decode_caught(&bytes.into());
    }
}
