//! The exported functions, for programs and for hostbuf's library in them:
//! include/hostbuf_registered.h.

#![allow(unsafe_code, reason = "the functions are called by C, with pointers of the caller")]

use std::ffi::{c_char, c_int};

use hostbuf::register::{DeviceName, Probe, Span};
use hostbuf::sized_struct::Output;
use hostbuf_os::process;

use crate::gpu_user;
use crate::message;
use crate::registered_buffer::RegisteredBuffer;
use crate::registrations;

/// Writes registration number `index` of this process to `*to`. Returns 1, or 0 if there are fewer
/// registrations, or -1 and prints the reason to standard error if the size of `*to` is invalid.
///
/// # Safety
/// `to` must be null, or point to a writable structure whose `struct_size` is initialized and
/// correct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_registered(index: usize, to: *mut RegisteredBuffer) -> c_int {
    // SAFETY: by the contract of this function.
    let mut to = match unsafe { Output::new(to, "to") } {
        Ok(to) => to,
        Err(why) => {
            message::say(&format!("process {}: hostbuf_registered: {why}", std::process::id()));
            return -1;
        }
    };
    let found = std::panic::catch_unwind(|| registrations::describe(index)).ok().flatten();
    let Some(record) = found else { return 0 };
    to.write(&record);
    1
}

/// Ends the registrations of the buffers in a range, so that no device can write there and no pages
/// are pinned. Returns 0 if all have ended.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_registered_end(address: usize, length: usize) -> c_int {
    in_range(address, length, registrations::end)
}

/// Registers the buffers whose registrations [`hostbuf_registered_end`] has ended again, for
/// reading only. Returns 0 if all are registered. Otherwise it prints the reason to standard error,
/// since the user requested the registrations with `--register`.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_registered_again(address: usize, length: usize) -> c_int {
    in_range(address, length, |span| {
        let failures = registrations::again(span);
        for why in &failures {
            message::say(&format!("process {} on {}: {why}", std::process::id(), process::host_name()));
        }
        failures.is_empty()
    })
}

/// Returns 1 if this process has mapped the GPU sections of the job, and 0 if it has not.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_maps_gpu_sections() -> c_int {
    c_int::from(gpu_user::has_mapped_sections())
}

fn in_range(address: usize, length: usize, act: fn(Span) -> bool) -> c_int {
    let Ok(span) = Span::new(address, length) else { return -1 };
    match std::panic::catch_unwind(|| act(span)) {
        Ok(true) => 0,
        _ => -1,
    }
}

/// Checks for each kind of device whether this host can register memory with it. Writes one line
/// each to `text`: the name of the kind, a blank, `ready` or `missing`, a blank, and the
/// description or the reason. The text is truncated to `room` bytes. Returns its length.
///
/// # Safety
/// `text` must be valid for writing `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_registered_probe(text: *mut c_char, room: usize) -> usize {
    let Ok(report) = std::panic::catch_unwind(probe) else { return 0 };
    let length = report.len().min(room);
    // SAFETY: by the contract of this function.
    unsafe { text.copy_from_nonoverlapping(report.as_ptr().cast(), length) };
    length
}

fn probe() -> String {
    let line = |name: DeviceName| match name.probe() {
        Probe::Ready(what) => format!("{name} ready {what}\n"),
        Probe::Missing(why) => format!("{name} missing {why}\n"),
    };
    DeviceName::all().filter(DeviceName::is_built).map(line).collect()
}
