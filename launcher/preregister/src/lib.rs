//! The registering object: registers a job's buffers with devices before the `main` of the rank
//! that `--register` names.
//!
//! It is loaded by `LD_PRELOAD` behind the preloaded object, which it names as needed: so its
//! constructor runs when the buffer is mapped, and before those of the program. The preloaded
//! object leaves it the connection to the host's agent; no rank of the job runs before this one has
//! said that all is registered, and if it cannot be, none does.
//!
//! Children of the process load it too, and it does nothing there, since registrations belong to a
//! process. In an image that the process becomes later (`env`, `numactl`, `sh -c 'exec ...'`) it
//! registers again: the first image's registrations ended with that image.
//!
//! What it exports is in include/hostbuf_registered.h.

#![allow(unsafe_code)]

mod described;
mod exports;
mod held;
mod message;

use std::ffi::{CStr, c_char};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use hostbuf::register::DeviceList;
use hostbuf::{Error, HostBuffer, Result};
use hostbuf_os::{FrameSocket, Received, process, socket};
use hostbuf_protocol::environment::{ENV_ADDRESS, ENV_CONNECTION, ENV_REGISTER};
use hostbuf_protocol::message::Message;

use message::say;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// How long the agent may take to say how the job ends, once it has heard that this rank cannot go
/// on.
const PATIENCE: Duration = Duration::from_secs(20);

extern "C" fn start() {
    if std::panic::catch_unwind(begin).is_err() {
        leave(1);
    }
}

fn begin() {
    let Some(devices) = asked() else { return };
    let channel = handed_over();
    let registered = devices.and_then(|devices| {
        if channel.is_none() && !has_buffer() {
            // A later image of a job whose agent has gone runs without the buffer.
            return Ok(());
        }
        let buffers = HostBuffer::attach_all()?;
        // One table has those of all buffers.
        buffers.first().into_iter().for_each(HostBuffer::forget_earlier_image);
        held::register(&buffers, &devices)
    });
    match (registered, channel) {
        (Ok(()), None) => {}
        (Ok(()), Some(channel)) => {
            // A failure to send shows in what comes next.
            let _ = channel.send(&Message::Mapped, &[]);
            if hear(&channel) == Heard::Nothing {
                let own = std::process::id();
                say(&format!("the agent of this host ended before all ranks had the buffer (process {own})"));
                leave(1);
            }
        }
        (Err(error), None) => fail(&error),
        (Err(error), Some(channel)) => {
            let _ = socket::set_receive_timeout(std::os::fd::AsFd::as_fd(&channel), Some(PATIENCE));
            let told = channel.send(&Message::Failed { status: 0, text: error.to_string().as_bytes() }, &[]);
            if told.is_ok() {
                hear(&channel);
            }
            // The agent has gone, or does not count this rank: nobody else will say it.
            fail(&error);
        }
    }
}

/// The devices, when this is the process that registers.
fn asked() -> Option<Result<DeviceList>> {
    let value = std::env::var(ENV_REGISTER).ok()?;
    let (pid, devices) = value.split_once(':')?;
    if pid.parse() != Ok(std::process::id()) {
        return None;
    }
    Some(devices.parse().map_err(|why| Error::Invalid { what: format!("{ENV_REGISTER}: {why}") }))
}

/// Whether the preloaded object has mapped the buffers.
fn has_buffer() -> bool {
    let address = std::env::var(ENV_ADDRESS).unwrap_or_default();
    u64::from_str_radix(address.trim_start_matches("0x"), 16).is_ok_and(|address| address != 0)
}

/// The connection that the preloaded object has left open.
fn handed_over() -> Option<FrameSocket> {
    let value = std::env::var(ENV_CONNECTION).ok()?;
    let (fd, pid) = value.split_once(':')?;
    let fd = fd.parse::<i32>().ok().filter(|_| pid.parse() == Ok(std::process::id()))?;
    used_up(ENV_CONNECTION);
    // SAFETY: the number that `hostbuf exec` has left open for this process, and the preloaded
    // object has used; nobody else knows it.
    FrameSocket::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }).ok()
}

/// Makes a variable's value `-`, where it lies. Not by setenv: some programs bring one of their own
/// (bash), which must not be called before their main.
fn used_up(name: &str) {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: constructors run one after another, before any thread of the program; the environment
    // is a list of texts of this process's own, and null ends it.
    unsafe {
        let mut place = environ;
        while !place.is_null() && !(*place).is_null() {
            let text = CStr::from_ptr(*place).to_bytes();
            let value = text.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                let at = (*place).add(text.len() - value.len());
                at.write(b'-' as c_char);
                at.add(1).write(0);
            }
            place = place.add(1);
        }
    }
}

/// What the agent said.
#[derive(PartialEq, Eq)]
enum Heard {
    /// All ranks may run.
    Go,
    /// Nothing in time, or nothing any more.
    Nothing,
}

/// Waits for the agent's word; ends the process when the job has failed.
fn hear(channel: &FrameSocket) -> Heard {
    loop {
        match channel.receive() {
            Ok(Received::Packet(packet)) => match packet.message() {
                Ok(Message::Go { .. }) => return Heard::Go,
                Ok(Message::Fail { status, prints, text }) => {
                    if prints {
                        say(&String::from_utf8_lossy(text));
                    }
                    leave(i32::from(status));
                }
                _ => {}
            },
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return Heard::Nothing,
        }
    }
}

fn fail(error: &Error) -> ! {
    say(&format!("process {} on {}: {error}", std::process::id(), process::host_name()));
    leave(1)
}

/// Without the program's own end, which has not begun.
fn leave(status: i32) -> ! {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(status) }
}
