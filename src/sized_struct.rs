//! C structs that begin with their size, so that later versions can append fields.
//!
//! The first field, `struct_size`, is the size of the struct in the version that the caller was
//! compiled with. A caller may be older or newer than the library:
//!
//! - A smaller struct lacks the last fields. They have their defaults when the library reads the
//!   struct, and are not written when it fills the struct.
//! - A larger struct has fields that the library does not know. It is accepted if they are 0.
//!
//! The library accesses no byte beyond the caller's size. Sizes are multiples of 8, and structs
//! have no padding at their end, so a new field never takes the place of an older version's
//! padding.

#![allow(unsafe_code, reason = "reads and writes structures of the caller by raw pointers")]

use std::marker::PhantomData;
use std::ptr;

/// The largest accepted size of a struct. A larger number is taken for uninitialized memory.
pub const MAX_SIZE: usize = 4096;

/// A C struct that begins with `struct_size`.
///
/// # Safety
/// The type is `repr(C)`, its first field is a `usize`, and its last field ends at its size.
pub unsafe trait SizedStruct: Copy {
    /// The name of the type in C, for messages.
    const NAME: &'static str;
    /// The name of the macro with the initial values, for messages.
    const INITIALIZER: &'static str;
    /// The smallest accepted size.
    const MIN: usize = size_of::<usize>();
}

/// A struct that a caller fills.
///
/// # Safety
/// All values that a C program can store in the fields are valid.
pub unsafe trait SizedInput: SizedStruct {
    /// The struct with the default of each field.
    const DEFAULT: Self;
}

/// Checks the size of a caller's struct and returns it. `name` is the name of the argument.
///
/// # Safety
/// `at` is null, or points to as many readable bytes as `struct_size` says if that is valid.
unsafe fn checked_size<T: SizedStruct>(at: *const T, name: &str) -> Result<usize, String> {
    const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() == 8 && size_of::<T>() <= MAX_SIZE) };
    if at.is_null() {
        return Err(format!("{name} is null"));
    }
    let own = size_of::<T>();
    // SAFETY: by the contract of this function; struct_size is the first field.
    let size = unsafe { at.cast::<usize>().read() };
    if !size.is_multiple_of(8) || !(T::MIN..=MAX_SIZE).contains(&size) {
        return Err(format!(
            "{name} has the invalid struct_size {size}: initialize {} with {} ({own} bytes in this version of hostbuf)",
            T::NAME,
            T::INITIALIZER
        ));
    }
    // SAFETY: the caller's struct has these bytes.
    let is_zero = |index| unsafe { at.cast::<u8>().add(index).read() } == 0;
    if !(own..size).all(is_zero) {
        return Err(format!(
            "{name} has {size} bytes, and fields after the {own} bytes that this version of hostbuf knows of {} are not 0: \
             leave them 0, or use the hostbuf that the program was compiled with",
            T::NAME
        ));
    }
    Ok(size)
}

/// Reads a caller's struct, with defaults for the fields that it lacks. `name` is the name of the
/// argument, for the error.
///
/// # Errors
/// A message if `at` is null, the size is invalid, or unknown fields are not 0.
///
/// # Safety
/// `at` is null, or points to a struct whose `struct_size` is initialized. If that is a valid size,
/// as many bytes are readable.
pub unsafe fn read<T: SizedInput>(at: *const T, name: &str) -> Result<T, String> {
    // SAFETY: by the contract of this function.
    let size = unsafe { checked_size(at, name) }?;
    let mut value = T::DEFAULT;
    // SAFETY: both have this many bytes, and all values are valid by the contract of the trait.
    unsafe {
        ptr::copy_nonoverlapping(at.cast::<u8>(), (&raw mut value).cast::<u8>(), size.min(size_of::<T>()));
    };
    Ok(value)
}

/// A caller's struct that the library fills.
pub struct Output<'a, T> {
    at: *mut T,
    size: usize,
    caller: PhantomData<&'a mut T>,
}

