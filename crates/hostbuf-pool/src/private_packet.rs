//! A packet whose descriptors forked children do not get.

use std::io;

use hostbuf_os::{ForkLock, FrameSocket, PrivateFd, Received};

/// A packet whose descriptors forked children do not get.
#[derive(Debug)]
pub(crate) struct PrivatePacket {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<PrivateFd>,
}

impl PrivatePacket {
    /// Receives a packet, if there is one. The lock against forks is held only here: whoever has it
    /// must drop no [`PrivateFd`].
    ///
    /// # Errors
    /// `UnexpectedEof` at the end of the connection; else as `recvmsg(2)`.
    pub(crate) fn receive(socket: &FrameSocket) -> io::Result<Option<PrivatePacket>> {
        let mut unforked = ForkLock::take();
        let (bytes, descriptors) = match socket.receive()? {
            Received::Packet(packet) => packet.into_parts(),
            Received::Nothing => return Ok(None),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let descriptors = descriptors.into_iter().map(|fd| unforked.keep(fd)).collect();
        Ok(Some(PrivatePacket { bytes, descriptors }))
    }
}
