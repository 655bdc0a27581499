//! What a program can ask the object, and what hostbuf's own library in it does:
//! include/hostbuf_registered.h.

use std::ffi::{c_char, c_int};

use hostbuf::register::{Mlock, Probe, Span};
use hostbuf_os::process;

use crate::described::Described;
use crate::held;
use crate::message;

/// Describes registration number `index` of this process in `*to`: 1; 0 when there are not so many.
///
/// # Safety
/// `to` must be valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_registered(index: usize, to: *mut Described) -> c_int {
    let found = std::panic::catch_unwind(|| held::describe(index)).ok().flatten();
    let Some(described) = found else { return 0 };
    // SAFETY: by this function's contract.
    unsafe { to.write(described) };
    1
}

/// Ends what is registered of the buffers in a range, so that nobody can write there by a device,
/// and nothing pins it. 0 when all has ended.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_registered_end(address: usize, length: usize) -> c_int {
    in_range(address, length, held::end)
}

/// Registers again, for reading alone, what [`hostbuf_registered_end`] has ended. 0 when all is
/// registered; otherwise it says why on standard error, since whoever wrote `--register` counts on
/// it.
#[unsafe(no_mangle)]
pub extern "C" fn hostbuf_registered_again(address: usize, length: usize) -> c_int {
    in_range(address, length, |span| {
        let failures = held::again(span);
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

/// Whether this host can register with each kind of device, one line each: `mlock`, `cuda` or
/// `rdma`, a blank, `ready` or `missing`, a blank, and with what, or why not. Written to `text`,
/// cut at `room` bytes; how many there are.
///
/// # Safety
/// `text` must be valid for writing `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostbuf_registered_probe(text: *mut c_char, room: usize) -> usize {
    let Ok(said) = std::panic::catch_unwind(probe) else { return 0 };
    let length = said.len().min(room);
    // SAFETY: by this function's contract.
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
