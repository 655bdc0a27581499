//! The types of array elements, in the terms of DLPack, of the array interface and of numpy.

use std::fmt;

/// The type of the elements of an array.
///
/// Elements have the byte order of the host, which is little-endian on all supported platforms.
/// DLPack's vector types (more than one lane) are a dimension of the array instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "DLDataType")]
pub enum ElementType {
    /// A truth value of one byte, 0 or 1.
    Bool,
    /// A signed integer of 8 bits.
    Int8,
    /// A signed integer of 16 bits.
    Int16,
    /// A signed integer of 32 bits.
    Int32,
    /// A signed integer of 64 bits.
    Int64,
    /// An unsigned integer of 8 bits.
    UInt8,
    /// An unsigned integer of 16 bits.
    UInt16,
    /// An unsigned integer of 32 bits.
    UInt32,
    /// An unsigned integer of 64 bits.
    UInt64,
    /// An IEEE 754 number of 16 bits.
    Float16,
    /// An IEEE 754 number of 32 bits.
    Float32,
    /// An IEEE 754 number of 64 bits.
    Float64,
    /// A number of 16 bits with the exponent of `Float32`.
    BFloat16,
    /// A number of 8 bits: 4 of exponent, 3 of mantissa, finite values and NaN.
    Float8E4M3Fn,
    /// A number of 8 bits: 5 of exponent, 2 of mantissa.
    Float8E5M2,
    /// Two `Float32`: the real and the imaginary part.
    Complex64,
    /// Two `Float64`: the real and the imaginary part.
    Complex128,
    /// A byte without a meaning for others, such as a part of an encoded image. DLPack has only its
    /// opaque handles for it, which most libraries refuse: view such bytes as `UInt8` there.
    Opaque,
}

/// The type codes of DLPack.
mod code {
    pub(super) const INT: u8 = 0;
    pub(super) const UINT: u8 = 1;
    pub(super) const FLOAT: u8 = 2;
    pub(super) const OPAQUE_HANDLE: u8 = 3;
    pub(super) const BFLOAT: u8 = 4;
    pub(super) const COMPLEX: u8 = 5;
    pub(super) const BOOL: u8 = 6;
    pub(super) const FLOAT8_E4M3FN: u8 = 10;
    pub(super) const FLOAT8_E5M2: u8 = 12;
}

/// The names of a type in other interfaces.
struct ElementNames {
    /// DLPack's code and number of bits.
    dlpack: (u8, u8),
    /// The letter of the kind in the array interface.
    kind: Option<char>,
    /// The name of numpy's data type.
    name: &'static str,
}

impl ElementType {
    /// All types.
    pub const ALL: &[ElementType] = &[
        ElementType::Bool,
        ElementType::Int8,
        ElementType::Int16,
        ElementType::Int32,
        ElementType::Int64,
        ElementType::UInt8,
        ElementType::UInt16,
        ElementType::UInt32,
        ElementType::UInt64,
        ElementType::Float16,
        ElementType::Float32,
        ElementType::Float64,
        ElementType::BFloat16,
        ElementType::Float8E4M3Fn,
        ElementType::Float8E5M2,
        ElementType::Complex64,
        ElementType::Complex128,
        ElementType::Opaque,
    ];

    const fn names(self) -> ElementNames {
        let (code, bits, kind, name) = match self {
            ElementType::Bool => (code::BOOL, 8, Some('b'), "bool"),
            ElementType::Int8 => (code::INT, 8, Some('i'), "int8"),
            ElementType::Int16 => (code::INT, 16, Some('i'), "int16"),
            ElementType::Int32 => (code::INT, 32, Some('i'), "int32"),
            ElementType::Int64 => (code::INT, 64, Some('i'), "int64"),
            ElementType::UInt8 => (code::UINT, 8, Some('u'), "uint8"),
            ElementType::UInt16 => (code::UINT, 16, Some('u'), "uint16"),
            ElementType::UInt32 => (code::UINT, 32, Some('u'), "uint32"),
            ElementType::UInt64 => (code::UINT, 64, Some('u'), "uint64"),
            ElementType::Float16 => (code::FLOAT, 16, Some('f'), "float16"),
            ElementType::Float32 => (code::FLOAT, 32, Some('f'), "float32"),
            ElementType::Float64 => (code::FLOAT, 64, Some('f'), "float64"),
            ElementType::BFloat16 => (code::BFLOAT, 16, None, "bfloat16"),
            ElementType::Float8E4M3Fn => (code::FLOAT8_E4M3FN, 8, None, "float8_e4m3fn"),
            ElementType::Float8E5M2 => (code::FLOAT8_E5M2, 8, None, "float8_e5m2"),
            ElementType::Complex64 => (code::COMPLEX, 64, Some('c'), "complex64"),
            ElementType::Complex128 => (code::COMPLEX, 128, Some('c'), "complex128"),
            ElementType::Opaque => (code::OPAQUE_HANDLE, 8, Some('V'), "void8"),
        };
        ElementNames { dlpack: (code, bits), kind, name }
    }

    /// Returns the size of an element in bytes.
    #[must_use]
    pub const fn size_bytes(self) -> u64 {
        (self.names().dlpack.1 / 8) as u64
    }

