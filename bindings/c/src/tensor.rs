//! The description of a tensor, and the types of its elements.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null;

use ::hostbuf_load::{ArrayOrder, ByteOrder, Dtype, TensorEntry};

/// A tensor in a buffer. Its texts and arrays are valid as long as the tensors.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_tensor {
    /// The size of this structure: initialize it with `HOSTBUF_TENSOR_INIT`.
    pub struct_size: usize,
    /// The name.
    pub name: *const c_char,
    /// The address of the first byte, the same in every rank of every host. Null in a
    /// `hostbuf_targets_function`, before the tensor is loaded.
    pub address: *const c_void,
    /// The number of bytes.
    pub bytes: u64,
    /// The name of the element type, as safetensors has it: `"F32"`, `"BF16"`, `"F8_E4M3"`; also
    /// `"C128"`.
    pub dtype: *const c_char,
    /// 256 times the type code of DLPack plus the number of bits, as in `hostbuf_element_type`,
    /// which does not name the types with less than 8 bits and some with 8.
    pub element: u32,
    /// Not 0 if the first dimension is contiguous (Fortran order); else the last one is.
    pub is_fortran: u8,
    /// Not 0 if the most significant byte of an element is its first.
    pub is_big_endian: u8,
    /// Bytes for later versions.
    pub reserved: [u8; 2],
    /// The number of dimensions, 0 for a scalar.
    pub ndim: usize,
    /// The number of elements in each dimension.
    pub shape: *const u64,
}

/// Returns the name of a type, and its number.
fn element(dtype: Dtype) -> (&'static CStr, u32) {
    const INT: u32 = 0;
    const UINT: u32 = 1;
    const FLOAT: u32 = 2;
    const COMPLEX: u32 = 5;
    let (name, code) = match dtype {
        Dtype::Bool => (c"BOOL", 6),
        Dtype::F4 => (c"F4", 17),
        Dtype::F6E2M3 => (c"F6_E2M3", 15),
        Dtype::F6E3M2 => (c"F6_E3M2", 16),
        Dtype::U8 => (c"U8", UINT),
        Dtype::I8 => (c"I8", INT),
        Dtype::F8E5M2 => (c"F8_E5M2", 12),
        Dtype::F8E4M3 => (c"F8_E4M3", 10),
        Dtype::F8E8M0 => (c"F8_E8M0", 14),
        Dtype::F8E4M3Fnuz => (c"F8_E4M3FNUZ", 11),
        Dtype::F8E5M2Fnuz => (c"F8_E5M2FNUZ", 13),
        Dtype::I16 => (c"I16", INT),
        Dtype::U16 => (c"U16", UINT),
        Dtype::F16 => (c"F16", FLOAT),
        Dtype::BF16 => (c"BF16", 4),
        Dtype::I32 => (c"I32", INT),
        Dtype::U32 => (c"U32", UINT),
        Dtype::F32 => (c"F32", FLOAT),
        Dtype::C64 => (c"C64", COMPLEX),
        Dtype::F64 => (c"F64", FLOAT),
        Dtype::I64 => (c"I64", INT),
        Dtype::U64 => (c"U64", UINT),
        Dtype::C128 => (c"C128", COMPLEX),
        // A type that this file does not know yet; a test compares it with all types.
        _ => return (c"", 0),
    };
    (name, 256 * code + dtype.bits())
}

/// Returns the pointer to the first element, or null for an empty array.
pub(crate) fn first<T>(array: &[T]) -> *const T {
    if array.is_empty() { null() } else { array.as_ptr() }
}

impl hostbuf_tensor {
    /// Describes a tensor. The result has pointers to `name` and to the entry of the tensor.
    pub(crate) fn new(name: &CStr, entry: &TensorEntry, address: *const c_void) -> hostbuf_tensor {
        let (dtype, element) = element(entry.dtype);
        hostbuf_tensor {
            struct_size: size_of::<hostbuf_tensor>(),
            name: name.as_ptr(),
            address,
            bytes: entry.bytes(),
            dtype: dtype.as_ptr(),
            element,
            is_fortran: (entry.order == ArrayOrder::Fortran).into(),
            is_big_endian: (entry.byte_order == ByteOrder::Big).into(),
            reserved: [0; 2],
            ndim: entry.shape.len(),
            shape: first(&entry.shape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element_type::hostbuf_element_type as E;

    #[test]
    fn each_type_has_its_name_and_the_number_of_dlpack() {
        for dtype in Dtype::all() {
            let (name, number) = element(dtype);
            assert_eq!(name.to_str(), Ok(dtype.name()));
            assert_eq!(number % 256, dtype.bits(), "{dtype}");
        }
        for (dtype, number) in [
            (Dtype::Bool, E::HOSTBUF_ELEMENT_BOOL),
            (Dtype::U8, E::HOSTBUF_ELEMENT_UINT8),
            (Dtype::I8, E::HOSTBUF_ELEMENT_INT8),
            (Dtype::F8E5M2, E::HOSTBUF_ELEMENT_FLOAT8_E5M2),
            (Dtype::F8E4M3, E::HOSTBUF_ELEMENT_FLOAT8_E4M3FN),
            (Dtype::I16, E::HOSTBUF_ELEMENT_INT16),
            (Dtype::U16, E::HOSTBUF_ELEMENT_UINT16),
            (Dtype::F16, E::HOSTBUF_ELEMENT_FLOAT16),
            (Dtype::BF16, E::HOSTBUF_ELEMENT_BFLOAT16),
            (Dtype::I32, E::HOSTBUF_ELEMENT_INT32),
            (Dtype::U32, E::HOSTBUF_ELEMENT_UINT32),
            (Dtype::F32, E::HOSTBUF_ELEMENT_FLOAT32),
            (Dtype::C64, E::HOSTBUF_ELEMENT_COMPLEX64),
            (Dtype::F64, E::HOSTBUF_ELEMENT_FLOAT64),
            (Dtype::I64, E::HOSTBUF_ELEMENT_INT64),
            (Dtype::U64, E::HOSTBUF_ELEMENT_UINT64),
            (Dtype::C128, E::HOSTBUF_ELEMENT_COMPLEX128),
        ] {
            assert_eq!(element(dtype).1, number as u32, "{dtype}");
        }
    }
}
