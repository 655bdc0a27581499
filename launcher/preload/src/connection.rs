//! The connection to the host's agent: packets and their descriptors, without an allocator.

use hostbuf_protocol::frame::{FRAME_MAX, FrameError};
use hostbuf_protocol::message::Message;
use hostbuf_raw::syscall::{self as raw, Errno};

use crate::static_buffer::{BufferGuard, StaticBuffer};
use crate::text::Line;

/// The memory of the received packets: the one with the agreed range, and a later one.
static RECEIVED: [StaticBuffer<FRAME_MAX>; 2] = [const { StaticBuffer::new() }; 2];
/// The memory of a packet that is sent.
static SENT: [StaticBuffer<FRAME_MAX>; 1] = [const { StaticBuffer::new() }; 1];

/// A received packet. Dropping it closes its descriptors.
pub(crate) struct PacketBuffer {
    bytes: BufferGuard<FRAME_MAX>,
    length: usize,
    descriptors: [i32; raw::MAX_DESCRIPTORS],
    count: usize,
}

impl PacketBuffer {
    /// Makes an empty packet.
    pub(crate) fn new() -> PacketBuffer {
        let bytes = StaticBuffer::one_of(&RECEIVED);
        PacketBuffer { bytes, length: 0, descriptors: [-1; raw::MAX_DESCRIPTORS], count: 0 }
    }

    /// Replaces the packet by the next one of the connection `fd`. Its length is 0 when the agent
    /// has closed the connection.
    ///
    /// # Errors
    /// As `recvmsg(2)`.
    pub(crate) fn receive(&mut self, fd: i32) -> Result<(), Errno> {
        self.close();
        self.length = 0;
        let received = raw::receive(fd, &mut *self.bytes, &mut self.descriptors)?;
        (self.length, self.count) = (received.packet, received.descriptors);
        Ok(())
    }

    /// Returns whether the agent has closed the connection.
    pub(crate) fn is_end(&self) -> bool {
        self.length == 0
    }

    /// Parses the message in the packet.
    ///
    /// # Errors
    /// As [`Message::parse`].
    pub(crate) fn message(&self) -> Result<Message<'_>, FrameError> {
        Message::parse(&self.bytes[..self.length])
    }

    /// Returns the descriptors that came with the packet.
    pub(crate) fn descriptors(&self) -> &[i32] {
        &self.descriptors[..self.count]
    }

    /// Closes the descriptors.
    pub(crate) fn close(&mut self) {
        for &fd in &self.descriptors[..self.count] {
            raw::close(fd);
        }
        self.count = 0;
    }
}

impl Drop for PacketBuffer {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sends a message.
///
/// # Errors
/// As `sendmsg(2)`.
pub(crate) fn send(fd: i32, message: &Message<'_>) -> Result<(), Errno> {
    raw::send(fd, message.encode(&mut StaticBuffer::one_of(&SENT)[..]))
}

/// Describes a failure to map buffers with `expected` descriptors, of which `found` have arrived.
pub(crate) fn mapping_error(errno: Errno, found: usize, expected: usize) -> Line {
    if found < expected {
        return Line::new(format_args!(
            "only {found} of the {expected} descriptors of the buffers fit into the limit of open files (`ulimit -n`): \
             raise it"
        ));
    }
    Line::new(format_args!("mapping the buffers failed, error {}", errno.0))
}
