//! The registering object: registers a job's buffers with devices before the `main` of the rank
//! that `--register` names.
//!
//! `LD_PRELOAD` loads it behind the preloaded object, which it names as needed. Its constructor
//! therefore runs after the buffer is mapped, and before the constructors of the program. The
//! preloaded object leaves it the connection to the host's agent. No rank of the job runs before
//! this one has reported that all buffers are registered; if it reports an error, no rank runs.
//!
//! Children of the process load the object too. It does nothing there, since registrations belong
//! to a process. In an image that the process becomes later (`env`, `numactl`, `sh -c 'exec ...'`)
//! it registers again: the registrations of the first image ended with that image.
//!
//! include/hostbuf_registered.h declares the exported functions.

mod exports;
mod message;
mod registered_buffer;
mod registrations;

use std::ffi::{CStr, c_char};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

use hostbuf::register::DeviceList;
use hostbuf::{Error, ErrorClass, HostBuffer, JobError, Result};
use hostbuf_os::{FrameSocket, Received, process, socket};
use hostbuf_protocol::environment::{CONNECTION_SILENT, ENV_ADDRESS, ENV_CONNECTION, ENV_REGISTER};
use hostbuf_protocol::message::Message;

use message::say;

#[used]
#[allow(unsafe_code, reason = "the dynamic loader calls the functions in this section")]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// The time in which the agent has to reply to the error of this rank with the end of the job.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

extern "C" fn start() {
    if std::panic::catch_unwind(begin).is_err() {
        exit_process(ErrorClass::Defect.status().into());
    }
}

fn begin() {
    let Some(devices) = requested_devices() else { return };
    let channel = inherited_connection();
    let registered = devices.and_then(|devices| {
        if channel.is_none() && !has_buffer() {
            // A later image of a job whose agent has ended runs without the buffer.
            return Ok(());
        }
        let buffers = HostBuffer::attach_all()?;
        // One table contains the registrations of all buffers.
        buffers.first().into_iter().for_each(HostBuffer::forget_earlier_image);
        registrations::register(&buffers, &devices)
    });
    match (registered, channel) {
        (Ok(()), None) => {}
        (Ok(()), Some((channel, silent))) => {
            // The next receive reports a failure to send.
            let _ = channel.send(&Message::Mapped, &[]);
            if wait_for_reply(&channel) == AgentReply::None {
                let own = std::process::id();
                if !silent {
                    say(&format!(
                        "the agent of this host ended before all ranks had the buffer (process {own})"
                    ));
                }
                exit_process(ErrorClass::Attach.status().into());
            }
        }
        (Err(error), None) => fail(&error.into()),
        (Err(error), Some((channel, _))) => {
            let error = JobError::from(error);
            let _ = socket::set_receive_timeout(std::os::fd::AsFd::as_fd(&channel), Some(REPLY_TIMEOUT));
            if channel.send(&Message::Failed { error: error.record() }, &[]).is_ok() {
                wait_for_reply(&channel);
            }
            // The agent has ended, or does not count this rank: no other process prints the error.
            fail(&error);
        }
    }
}

/// Returns the devices if this is the process that registers.
fn requested_devices() -> Option<Result<DeviceList>> {
    let value = std::env::var(ENV_REGISTER).ok()?;
    let (pid, devices) = value.split_once(':')?;
    if pid.parse() != Ok(std::process::id()) {
        return None;
    }
    Some(devices.parse().map_err(|why| Error::Invalid { what: format!("{ENV_REGISTER}: {why}") }))
}

/// Returns whether the preloaded object has mapped the buffers.
fn has_buffer() -> bool {
    let address = std::env::var(ENV_ADDRESS).unwrap_or_default();
    u64::from_str_radix(address.trim_start_matches("0x"), 16).is_ok_and(|address| address != 0)
}

/// Returns the connection that the preloaded object has left open, and whether another process
/// reports the end of the agent.
#[allow(unsafe_code, reason = "takes over an inherited descriptor")]
fn inherited_connection() -> Option<(FrameSocket, bool)> {
    let value = std::env::var(ENV_CONNECTION).ok()?;
    let shorter = value.strip_suffix(CONNECTION_SILENT);
    let (fd, pid) = shorter.unwrap_or(&value).split_once(':')?;
    let silent = shorter.is_some();
    let fd = fd.parse::<i32>().ok().filter(|_| pid.parse() == Ok(std::process::id()))?;
    mark_used(ENV_CONNECTION);
    // SAFETY: `hostbuf exec` has left this descriptor open for this process. The preloaded object
    // has used it, and nothing else knows its number.
    let connection = FrameSocket::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }).ok()?;
    Some((connection, silent))
}

/// Overwrites the value of a variable with `-` in place. Some programs (bash) have their own
/// setenv, which must not be called before their main.
#[allow(unsafe_code, reason = "changes the environment of the process by address")]
fn mark_used(name: &str) {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: constructors run one after another, before any thread of the program. The environment
    // is a list of texts that belong to this process, and null ends it.
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

/// The agent's reply.
#[derive(PartialEq, Eq)]
enum AgentReply {
    /// All ranks may run.
    Go,
    /// No reply in time, or the connection has ended.
    None,
}

/// Waits for the agent's reply, and ends the process if the job has failed.
fn wait_for_reply(channel: &FrameSocket) -> AgentReply {
    loop {
        match channel.receive() {
            Ok(Received::Packet(packet)) => match packet.message() {
                Ok(Message::Go { .. }) => return AgentReply::Go,
                Ok(Message::Fail { prints, error }) => {
                    if prints {
                        say(error.line);
                    }
                    exit_process(error.class.status().into());
                }
                Ok(Message::Refused { error }) => {
                    say(error.line);
                    exit_process(error.class.status().into());
                }
                _ => {}
            },
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return AgentReply::None,
        }
    }
}

fn fail(error: &JobError) -> ! {
    say(&format!("process {} on {}: {error}", std::process::id(), process::host_name()));
    exit_process(error.class.status().into())
}

/// Ends the process at once. The program's own functions for its end do not run, since the program
/// has not begun.
#[allow(unsafe_code, reason = "ends the process without its destructors")]
fn exit_process(status: i32) -> ! {
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(status) }
}
