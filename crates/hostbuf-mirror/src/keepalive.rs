//! TCP keepalive, which detects a peer that has vanished.

use std::io;
use std::net::TcpStream;

use nix::sys::socket::{setsockopt, sockopt};

/// The number of unanswered keepalive probes after which the connection is lost.
const PROBES: u32 = 3;

/// Makes the kernel probe a peer that has been silent for `seconds`, and again after each such
/// time. The connection is lost if the peer answers none of the probes, or does not know the
/// connection. The kernel sends no probes while it retransmits bytes that the peer has not
/// acknowledged.
///
/// # Errors
/// As `setsockopt(2)`.
pub(crate) fn keep_alive(stream: &TcpStream, seconds: u32) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &seconds)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &seconds)?;
    setsockopt(stream, sockopt::TcpKeepCount, &PROBES)?;
    Ok(())
}
