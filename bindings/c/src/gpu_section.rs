//! The GPU sections of a buffer.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::c_char;
use std::mem::MaybeUninit;

use crate::buffer::{hostbuf_buffer, hostbuf_proof, write_proof};
use crate::gpu_section_calls;
use crate::gpu_section_info::hostbuf_gpu_section_info;
use crate::group::{group, hostbuf_collective};
use crate::pointers::{input, struct_output, text};
use crate::status::{argument, call, hostbuf_status};

sized_struct!(hostbuf_gpu_section_info, "HOSTBUF_GPU_SECTION_INFO_INIT", last: frozen: i32);

/// Writes the GPU section `name` of a buffer to `to`. All GPUs that the process sees have
/// access to it; the CPU has none. Its contents are undefined at first.
///
/// `HOSTBUF_INVALID`: the buffer has no such section. `HOSTBUF_UNSUPPORTED`: this process has not
/// mapped it before `main`.
// Safety: `buffer`, `name` and `to` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_gpu_section(
    buffer: Option<&hostbuf_buffer>,
    name: *const c_char,
    to: *mut hostbuf_gpu_section_info,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let (mut to, name) = unsafe { (struct_output(to, "to")?, text(name, "name")?) };
        let own = input(buffer, "buffer")?;
        // Its error lists the names.
        let (address, is_frozen) = gpu_section_calls::state(&own.buffer, name)?;
        let found = own.gpu_sections.iter().find(|section| section.name().to_bytes() == name.as_bytes());
        let section = found.ok_or_else(|| argument(format!("there is no GPU section \"{name}\"")))?;
        to.write(&section.info(address, is_frozen));
        Ok(())
    })
}

/// Makes the GPU section `name` of a buffer permanently read-only, for all GPUs of all ranks of
/// `group`. A kernel that writes to it afterwards ends with `cudaErrorIllegalAddress`, which breaks
/// the context of its process. Finish all work that writes to it first. Collective over all ranks
/// that use GPUs. `proof` may be null. It is always `HOSTBUF_WEAKER`, since GPU memory
/// cannot be sealed; `hostbuf_message` returns the reason.
///
/// `HOSTBUF_UNSUPPORTED`: a driver has refused it, or a rank has not mapped the section. A
/// section that was writable stays writable.
// Safety: `buffer`, `name`, `group` and `proof` are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_gpu_section_freeze(
    buffer: Option<&hostbuf_buffer>,
    name: *const c_char,
    group: *const hostbuf_collective,
    proof: Option<&mut MaybeUninit<hostbuf_proof>>,
) -> hostbuf_status {
    call(|| {
        // SAFETY: by the contract of this function.
        let (group, name) = unsafe { (self::group(group)?, text(name, "name")) };
        let given = name.and_then(|name| Ok((&input(buffer, "buffer")?.buffer, name)));
        write_proof(&gpu_section_calls::freeze(&*group, given)?, proof);
        Ok(())
    })
}
