//! Servers of other projects on the loopback interface.

use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hostbuf_tests::eventually;

use super::reserved_port::ReservedPort;

/// A server that was started for a test, and ends with it.
pub struct LocalServer {
    command: Command,
    child: Child,
    ports: Vec<ReservedPort>,
}

impl LocalServer {
    /// Starts the server that `command` makes for free ports, and waits until it accepts
    /// connections at all of them.
    pub fn start<const PORTS: usize>(
        command: impl FnOnce([u16; PORTS]) -> Command,
    ) -> (LocalServer, [u16; PORTS]) {
        let reserved = [(); PORTS].map(|()| ReservedPort::new());
        let ports = reserved.each_ref().map(ReservedPort::number);
        let mut command = command(ports);
        command.stdin(Stdio::null());
        let child = command.spawn().expect("the server starts");
        let mut server = LocalServer { command, child, ports: reserved.into() };
        server.wait();
        (server, ports)
    }

    fn wait(&mut self) {
        let accepts = |port: &ReservedPort| TcpStream::connect((Ipv4Addr::LOCALHOST, port.number())).is_ok();
        eventually("the server accepts connections", Duration::from_secs(30), || {
            let ended = self.child.try_wait().expect("a child");
            assert!(ended.is_none(), "the server ends at once: {:?}", self.command);
            self.ports.iter().all(accepts)
        });
    }

    /// Kills the server, and waits until it has ended. Nothing listens at its ports then.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is a child");
        self.child.wait().expect("it is a child");
    }

    /// Starts the server again after [`LocalServer::kill`], at the same ports.
    pub fn restart(&mut self) {
        self.child = self.command.spawn().expect("the server starts");
        self.wait();
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
