//! The connection of a rank to the agent of its host.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::time::Duration;

use hostbuf::{JobError, Result};
use hostbuf_os::{FrameSocket, Packet, Received, socket};
use hostbuf_protocol::ballot::{Holds, answer};
use hostbuf_protocol::environment::{CONNECTION_SILENT, ENV_CONNECTION};
use hostbuf_protocol::message::{AddressWindow, Message};

use crate::descriptor_shortage::descriptor_shortage;
use crate::gpu_user::{GpuUser, has_mapped_sections};
use crate::message::say;
use crate::process_end::exit_process;

/// The time in which the agent has to reply to the error of this rank with the end of the job.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// The connection to the agent that the preloaded object has left open.
pub(crate) struct AgentLink {
    channel: FrameSocket,
    /// True if another process reports the end of the agent.
    pub(crate) silent: bool,
    /// False if it is known that the agent does not wait for this rank.
    is_counted: Cell<bool>,
}

/// The agent's reply.
#[derive(PartialEq, Eq)]
pub(crate) enum AgentReply {
    /// All ranks may run.
    Go,
    /// No reply in time, or the connection has ended.
    None,
}

/// The holds of this rank in the vote on the address of the GPU sections.
enum GpuVote {
    /// Those of a rank that uses GPUs.
    Gpus(GpuUser),
    /// Those of another rank, which keeps the range reserved.
    Other(Option<Holds>),
}

impl AgentLink {
    /// Returns the connection if this is the process that has inherited it.
    #[allow(unsafe_code, reason = "takes over an inherited descriptor")]
    pub(crate) fn inherited() -> Option<AgentLink> {
        let value = std::env::var(ENV_CONNECTION).ok()?;
        let shorter = value.strip_suffix(CONNECTION_SILENT);
        let (fd, pid) = shorter.unwrap_or(&value).split_once(':')?;
        let silent = shorter.is_some();
        let fd = fd.parse::<i32>().ok().filter(|_| pid.parse() == Ok(std::process::id()))?;
        mark_used(ENV_CONNECTION);
        // SAFETY: `hostbuf exec` has left this descriptor open for this process. The preloaded
        // object has used it, and nothing else knows its number.
        let channel = FrameSocket::from_fd(unsafe { OwnedFd::from_raw_fd(fd) }).ok()?;
        Some(AgentLink { channel, silent, is_counted: Cell::new(true) })
    }

    /// Reports that the buffers are mapped and registered, takes part in the vote on the address of
    /// the GPU sections, and maps them if this rank uses GPUs. Returns the agent's reply.
    ///
    /// # Errors
    /// The reason why this rank cannot map the GPU sections.
    pub(crate) fn complete(&self, gpus: Option<GpuUser>) -> Result<AgentReply> {
        // The next receive reports a failure to send.
        if gpus.is_some() {
            let _ = self.channel.send(&Message::GpuReady, &[]);
        }
        let _ = self.channel.send(&Message::Mapped, &[]);
        let mut vote = gpus.map_or(GpuVote::Other(Some(Holds::new(AddressWindow::Anywhere))), GpuVote::Gpus);
        let reply = self.wait(Some(&mut vote))?;
        match vote {
            // The agent does not count this rank: it runs in the place of an earlier program.
            GpuVote::Gpus(user) if reply == AgentReply::Go && !has_mapped_sections() => {
                self.is_counted.set(false);
                user.map_later()?;
            }
            _ => {}
        }
        Ok(reply)
    }

    /// Reports an error, and waits for the end of the job.
    pub(crate) fn fail(&self, error: &JobError) {
        let _ = socket::set_receive_timeout(self.channel.as_fd(), Some(REPLY_TIMEOUT));
        if self.is_counted.get() && self.channel.send(&Message::Failed { error: error.record() }, &[]).is_ok()
        {
            let _ = self.wait(None);
        }
    }

    /// Waits for the agent's reply, and ends the process if the job has failed.
    fn wait(&self, mut vote: Option<&mut GpuVote>) -> Result<AgentReply> {
        loop {
            match self.channel.receive() {
                Ok(Received::Packet(packet)) => match packet.message() {
                    Ok(Message::Go { .. }) => return Ok(AgentReply::Go),
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
                    _ => vote.iter_mut().try_for_each(|vote| vote.handle(&packet, &self.channel))?,
                },
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Only `GpuMemory` carries enough descriptors to exceed the limit.
                Err(source) if source.raw_os_error() == Some(libc::EMFILE) => {
                    let pieces = match &vote {
                        Some(GpuVote::Gpus(user)) => user.pieces(),
                        _ => 0,
                    };
                    return Err(descriptor_shortage(pieces, source));
                }
                Ok(_) | Err(_) => return Ok(AgentReply::None),
            }
        }
    }
}

impl GpuVote {
    /// Handles a message of the agent about the GPU sections.
    fn handle(&mut self, packet: &Packet, channel: &FrameSocket) -> Result<()> {
        let holds = match self {
            GpuVote::Gpus(user) => return user.handle(packet, channel),
            GpuVote::Other(holds) => holds,
        };
        let (Ok(message), Some(held)) = (packet.message(), holds.as_mut()) else { return Ok(()) };
        if answer(held, &message, |reply| channel.send(reply, &[])).is_none()
            && let Message::GpuRange { address, .. } = message
        {
            holds.take().into_iter().for_each(|held| held.reserve(address as usize));
        }
        Ok(())
    }
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
