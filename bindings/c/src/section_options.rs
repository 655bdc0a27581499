//! The sections of a new buffer, and its placement.

#![allow(unsafe_code, reason = "reads structures and texts of the caller")]

use std::ffi::c_char;
use std::ptr::null;

use library::segment::MAX_SECTIONS;
use library::sized_struct::SizedInput;
use library::{Placement, Section};

use crate::pointers::{read, text};
use crate::status::{CallResult, argument};

/// A section of a new buffer: a named part whose pages may have a placement of their own. The
/// sections are contiguous from the beginning of the buffer, each on whole pages.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hostbuf_section_options {
    /// The size of this structure: initialize it with `HOSTBUF_SECTION_OPTIONS_INIT` or
    /// `HOSTBUF_SECTION`.
    pub struct_size: usize,
    /// The name: at most 31 bytes of letters, digits, `_`, `-` and `.`.
    pub name: *const c_char,
    /// The usable size, in bytes. It is rounded up to whole pages.
    pub size: u64,
    /// The NUMA nodes of the pages, as in `hostbuf_options`; null for those of the buffer.
    pub numa: *const c_char,
}

sized_struct!(hostbuf_section_options, "HOSTBUF_SECTION_OPTIONS_INIT", last: numa: *const c_char);

// SAFETY: numbers and pointers.
unsafe impl SizedInput for hostbuf_section_options {
    const DEFAULT: hostbuf_section_options = hostbuf_section_options {
        struct_size: size_of::<hostbuf_section_options>(),
        name: null(),
        size: 0,
        numa: null(),
    };
}

/// Converts a placement of the caller, null for none. `name` is the name of the argument.
///
/// # Safety
/// `numa` is null or a C string.
pub unsafe fn placement(numa: *const c_char, name: &str) -> CallResult<Option<Placement>> {
    if numa.is_null() {
        return Ok(None);
    }
    // SAFETY: by the contract of this function.
    Ok(Some(unsafe { text(numa, name) }?.parse()?))
}

/// Converts the sections of the caller. The first one states the size of all.
///
/// # Safety
/// `first` is null, or points to `count` sections of this size whose pointers are null or C
/// strings.
pub unsafe fn sections(first: *const hostbuf_section_options, count: usize) -> CallResult<Vec<Section>> {
    if count > MAX_SECTIONS {
        return Err(argument(format!(
            "invalid options.section_count {count}: expected at most {MAX_SECTIONS}"
        )));
    }
    let mut found = Vec::with_capacity(count);
    let mut each = 0;
    for i in 0..count {
        let name = format!("options.sections[{i}]");
        let at = first.wrapping_byte_add(i * each);
        if i > 0 {
            // SAFETY: by the contract of this function; struct_size is the first field.
            let size = unsafe { at.cast::<usize>().read() };
            if size != each {
                return Err(argument(format!(
                    "{name} has struct_size {size}, and options.sections[0] has {each}: initialize each with \
                     HOSTBUF_SECTION_OPTIONS_INIT or HOSTBUF_SECTION"
                )));
            }
        }
        // SAFETY: as above.
        let requested = unsafe { read(at, &name) }?;
        each = requested.struct_size;
        // SAFETY: as above.
        let (own, placement) = unsafe {
            (
                text(requested.name, &format!("{name}.name"))?,
                placement(requested.numa, &format!("{name}.numa"))?,
            )
        };
        let section = Section::new(own, requested.size);
        found.push(match placement {
            Some(placement) => section.numa(placement),
            None => section,
        });
    }
    Ok(found)
}
