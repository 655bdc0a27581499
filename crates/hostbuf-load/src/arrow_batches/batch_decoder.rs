//! Decoding record batches without copying their columns.

#![allow(unsafe_code, reason = "makes Arrow buffers of memory that a buffer of hostbuf owns")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, Message, RecordBatch as BatchHeader, root_as_footer, root_as_message};

use crate::error::{FileProblem, LoadError};
use crate::tensors::Tensors;

/// The number of bytes after the footer of a file.
const TAIL: usize = 10;
/// The number of bytes at the beginning of a message that every reader expects.
const MESSAGE_HEAD: usize = 8;

impl Tensors {
    /// Returns the record batches of a loaded file of Arrow IPC, by the name of its tensor. The
    /// columns are the bytes in the buffer, without a copy, and keep it mapped.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`]; [`LoadError::File`] if the file is damaged, or its batches are
    /// compressed.
    pub fn record_batches(&self, name: &str) -> Result<Vec<RecordBatch>, LoadError> {
        let tensor = self.get(name)?;
        let path = &self.table().files()[tensor.entry.file].path;
        let start = NonNull::from(tensor.bytes).cast::<u8>();
        let owner = Arc::new(AssertUnwindSafe(self.buffer().keepalive()));
        // SAFETY: the owner keeps the bytes mapped, and those of a filled buffer do not change.
        let file = unsafe { Buffer::from_custom_allocation(start, tensor.bytes.len(), owner) };
        decode_caught(&file)
            .map_err(|found| FileProblem::header("it is named as a file of Arrow IPC", found).at(path).into())
    }
}

/// Decodes all record batches of a file. Arrow's decoder panics for some damaged files, such as one
/// whose columns are not aligned. It changes nothing outside of its own values, so such a panic is
/// an error like the others.
///
/// # Errors
/// The reason why the file is damaged.
pub(super) fn decode_caught(file: &Buffer) -> Result<Vec<RecordBatch>, String> {
    let caught = catch_unwind(AssertUnwindSafe(|| decode(file)));
    caught.unwrap_or_else(|_| Err("the decoder of Arrow has panicked at its contents".into()))
}

fn decode(file: &Buffer) -> Result<Vec<RecordBatch>, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let tail_start = file.len().checked_sub(TAIL).ok_or("it has less than 10 bytes")?;
    let tail = file[tail_start..].try_into().map_err(|e| text(&e))?;
    let footer_bytes = read_footer_length(tail).map_err(|e| text(&e))?;
    let footer_start = tail_start.checked_sub(footer_bytes).ok_or("its footer is larger than the file")?;
    let footer = root_as_footer(&file[footer_start..tail_start]).map_err(|e| text(&e))?;
    let schema = footer.schema().ok_or("its footer has no schema")?;
    let schema = try_fb_to_schema(schema).map_err(|e| text(&e))?;
    let mut decoder = FileDecoder::new(Arc::new(schema), footer.version());
    for block in footer.dictionaries().iter().flatten() {
        let bytes = block_bytes(file, block)?;
        decoder.read_dictionary(block, &bytes).map_err(|e| text(&e))?;
    }
    let mut batches = Vec::new();
    for block in footer.recordBatches().iter().flatten() {
        let bytes = block_bytes(file, block)?;
        batches.extend(decoder.read_record_batch(block, &bytes).map_err(|e| text(&e))?);
    }
    Ok(batches)
}

/// Returns the bytes of a block: a message and its body. The decoder slices both without checking
/// that the ranges exist, so they are checked here.
fn block_bytes(file: &Buffer, block: &Block) -> Result<Buffer, String> {
    let outside = || "a block of it lies outside of the file".to_owned();
    let number = |number: i64| usize::try_from(number).map_err(|_| outside());
    let (offset, body) = (number(block.offset())?, number(block.bodyLength())?);
    let message = number(i64::from(block.metaDataLength()))?;
    let end = offset.checked_add(message).and_then(|end| end.checked_add(body));
    if message < MESSAGE_HEAD || end.is_none_or(|end| end > file.len()) {
        return Err(outside());
    }
    let bytes = file.slice_with_length(offset, message + body);
    let start = if bytes[..4] == [0xff; 4] { MESSAGE_HEAD } else { MESSAGE_HEAD / 2 };
    let message = root_as_message(&bytes[start..message]).map_err(|error| error.to_string())?;
    match batch_of(&message) {
        Some(batch) if !has_buffers(&batch, body) => Err("a column of it lies outside of its block".into()),
        _ => Ok(bytes),
    }
}

/// Returns the header of the batch in a message, also that of a dictionary.
fn batch_of<'m>(message: &Message<'m>) -> Option<BatchHeader<'m>> {
    message.header_as_record_batch().or_else(|| message.header_as_dictionary_batch()?.data())
}

/// Returns whether all lengths are valid, and all buffers lie within a body.
fn has_buffers(batch: &BatchHeader<'_>, body: usize) -> bool {
    let fits = |buffer: &arrow_ipc::Buffer| {
        let range = (usize::try_from(buffer.offset()), usize::try_from(buffer.length()));
        matches!(range, (Ok(offset), Ok(length)) if offset.checked_add(length).is_some_and(|end| end <= body))
    };
    let is_count = |number: i64| (0..=i64::from(i32::MAX)).contains(&number);
    batch.buffers().iter().flatten().all(fits)
        && is_count(batch.length())
        && batch.nodes().iter().flatten().all(|node| is_count(node.length()) && is_count(node.null_count()))
}
