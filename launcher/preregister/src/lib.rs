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
//! The object also maps the GPU sections in the ranks that use GPUs (`gpu_user.rs`).
//!
//! include/hostbuf_registered.h declares the exported functions.

mod agent_link;
mod descriptor_shortage;
mod exports;
mod gpu_user;
mod message;
mod process_end;
mod registered_buffer;
mod registrations;

use hostbuf::register::DeviceList;
use hostbuf::{Error, ErrorClass, HostBuffer, JobError, Result};
use hostbuf_os::process;
use hostbuf_protocol::environment::{ENV_ADDRESS, ENV_RANK, ENV_REGISTER};

use agent_link::{AgentLink, AgentReply};
use gpu_user::GpuUser;
use message::say;
use process_end::exit_process;

#[used]
#[allow(unsafe_code, reason = "the dynamic loader calls the functions in this section")]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    if std::panic::catch_unwind(begin).is_err() {
        exit_process(ErrorClass::Defect.status().into());
    }
}

fn begin() {
    let Some(devices) = requested_devices() else { return };
    let link = AgentLink::inherited();
    let started = devices.and_then(|devices| start_rank(&devices, link.as_ref()));
    match (started, link) {
        (Ok(AgentReply::Go), _) => {}
        (Ok(AgentReply::None), link) => {
            let own = std::process::id();
            if link.is_some_and(|link| !link.silent) {
                say(&format!("the agent of this host ended before all ranks had the buffer (process {own})"));
            }
            exit_process(ErrorClass::Attach.status().into());
        }
        (Err(error), link) => {
            let error = error.into();
            link.iter().for_each(|link| link.fail(&error));
            // There is no agent, or it has ended, or it does not count this rank: no other process
            // prints the error.
            fail(&error);
        }
    }
}

/// Registers the buffers and maps the GPU sections. A rank then waits until all ranks may run.
///
/// # Errors
/// The reason why this process cannot start.
fn start_rank(devices: &DeviceList, link: Option<&AgentLink>) -> Result<AgentReply> {
    if link.is_none() && !has_buffer() {
        // A later image of a job whose agent has ended runs without the buffer.
        return Ok(AgentReply::Go);
    }
    let buffers = HostBuffer::attach_all()?;
    // One table contains the registrations of all buffers.
    buffers.first().into_iter().for_each(HostBuffer::forget_earlier_image);
    // The driver of the GPUs is initialised before it is asked for addresses.
    let gpus = GpuUser::find(&buffers)?;
    registrations::register(&buffers, devices)?;
    match link {
        Some(link) => link.complete(gpus),
        None => gpus.map_or(Ok(()), GpuUser::map_later).map(|()| AgentReply::Go),
    }
}

/// Returns the devices if this is the process that registers.
fn requested_devices() -> Option<Result<DeviceList>> {
    let value = std::env::var(ENV_REGISTER).ok()?;
    let (pid, devices) = value.split_once(':')?;
    if pid.parse() != Ok(std::process::id()) {
        return None;
    }
    if devices.is_empty() {
        return Some(Ok(DeviceList(Vec::new())));
    }
    Some(devices.parse().map_err(|why| Error::Invalid { what: format!("{ENV_REGISTER}: {why}") }))
}

/// Returns whether the preloaded object has mapped the buffers.
fn has_buffer() -> bool {
    let address = std::env::var(ENV_ADDRESS).unwrap_or_default();
    u64::from_str_radix(address.trim_start_matches("0x"), 16).is_ok_and(|address| address != 0)
}

fn fail(error: &JobError) -> ! {
    let (pid, host) = (std::process::id(), process::host_name());
    // A later program of a rank.
    match std::env::var(ENV_RANK) {
        Ok(rank) => say(&format!("rank {rank} on {host} (process {pid}): {error}")),
        Err(_) => say(&format!("process {pid} on {host}: {error}")),
    }
    exit_process(error.class.status().into())
}
