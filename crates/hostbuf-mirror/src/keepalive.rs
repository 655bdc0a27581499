//! Questions of the kernel to a peer that is silent, which may have vanished.

use std::io;
use std::net::TcpStream;

use nix::sys::socket::{setsockopt, sockopt};

/// The number of questions without an answer after which the connection is lost.
const PROBES: u32 = 3;

/// Has the kernel ask a peer that has been silent for `seconds`, and again after each such time,
/// whether it is there. A peer that does not answer, or that knows nothing of the connection any
/// more, makes it a lost one. The kernel asks nothing while it repeats bytes that the peer has not
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
