//! The functions that the object exports to the program and to hostbuf's library in it, as
//! include/hostbuf_registered.h declares them.

use std::ffi::{c_char, c_int};

use hostbuf::register::{Mlock, Probe, Span};
use hostbuf_os::process;

use crate::described::Described;
use crate::message;
use crate::table;

/// Describes registration number `index` of this process in `*to`. Returns 1, or 0 if there are not
/// so many registrations.
///
/// # Safety
/// `to` must be valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_registered(index: usize, to: *mut Described) -> c_int {
    let found = std::panic::catch_unwind(|| table::describe(index)).ok().flatten();
    let Some(described) = found else { return 0 };
    // SAFETY: the caller guarantees it.
    unsafe { to.write(described) };
    1
}

/// Ends the registrations of the buffers in a range, so that no device can write there and no page
/// is pinned. Returns 0 if all have ended.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_registered_end(address: usize, length: usize) -> c_int {
    in_range(address, length, table::end)
}

/// Registers the buffers again, for reading only, after [`hostbuf_registered_end`]. Returns 0 if
/// all are registered. Otherwise it prints the reason on standard error, since the user of
/// `--register` relies on it.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_registered_again(address: usize, length: usize) -> c_int {
    in_range(address, length, |span| {
        let failures = table::again(span);
        for why in &failures {
            message::say(&format!("process {} on {}: {why}", std::process::id(), process::host_name()));
        }
        failures.is_empty()
    })
}

fn in_range(address: usize, length: usize, act: fn(Span) -> bool) -> c_int {
    let Ok(span) = Span::new(address, length) else { return -1 };
    match std::panic::catch_unwind(|| act(span)) {
        Ok(true) => 0,
        _ => -1,
    }
}

/// Reports for each kind of device whether this host can register with it, in one line each:
/// `mlock`, `cuda` or `rdma`, a blank, `ready` or `missing`, a blank, and the device or the reason.
/// Writes the lines to `text`, cut at `room` bytes, and returns their length before the cut.
///
/// # Safety
/// `text` must be valid for writing `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_registered_probe(text: *mut c_char, room: usize) -> usize {
    let Ok(said) = std::panic::catch_unwind(probe) else { return 0 };
    let length = said.len().min(room);
    // SAFETY: the caller guarantees it.
    unsafe { text.copy_from_nonoverlapping(said.as_ptr().cast(), length) };
    length
}

fn probe() -> String {
    let line = |kind: &str, probe: Probe| match probe {
        Probe::Ready(what) => format!("{kind} ready {what}\n"),
        Probe::Missing(why) => format!("{kind} missing {why}\n"),
    };
    #[allow(unused_mut, reason = "without the features")]
    let mut text = line("mlock", Mlock::probe());
    #[cfg(feature = "cuda")]
    text.push_str(&line("cuda", hostbuf::register::CudaHost::probe()));
    #[cfg(feature = "rdma")]
    text.push_str(&line("rdma", hostbuf::register::Verbs::probe()));
    text
}
