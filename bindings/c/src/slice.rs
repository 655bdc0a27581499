//! Slices of tensors: the parts that ranks take.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use ::hostbuf_load::{FusedPart, LoadError, SliceError, TensorEntry, TensorSlice};
use hostbuf_os::printable::printable_name;

use crate::load_error::load_error;
use crate::pointers::{input, output, struct_output, text};
use crate::status::{CallResult, argument, call, hostbuf_status};
use crate::tensor::first;
use crate::tensor_source::TensorSource;
use crate::tensors::hostbuf_tensors;

/// A slice of a tensor, which keeps the buffer mapped. Threads may share it.
pub struct hostbuf_slice {
    pub(crate) source: TensorSource,
    pub(crate) tensor: String,
    pub(crate) slice: TensorSlice,
}

/// The shape of a slice. Its array is valid as long as the slice.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_slice_info {
    /// The size of this structure: initialize it with `HOSTBUF_SLICE_INFO_INIT`.
    pub struct_size: usize,
    /// The number of bytes, packed without gaps.
    pub bytes: u64,
    /// The number of dimensions.
    pub ndim: usize,
    /// The number of elements in each dimension.
    pub shape: *const u64,
    /// The number of parts; 0 if the slice is empty.
    pub part_count: usize,
}

sized_struct!(hostbuf_slice_info, "HOSTBUF_SLICE_INFO_INIT", last: part_count: usize);

/// A part of a slice: rows of bytes at equal distances, the operands of `cuMemcpy2D`. A slice has
/// one part, and a fused slice has up to one for each fused tensor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_slice_part {
    /// The size of this structure: initialize it with `HOSTBUF_SLICE_PART_INIT`.
    pub struct_size: usize,
    /// The address of the first row in the buffer.
    pub address: *const c_void,
    /// The distance in bytes from a row to the next in the buffer.
    pub pitch: u64,
    /// The length of a row in bytes.
    pub width: u64,
    /// The number of rows. One row is contiguous in the buffer, so it needs no copy.
    pub height: u64,
    /// The offset in bytes of the first row in the packed slice.
    pub target_offset: u64,
    /// The distance in bytes from a row to the next in the packed slice.
    pub target_pitch: u64,
}

sized_struct!(hostbuf_slice_part, "HOSTBUF_SLICE_PART_INIT", last: target_pitch: u64);

impl hostbuf_slice {
    /// Returns the bytes of the tensor.
    fn tensor_bytes(&self) -> CallResult<&[u8]> {
        Ok(self.source.loaded()?.get(&self.tensor).map_err(load_error)?.bytes)
    }
}

/// Gives a slice of the tensor `name` to the caller.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn give(
    tensors: Option<&hostbuf_tensors>,
    name: *const c_char,
    to: Option<&mut MaybeUninit<*mut hostbuf_slice>>,
    slice: impl FnOnce(&TensorEntry) -> Result<TensorSlice, SliceError>,
) -> CallResult<()> {
    let to = output(to, "to", null_mut())?;
    let source = input(tensors, "tensors")?.source.clone();
    // SAFETY: by the contract of this function.
    let tensor = unsafe { text(name, "name") }?.to_owned();
    let slice = slice(source.entry(&tensor).map_err(load_error)?);
    let slice = slice.map_err(|source| load_error(LoadError::Slice { tensor: tensor.clone(), source }))?;
    *to = Box::into_raw(Box::new(hostbuf_slice { source, tensor, slice }));
    Ok(())
}

/// Sets `to` to the slice of all elements of the tensor `name`.
///
/// `HOSTBUF_NOTHING`: there is no such tensor.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_tensors_whole(
    tensors: Option<&hostbuf_tensors>,
    name: *const c_char,
    to: Option<&mut MaybeUninit<*mut hostbuf_slice>>,
) -> hostbuf_status {
    // SAFETY: by the contract of this function.
    call(|| unsafe { give(tensors, name, to, |entry| Ok(entry.whole())) })
}

/// Sets `to` to the part of rank `rank` of `ranks` along dimension `dim` of the tensor `name`. All
/// ranks get as many elements as the first, except the last ones, which get fewer or none if the
/// number of ranks does not divide the dimension (`torch.chunk`).
///
/// `HOSTBUF_NOTHING`: there is no such tensor. `HOSTBUF_INVALID`: it has no such slice.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_tensors_slice(
    tensors: Option<&hostbuf_tensors>,
    name: *const c_char,
    dim: usize,
    rank: usize,
    ranks: usize,
    to: Option<&mut MaybeUninit<*mut hostbuf_slice>>,
) -> hostbuf_status {
    // SAFETY: by the contract of this function.
    call(|| unsafe { give(tensors, name, to, |entry| entry.slice(dim, rank, ranks)) })
}

