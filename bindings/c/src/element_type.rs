//! The types of array elements.

use ::hostbuf_pool::ElementType;

use crate::status::{CallResult, argument};

/// The type of the elements of an array in a block. A number is 256 times the type code of DLPack
/// plus the number of bits. Elements have the byte order of the host.
#[allow(dead_code, reason = "the structures have an integer, since the caller's may be invalid")]
#[repr(C)]
#[derive(Clone, Copy)]
pub enum hostbuf_element_type {
    /// Bytes without a type: for publishing, all of the block's.
    HOSTBUF_ELEMENT_NONE = 0,
    HOSTBUF_ELEMENT_INT8 = 8,
    HOSTBUF_ELEMENT_INT16 = 16,
    HOSTBUF_ELEMENT_INT32 = 32,
    HOSTBUF_ELEMENT_INT64 = 64,
    HOSTBUF_ELEMENT_UINT8 = 264,
    HOSTBUF_ELEMENT_UINT16 = 272,
    HOSTBUF_ELEMENT_UINT32 = 288,
    HOSTBUF_ELEMENT_UINT64 = 320,
    HOSTBUF_ELEMENT_FLOAT16 = 528,
    HOSTBUF_ELEMENT_FLOAT32 = 544,
    HOSTBUF_ELEMENT_FLOAT64 = 576,
    /// A byte without a meaning for others.
    HOSTBUF_ELEMENT_OPAQUE = 776,
    HOSTBUF_ELEMENT_BFLOAT16 = 1040,
    HOSTBUF_ELEMENT_COMPLEX64 = 1344,
    HOSTBUF_ELEMENT_COMPLEX128 = 1408,
    /// A byte, 0 or 1.
    HOSTBUF_ELEMENT_BOOL = 1544,
    HOSTBUF_ELEMENT_FLOAT8_E4M3FN = 2568,
    HOSTBUF_ELEMENT_FLOAT8_E5M2 = 3080,
}

/// Returns the number of a type.
pub fn number(element: ElementType) -> u32 {
    let (code, bits, _) = element.dlpack();
    u32::from(code) * 256 + u32::from(bits)
}

/// Returns the type with a number of the caller.
pub fn element_type(number: u32) -> CallResult<ElementType> {
    let code = u8::try_from(number / 256).ok();
    code.and_then(|code| ElementType::from_dlpack(code, (number % 256) as u8, 1)).ok_or_else(|| {
        argument(format!("invalid element type {number}: expected a value of hostbuf_element_type"))
    })
}

#[cfg(test)]
mod tests {
    use super::hostbuf_element_type as E;
    use super::*;

    #[test]
    fn the_numbers_are_those_of_dlpack() {
        for (name, element) in [
            (E::HOSTBUF_ELEMENT_BOOL, ElementType::Bool),
            (E::HOSTBUF_ELEMENT_INT8, ElementType::Int8),
            (E::HOSTBUF_ELEMENT_INT16, ElementType::Int16),
            (E::HOSTBUF_ELEMENT_INT32, ElementType::Int32),
            (E::HOSTBUF_ELEMENT_INT64, ElementType::Int64),
            (E::HOSTBUF_ELEMENT_UINT8, ElementType::UInt8),
            (E::HOSTBUF_ELEMENT_UINT16, ElementType::UInt16),
            (E::HOSTBUF_ELEMENT_UINT32, ElementType::UInt32),
            (E::HOSTBUF_ELEMENT_UINT64, ElementType::UInt64),
            (E::HOSTBUF_ELEMENT_FLOAT16, ElementType::Float16),
            (E::HOSTBUF_ELEMENT_FLOAT32, ElementType::Float32),
            (E::HOSTBUF_ELEMENT_FLOAT64, ElementType::Float64),
            (E::HOSTBUF_ELEMENT_BFLOAT16, ElementType::BFloat16),
            (E::HOSTBUF_ELEMENT_FLOAT8_E4M3FN, ElementType::Float8E4M3Fn),
            (E::HOSTBUF_ELEMENT_FLOAT8_E5M2, ElementType::Float8E5M2),
            (E::HOSTBUF_ELEMENT_COMPLEX64, ElementType::Complex64),
            (E::HOSTBUF_ELEMENT_COMPLEX128, ElementType::Complex128),
            (E::HOSTBUF_ELEMENT_OPAQUE, ElementType::Opaque),
        ] {
            assert_eq!((name as u32, element_type(name as u32).ok()), (number(element), Some(element)));
        }
        assert_eq!(ElementType::ALL.len(), 18);
        for wrong in [0, 1, 7, 265, 1 << 16, u32::MAX] {
            assert!(element_type(wrong).is_err(), "{wrong}");
        }
    }
}
