//! The sections of a buffer: by name, or one after another.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_char;

use crate::buffer::hostbuf_buffer;
use crate::pointers::{input, struct_output, text};
use crate::section_info::hostbuf_section_info;
use crate::status::{argument, call, hostbuf_status};

sized_struct!(hostbuf_section_info, "HOSTBUF_SECTION_INFO_INIT", last: obtained: *const u64);

/// Returns the number of sections of a buffer, or 0 for a null buffer. If a buffer has sections or
/// a placement, the rest of its memory, if any, is a last section with an empty name.
// Safety: `buffer` is null or a live handle.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_section_count(buffer: Option<&hostbuf_buffer>) -> usize {
    buffer.map_or(0, |buffer| buffer.sections.len())
}

/// Writes the section number `index` of a buffer to `to`. The sections are numbered from 0, in the
/// order of their addresses.
// Safety: `buffer` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_section_at(
    buffer: Option<&hostbuf_buffer>,
    index: usize,
    to: *mut hostbuf_section_info,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let mut to = unsafe { struct_output(to, "to") }?;
        let own = input(buffer, "buffer")?;
        let Some(section) = own.sections.get(index) else {
            return Err(argument(format!(
                "invalid index {index}: buffer \"{}\" has {} sections",
                own.buffer.name(),
                own.sections.len()
            )));
        };
        to.write(&section.info());
        Ok(())
    })
}

/// Writes the section `name` of a buffer to `to`.
// Safety: `buffer`, `name` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_section(
    buffer: Option<&hostbuf_buffer>,
    name: *const c_char,
    to: *mut hostbuf_section_info,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let (mut to, name) = unsafe { (struct_output(to, "to")?, text(name, "name")?) };
        let own = input(buffer, "buffer")?;
        // Its error lists the names.
        own.buffer.section(name)?;
        let found = own.sections.iter().find(|section| section.name().to_bytes() == name.as_bytes());
        let section = found.ok_or_else(|| argument(format!("there is no section \"{name}\"")))?;
        to.write(&section.info());
        Ok(())
    })
}