impl<T: SizedStruct> Output<'_, T> {
    /// Checks a caller's struct. `name` is the name of the argument, for the error.
    ///
    /// # Errors
    /// A message if `at` is null, the size is invalid, or unknown fields are not 0.
    ///
    /// # Safety
    /// As for [`read`], and the bytes are writable as long as this lives.
    pub unsafe fn new(at: *mut T, name: &str) -> Result<Self, String> {
        // SAFETY: by the contract of this function.
        let size = unsafe { checked_size(at.cast_const(), name) }?;
        Ok(Output { at, size, caller: PhantomData })
    }

    /// Writes the fields that the caller's struct has, except `struct_size`.
    pub fn write(&mut self, value: &T) {
        let first = size_of::<usize>();
        let end = self.size.min(size_of::<T>());
        // SAFETY: new() has checked that the caller's struct has these bytes.
        unsafe {
            let from = ptr::from_ref(value).cast::<u8>().add(first);
            ptr::copy_nonoverlapping(from, self.at.cast::<u8>().add(first), end - first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Sample {
        struct_size: usize,
        first: u64,
        second: u64,
    }

    // SAFETY: three words, the first of which is the size.
    unsafe impl SizedStruct for Sample {
        const NAME: &'static str = "sample";
        const INITIALIZER: &'static str = "SAMPLE_INIT";
    }
    // SAFETY: numbers.
    unsafe impl SizedInput for Sample {
        const DEFAULT: Sample = Sample { struct_size: size_of::<Sample>(), first: 7, second: 8 };
    }

    fn read(words: &[usize]) -> Result<Sample, String> {
        // SAFETY: each test passes as many words as it says, or an invalid size.
        unsafe { super::read(words.as_ptr().cast::<Sample>(), "argument") }
    }

    #[test]
    fn a_smaller_struct_has_defaults_for_the_fields_that_it_lacks() {
        assert_eq!(read(&[24, 1, 2]), Ok(Sample { struct_size: 24, first: 1, second: 2 }));
        assert_eq!(read(&[16, 1]), Ok(Sample { struct_size: 16, first: 1, second: 8 }));
        assert_eq!(read(&[8]), Ok(Sample { struct_size: 8, first: 7, second: 8 }));
    }

    #[test]
    fn a_larger_struct_is_accepted_if_its_unknown_fields_are_zero() {
        assert_eq!(read(&[40, 1, 2, 0, 0]), Ok(Sample { struct_size: 40, first: 1, second: 2 }));
        for last in [1, 1 << 56] {
            let error = read(&[40, 1, 2, 0, last]).unwrap_err();
            assert!(error.contains("argument has 40 bytes") && error.contains("are not 0"), "{error}");
        }
    }

    #[test]
    fn an_invalid_size_is_an_error_that_names_the_initializer() {
        for size in [0, 4, 12, 20, MAX_SIZE + 8, usize::MAX] {
            let error = read(&[size]).unwrap_err();
            assert!(error.contains(&format!("invalid struct_size {size}")), "{error}");
            assert!(error.contains("initialize sample with SAMPLE_INIT (24 bytes"), "{error}");
        }
        // SAFETY: null.
        let error = unsafe { super::read(ptr::null::<Sample>(), "argument") }.unwrap_err();
        assert_eq!(error, "argument is null");
    }

    #[test]
    fn no_byte_beyond_the_callers_size_is_written() {
        for (size, wanted) in [(24, [24, 1, 2, 9]), (16, [16, 1, 9, 9]), (8, [8, 9, 9, 9])] {
            let mut words: [usize; 4] = [size, 9, 9, 9];
            // SAFETY: the array has at least this many bytes.
            let mut output =
                unsafe { Output::new(words.as_mut_ptr().cast::<Sample>(), "to") }.expect("valid");
            output.write(&Sample { struct_size: 5, first: 1, second: 2 });
            assert_eq!(words, wanted);
        }
        let mut words: [usize; 4] = [32, 9, 9, 0];
        // SAFETY: as above.
        let mut output = unsafe { Output::new(words.as_mut_ptr().cast::<Sample>(), "to") }.expect("valid");
        output.write(&Sample { struct_size: 5, first: 1, second: 2 });
        assert_eq!(words, [32, 1, 2, 0]);
    }
}