/// Sets `to` to the shares of rank `rank` of `ranks` of `count` parts that are adjacent along
/// dimension `dim` of the tensor `name`, such as Q, K and V. `sizes` has the number of elements of
/// each part along the dimension. `shares` has the number of shares of each part: the
/// number of KV heads, if several ranks use the same one; 0, or a null array, is one share for each
/// rank. A part that cannot be divided into equal shares is refused.
///
/// The results are those of `hostbuf_tensors_slice`.
// Safety: the pointers are null or valid, and the arrays have `count` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_tensors_fused_slice(
    tensors: Option<&hostbuf_tensors>,
    name: *const c_char,
    dim: usize,
    sizes: *const u64,
    shares: *const usize,
    count: usize,
    rank: usize,
    ranks: usize,
    to: Option<&mut MaybeUninit<*mut hostbuf_slice>>,
) -> hostbuf_status {
    call(|| {
        if sizes.is_null() && count > 0 {
            return Err(argument("sizes is null"));
        }
        let part = |at: usize| {
            // SAFETY: by the contract of this function.
            let part = FusedPart::new(unsafe { *sizes.add(at) });
            // SAFETY: as above.
            let shares = if shares.is_null() { 0 } else { unsafe { *shares.add(at) } };
            if shares == 0 { part } else { part.shares(shares) }
        };
        let parts: Vec<FusedPart> = (0..count).map(part).collect();
        // SAFETY: by the contract of this function.
        unsafe { give(tensors, name, to, |entry| entry.fused_slice(dim, &parts, rank, ranks)) }
    })
}

/// Writes the shape of a slice to `to`.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_slice_stat(
    slice: Option<&hostbuf_slice>,
    to: *mut hostbuf_slice_info,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(to, "to") }?;
        let slice = &input(slice, "slice")?.slice;
        to.write(&hostbuf_slice_info {
            struct_size: size_of::<hostbuf_slice_info>(),
            bytes: slice.bytes,
            ndim: slice.shape.len(),
            shape: first(&slice.shape),
            part_count: slice.parts.len(),
        });
        Ok(())
    })
}

/// Writes the part number `index` of a slice to `to`. The parts are numbered from 0.
// Safety: the pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_slice_part_at(
    slice: Option<&hostbuf_slice>,
    index: usize,
    to: *mut hostbuf_slice_part,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(to, "to") }?;
        let own = input(slice, "slice")?;
        let count = own.slice.parts.len();
        let invalid = || argument(format!("invalid index {index}: the slice has {count} parts, from 0 on"));
        let part = own.slice.parts.get(index).ok_or_else(invalid)?;
        to.write(&hostbuf_slice_part {
            struct_size: size_of::<hostbuf_slice_part>(),
            address: own.tensor_bytes()?[part.offset as usize..].as_ptr().cast(),
            pitch: part.pitch,
            width: part.width,
            height: part.height,
            target_offset: part.target_offset,
            target_pitch: part.target_pitch,
        });
        Ok(())
    })
}

/// Copies a slice, packed, to memory of the host, which has exactly `size` bytes, those of the
/// slice.
// Safety: the pointers are null or valid, and the memory is not in the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_slice_copy(
    slice: Option<&hostbuf_slice>,
    memory: *mut c_void,
    size: usize,
) -> hostbuf_status {
    call(|| {
        let own = input(slice, "slice")?;
        if size as u64 != own.slice.bytes {
            let (name, needed) = (printable_name(&own.tensor), own.slice.bytes);
            return Err(argument(format!(
                "the memory for tensor \"{name}\" has {size} bytes, and {needed} are needed: allocate exactly as many"
            )));
        }
        if size == 0 {
            return Ok(());
        }
        if memory.is_null() {
            return Err(argument("memory is null"));
        }
        // SAFETY: the caller's memory, which has `size` bytes.
        let into = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), size) };
        own.slice.copy(own.tensor_bytes()?, into);
        Ok(())
    })
}

/// Frees a slice. Null is ignored.
// Safety: `slice` is null or a live handle. It is not used again.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_slice_free(slice: Option<Box<hostbuf_slice>>) {
    call(|| {
        drop(slice);
        Ok(())
    });
}
