//! The types of the elements of tensors.

use std::fmt;

/// The type of the elements of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "dtype")]
pub enum Dtype {
    /// A truth value of one byte.
    Bool,
    /// A microscaling float of 4 bits. Two elements share a byte.
    F4,
    /// A microscaling float of 6 bits, with 2 bits of exponent. Four elements share three bytes.
    F6E2M3,
    /// A microscaling float of 6 bits, with 3 bits of exponent. Four elements share three bytes.
    F6E3M2,
    /// An unsigned integer of 8 bits.
    U8,
    /// A signed integer of 8 bits.
    I8,
    /// A float of 8 bits, with 5 bits of exponent.
    F8E5M2,
    /// A float of 8 bits, with 4 bits of exponent.
    F8E4M3,
    /// A power of two of 8 bits, used as a scale.
    F8E8M0,
    /// A float of 8 bits with 4 bits of exponent, without infinities and without a negative zero.
    F8E4M3Fnuz,
    /// A float of 8 bits with 5 bits of exponent, without infinities and without a negative zero.
    F8E5M2Fnuz,
    /// A signed integer of 16 bits.
    I16,
    /// An unsigned integer of 16 bits.
    U16,
    /// An IEEE float of 16 bits.
    F16,
    /// A bfloat16.
    BF16,
    /// A signed integer of 32 bits.
    I32,
    /// An unsigned integer of 32 bits.
    U32,
    /// An IEEE float of 32 bits.
    F32,
    /// A complex number of two `F32`.
    C64,
    /// An IEEE float of 64 bits.
    F64,
    /// A signed integer of 64 bits.
    I64,
    /// An unsigned integer of 64 bits.
    U64,
    /// A complex number of two `F64`.
    C128,
}

/// The types with their names in safetensors and their lengths in bits. The position of a type is
/// its number in encoded tables, so new types go to the end.
const ALL: [(Dtype, &str, u32); 23] = [
    (Dtype::Bool, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6E2M3, "F6_E2M3", 6),
    (Dtype::F6E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8E5M2, "F8_E5M2", 8),
    (Dtype::F8E4M3, "F8_E4M3", 8),
    (Dtype::F8E8M0, "F8_E8M0", 8),
    (Dtype::F8E4M3Fnuz, "F8_E4M3FNUZ", 8),
    (Dtype::F8E5M2Fnuz, "F8_E5M2FNUZ", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::BF16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
    (Dtype::C128, "C128", 128),
];

impl Dtype {
    /// Returns all types.
    pub fn all() -> impl Iterator<Item = Dtype> {
        ALL.iter().map(|&(dtype, ..)| dtype)
    }

    fn row(self) -> (Dtype, &'static str, u32) {
        ALL[self as usize]
    }

    /// Returns the name, as safetensors has it: `BF16`, `F8_E4M3`. `C128`, which safetensors does
    /// not have, is named alike.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the type with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Dtype> {
        ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Returns the length of an element in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.row().2
    }

    /// Returns the number of bytes of `elements` elements. `None` if they do not fill whole bytes,
    /// or no memory is that large.
    #[must_use]
    pub fn bytes(self, elements: u64) -> Option<u64> {
        let bits = elements.checked_mul(u64::from(self.bits()))?;
        bits.is_multiple_of(8).then_some(bits / 8)
    }

    /// Returns the number in encoded tables.
    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    /// Returns the type with this number.
    pub(crate) fn from_code(code: u8) -> Option<Dtype> {
        ALL.get(usize::from(code)).map(|row| row.0)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_its_own_row() {
        for (index, (dtype, name, _)) in ALL.into_iter().enumerate() {
            assert_eq!(usize::from(dtype.code()), index);
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
            assert_eq!(Dtype::from_name(name), Some(dtype));
        }
        assert_eq!(Dtype::from_code(ALL.len() as u8), None);
    }

    #[test]
    fn elements_of_less_than_a_byte_fill_whole_bytes() {
        assert_eq!(Dtype::F4.bytes(6), Some(3));
        assert_eq!(Dtype::F4.bytes(5), None);
        assert_eq!(Dtype::F6E2M3.bytes(4), Some(3));
        assert_eq!(Dtype::F64.bytes(u64::MAX / 8), None);
    }
}
