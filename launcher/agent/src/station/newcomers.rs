//! New clients, from the message by which they identify themselves.

use std::time::Duration;

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::process;
use hostbuf_os::session::Shortage;
use hostbuf_protocol::message::Message;
use nix::sys::resource::{Resource, getrlimit};

use super::super::orders::Event;
use super::state::{ClientProcess, Stage, Station};

/// The time for which ranks wait for an agent without a free descriptor: other connections may be
/// closed meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

impl Station {
    /// Accepts connections, and greets the clients that have identified themselves.
    pub(super) fn accept(&mut self) {
        for newcomer in self.acceptor.advance() {
            // The acceptor hands over nothing else.
            let Ok(Message::Hello { hello, command }) = newcomer.hello.message() else { continue };
            let command = String::from_utf8_lossy(command).into_owned();
            let id = self.next;
            self.next += 1;
            self.peers.insert(id, ClientProcess::new(newcomer, hello, command));
            self.greet(id, hello);
        }
        self.look_if_short();
    }

    /// Fails the job if ranks cannot be accepted: they would wait for ever, and all other ranks for
    /// them.
    fn look_if_short(&mut self) {
        let Some(Shortage { since, error }) = self.acceptor.shortage() else { return };
        if self.reported_shortage || !matches!(self.stage, Stage::Gathering) || since.elapsed() < PATIENCE {
            return;
        }
        self.reported_shortage = true;
        let host = process::host_name();
        let message = if error.raw_os_error() == Some(nix::libc::EMFILE) {
            let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
            format!(
                "the agent on {host} cannot accept all ranks of this host: it is limited to {limit} open files \
                 (`ulimit -n`). Raise the limit, or start fewer ranks there: {error}"
            )
        } else {
            format!("the agent on {host} cannot accept the ranks of this host: {error}")
        };
        let _ = self.events.send(Event::Lost(JobError::new(ErrorClass::Os, message)));
    }
}
