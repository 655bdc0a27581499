//! Ports of the loopback interface for servers of a test.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket, sockopt,
};

/// A port of the loopback interface that the system gives to no other socket which asks for any
/// port. A server that sets `SO_REUSEADDR`, as they do, can listen at it, end, and listen again.
pub struct ReservedPort {
    number: u16,
    _socket: OwnedFd,
}

impl ReservedPort {
    pub fn new() -> ReservedPort {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
        let socket = socket.expect("a socket");
        setsockopt(&socket, sockopt::ReuseAddr, &true).expect("a socket");
        bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0)).expect("a free port");
        let address: SockaddrIn = getsockname(socket.as_raw_fd()).expect("it is bound");
        ReservedPort { number: address.port(), _socket: socket }
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}
