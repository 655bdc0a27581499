//! New clients, from the message by which they identify themselves.

use std::time::Duration;

use hostbuf::{ErrorClass, JobError};
use hostbuf_os::process;
use hostbuf_os::session::DescriptorShortage;
use hostbuf_protocol::failure::ErrorRecord;
use hostbuf_protocol::message::{Hello, Message, Role};
use nix::sys::resource::{Resource, getrlimit};

use super::super::orders::Event;
use super::state::{ClientProcess, Server, Stage};

/// The time for which ranks wait for an agent without a free descriptor: other connections may be
/// closed meanwhile.
const SHORTAGE_TIMEOUT: Duration = Duration::from_secs(5);

impl Server {
    /// Accepts connections, and greets the clients that have identified themselves.
    pub(super) fn accept(&mut self) {
        for client in self.acceptor.advance() {
            // The acceptor hands over nothing else.
            let Ok(Message::Hello { hello, command }) = client.hello.message() else { continue };
            let command = String::from_utf8_lossy(command).into_owned();
            let id = self.next;
            self.next += 1;
            self.peers.insert(id, ClientProcess::new(client, hello, command));
            self.admit(id, hello);
        }
        self.check_shortage();
    }

    /// Takes a client in that has said hello.
    fn admit(&mut self, id: u64, hello: Hello) {
        if hello.role == Role::Rank {
            match self.stage {
                Stage::Gathering => return self.count(id, hello),
                Stage::Failed => self.record_connected(hello),
                // One program after another may run as one rank, so its place is not compared.
                _ => {}
            }
        }
        if matches!(self.stage, Stage::Failed) {
            return self.refuse();
        }
        match hello.role {
            Role::Rank if hello.request != self.request => {
                let why = format!(
                    "this job has its buffers already (\"{}\"), and this rank requests different ones: each `hostbuf exec` of a job \
                     must request the same buffers",
                    self.own_request.1
                );
                self.refuse_rank(id, &why);
            }
            // The engine may start processes later (MPI_Comm_spawn). They attach, and are not
            // counted.
            Role::Rank | Role::Late | Role::Library => self.send_memory(id),
            Role::Member => self.join(id, hello),
            Role::GpuUser => self.send_gpu_memory(id),
            role => {
                tracing::warn!(id, ?role, "a client has a role that this agent does not serve");
                self.connection_ended(id);
            }
        }
    }

    /// Counts a rank that has connected before the job has its buffers, unless its place on the
    /// host contradicts that of another rank.
    fn count(&mut self, id: u64, hello: Hello) {
        let contradicts = |h: &Hello| h.local_rank == hello.local_rank || h.local_size != hello.local_size;
        let other = self.ranks().find(|(_, h)| contradicts(h)).map(|(&other, h)| (other, h));
        if let Some((other, theirs)) = other {
            let pid = self.peers[&other].pid;
            let why = format!(
                "this process is local rank {} of {} by the engine's variables, and process {pid} of this job is local rank \
                 {} of {}: the engine must give each job a name of its own, and each rank a place of its own",
                hello.local_rank, hello.local_size, theirs.local_rank, theirs.local_size
            );
            return self.refuse_rank(id, &why);
        }
        let other = self.ranks().find(|(_, h)| h.request != hello.request).map(|(_, h)| h);
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.counted = true;
        let pid = peer.pid;
        self.record_connected(hello);
        self.rank_runs(pid, hello);
        self.deadline.rank_connected();
        self.request = hello.request;
        if let Some(other) = other {
            // The first of them has started this agent, with the buffers that it requests.
            let (own, text) = &self.own_request;
            let request = match () {
                () if *own == other.request => format!(", which requests \"{text}\""),
                () if *own == hello.request => format!(": it requests \"{text}\""),
                () => String::new(),
            };
            let why = format!(
                "its requested buffers differ from those of rank {} of the same job{request}",
                other.rank
            );
            self.lost_with(id, JobError::new(ErrorClass::Disagreed, why));
        }
    }

    /// Records that a rank of the host has connected. The first determines the number of ranks.
    fn record_connected(&mut self, hello: Hello) {
        let (ranks, size) = &mut self.seen;
        if ranks.is_empty() {
            *size = hello.local_size;
        }
        if *size == hello.local_size {
            ranks.insert(hello.local_rank);
        }
    }

    /// Refuses a rank, which prints the reason. The job goes on without it.
    fn refuse_rank(&mut self, id: u64, why: &str) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.refused = true;
        }
        let error = ErrorRecord::new(ErrorClass::Disagreed, why);
        self.send(id, &Message::Refused { error });
    }

    /// Fails the job if ranks cannot be accepted: they would wait for ever, and all other ranks for
    /// them.
    fn check_shortage(&mut self) {
        let Some(DescriptorShortage { since, error, .. }) = self.acceptor.shortage() else { return };
        if self.reported_shortage
            || !matches!(self.stage, Stage::Gathering)
            || since.elapsed() < SHORTAGE_TIMEOUT
        {
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
        let _ = self.events.send(Event::Lost(JobError::new(ErrorClass::Os, message).into()));
    }
}
