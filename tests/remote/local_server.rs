//! Servers of other projects on the loopback interface.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hostbuf_tests::eventually;

/// A server that was started for a test, and ends with it.
pub struct LocalServer {
    child: Child,
}

impl LocalServer {
    /// Starts the server that `command` makes for free ports, and waits until it accepts
    /// connections at all of them. If another process takes a port meanwhile, tries others.
    pub fn start<const PORTS: usize>(
        command: impl Fn([u16; PORTS]) -> Command,
    ) -> (LocalServer, [u16; PORTS]) {
        for _ in 0..10 {
            let listeners =
                [(); PORTS].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"));
            let ports = listeners.each_ref().map(|port| port.local_addr().expect("it is bound").port());
            drop(listeners);
            let child = command(ports).stdin(Stdio::null()).spawn().expect("the server starts");
            let mut server = LocalServer { child };
            let accepts = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
            let mut has_ended = false;
            eventually("the server accepts connections", Duration::from_secs(30), || {
                has_ended = server.child.try_wait().expect("a child").is_some();
                has_ended || ports.iter().all(accepts)
            });
            if !has_ended {
                return (server, ports);
            }
        }
        panic!("the server ends at once");
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