    /// Returns the code, the bits and the lanes of DLPack's `DLDataType`. There is always one lane.
    #[must_use]
    pub const fn dlpack(self) -> (u8, u8, u16) {
        let (code, bits) = self.names().dlpack;
        (code, bits, 1)
    }

    /// Returns the type with this code, bits and lanes in DLPack; None for others, such as vectors
    /// and elements that are smaller than a byte.
    #[must_use]
    pub fn from_dlpack(code: u8, bits: u8, lanes: u16) -> Option<ElementType> {
        ElementType::ALL.iter().copied().find(|element| element.dlpack() == (code, bits, lanes))
    }

    /// Returns the `typestr` of the array interface, such as `<f4` or `|u1`; None for the types
    /// that numpy itself does not have.
    #[must_use]
    #[doc(alias = "__array_interface__")]
    pub fn typestr(self) -> Option<String> {
        let size = self.size_bytes();
        let order = if size == 1 { '|' } else { '<' };
        self.names().kind.map(|kind| format!("{order}{kind}{size}"))
    }

    /// Returns the type with this `typestr` of the array interface. None for a type that is not
    /// among these, or whose elements have the byte order of other hosts (`>f4`).
    #[must_use]
    pub fn from_typestr(typestr: &str) -> Option<ElementType> {
        let (order, type_and_size) = typestr.split_at_checked(1)?;
        let element = ElementType::ALL
            .iter()
            .copied()
            .find(|element| element.typestr().is_some_and(|known| known.get(1..) == Some(type_and_size)))?;
        // A single byte has every order.
        let is_native = match order {
            "<" | "=" => true,
            ">" | "|" => element.size_bytes() == 1,
            _ => false,
        };
        is_native.then_some(element)
    }

    /// Returns the name of numpy's data type, such as `float32`. The types that numpy itself does
    /// not have are named as in `ml_dtypes` and PyTorch: `bfloat16`, `float8_e4m3fn`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.names().name
    }

    /// Returns the type with this name of numpy's data type.
    #[must_use]
    pub fn from_name(name: &str) -> Option<ElementType> {
        ElementType::ALL.iter().copied().find(|element| element.name() == name)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn each_type_is_found_by_its_names() {
        for &element in ElementType::ALL {
            let (code, bits, lanes) = element.dlpack();
            assert_eq!(ElementType::from_dlpack(code, bits, lanes), Some(element));
            assert_eq!(ElementType::from_name(element.name()), Some(element));
            assert_eq!(element.to_string(), element.name());
            if let Some(typestr) = element.typestr() {
                assert_eq!(ElementType::from_typestr(&typestr), Some(element));
            }
            assert_eq!(u64::from(bits), 8 * element.size_bytes());
        }
        let distinct: HashSet<ElementType> = ElementType::ALL.iter().copied().collect();
        assert_eq!(distinct.len(), ElementType::ALL.len());
    }

    /// The numbers are those of dlpack.h, and the texts those that numpy prints.
    #[test]
    fn types_have_the_names_of_dlpack_and_numpy() {
        let expected: [(u8, u8, Option<&str>, &str); 18] = [
            (0, 8, Some("|i1"), "int8"),
            (0, 16, Some("<i2"), "int16"),
            (0, 32, Some("<i4"), "int32"),
            (0, 64, Some("<i8"), "int64"),
            (1, 8, Some("|u1"), "uint8"),
            (1, 16, Some("<u2"), "uint16"),
            (1, 32, Some("<u4"), "uint32"),
            (1, 64, Some("<u8"), "uint64"),
            (2, 16, Some("<f2"), "float16"),
            (2, 32, Some("<f4"), "float32"),
            (2, 64, Some("<f8"), "float64"),
            (3, 8, Some("|V1"), "void8"),
            (4, 16, None, "bfloat16"),
            (5, 64, Some("<c8"), "complex64"),
            (5, 128, Some("<c16"), "complex128"),
            (6, 8, Some("|b1"), "bool"),
            (10, 8, None, "float8_e4m3fn"),
            (12, 8, None, "float8_e5m2"),
        ];
        for (code, bits, typestr, name) in expected {
            let element = ElementType::from_dlpack(code, bits, 1).expect(name);
            assert_eq!((element.typestr().as_deref(), element.name()), (typestr, name));
        }
    }

    #[test]
    fn other_types_are_refused() {
        for (code, bits, lanes) in [(2, 32, 4), (2, 32, 0), (2, 8, 1), (17, 4, 1), (0, 0, 1), (0xff, 8, 1)] {
            assert_eq!(ElementType::from_dlpack(code, bits, lanes), None);
        }
        for typestr in
            ["", "<", "f4", ">f4", "|f4", "<f3", "<U4", "<f44", "<O8", "éf4", "<M8[ns]", "<V12", "< f4"]
        {
            assert_eq!(ElementType::from_typestr(typestr), None, "{typestr:?}");
        }
        assert_eq!(ElementType::from_name("Float32"), None);
        assert_eq!(ElementType::from_name(""), None);
    }

    #[test]
    fn a_single_byte_has_every_byte_order() {
        for typestr in ["<u1", ">u1", "=u1", "|u1"] {
            assert_eq!(ElementType::from_typestr(typestr), Some(ElementType::UInt8));
        }
        assert_eq!(ElementType::from_typestr("=f4"), Some(ElementType::Float32));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,4}") {
            let _ = (ElementType::from_typestr(&text), ElementType::from_name(&text));
        }
    }
}
