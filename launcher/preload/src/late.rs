//! A later image of a job: a child of a rank, a program that a rank has become, or a spawned
//! process. It maps the agreed range, or ends with an error.

use hostbuf_protocol::ballot::Holds;
use hostbuf_protocol::failure::{ErrorClass, ErrorRecord};
use hostbuf_protocol::frame::FrameError;
use hostbuf_protocol::message::{AddressWindow, Hello, Message, Role};
use hostbuf_raw::syscall::{self as raw, Errno};

use crate::connection::{PacketBuffer, mapping_error, send};
use crate::rank::{end, other_version};
use crate::refusal::describe;
use crate::text::Line;

/// The reason why a later image has no buffer.
pub(crate) enum LateError {
    /// The agent cannot be reached.
    Unreachable(Errno),
    /// The connection closed without an answer, or the name belongs to another user now, as at the
    /// end of a job.
    JobOver,
    /// The job has failed: the received packet has the error.
    JobFailed,
    /// The agent does not serve this process, although the job goes on: the received packet has the
    /// reason.
    Refused,
}

/// Gets the memory from the agent that listens on `name`. Receives the message with the agreed
/// range into `agreed`.
///
/// # Errors
/// [`LateError`].
pub(crate) fn attach(
    name: &[u8],
    address_window: AddressWindow,
    agreed: &mut PacketBuffer,
) -> Result<(), LateError> {
    let fd = raw::connect(name).map_err(LateError::Unreachable)?;
    let attached = attach_over(fd, address_window, agreed);
    raw::close(fd);
    agreed.close();
    attached
}

fn attach_over(fd: i32, address_window: AddressWindow, packet: &mut PacketBuffer) -> Result<(), LateError> {
    // Any user can take a name; another user's socket does not belong to the job's agent.
    if raw::peer_uid(fd) != Ok(raw::euid()) {
        return Err(LateError::JobOver);
    }
    let hello = Message::Hello { hello: Hello::of(Role::Late), command: b"" };
    send(fd, &hello).and_then(|()| packet.receive(fd)).map_err(|_| LateError::JobOver)?;
    let range = match packet.message() {
        Ok(Message::Agreed { range, .. }) => range,
        Ok(Message::Fail { .. }) => return Err(LateError::JobFailed),
        Ok(Message::Refused { .. }) => return Err(LateError::Refused),
        Err(FrameError::OtherVersion(theirs)) => {
            other_version(theirs).say();
            end(ErrorClass::Attach)
        }
        _ => return Err(LateError::JobOver),
    };
    let mut holds = Holds::new(address_window);
    if let Err(refusal) = holds.take(&range) {
        let line = describe(&refusal, &range)
            .and(b". It is a later image of a rank: run it directly under `hostbuf exec`, so that it votes.");
        line.say();
        let class = ErrorClass::Attach;
        let _ = send(fd, &Message::Failed { error: ErrorRecord::new(class, line.text()) });
        end(class);
    }
    let descriptors = packet.descriptors();
    if let Err(errno) = holds.map(&range, descriptors) {
        let why = mapping_error(errno, descriptors.len(), range.descriptors());
        Line::new(format_args!("hostbuf: process {} has no buffer at {:#x}: ", raw::pid(), range.address))
            .and(why.bytes())
            .say();
        end(ErrorClass::Os);
    }
    let _ = send(fd, &Message::Mapped);
    Ok(())
}
