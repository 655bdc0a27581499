//! The loop of a broker: one thread that blocks in `poll` only.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostbuf_memory::memfd::{self, Backing};
use hostbuf_os::session::{AcceptedClient, Acceptor};
use hostbuf_os::{PrivateFd, process};
use hostbuf_protocol::message::{Message, Role};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};

use super::broker_tag::BrokerTag;
use super::client_record::ClientRecord;
use super::descriptor_store::DescriptorStore;
use super::listeners::Listeners;
use super::options::BrokerOptions;
use super::passed_descriptors::PassedDescriptors;
use super::recovery::Recovery;
use super::segment_maker::SegmentMaker;
use super::state::BrokerState;
use crate::error::PoolError;
use crate::pool_id::PoolId;
use crate::private_packet::PrivatePacket;
use crate::wire::PoolMessage;

/// The largest number of packets of one client that are handled before those of the others.
const MAX_PACKETS: usize = 64;
/// The interval at which packets are tried again that too many descriptors on their way delay.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// A broker that listens.
#[derive(Debug)]
pub struct Broker {
    /// The owner of the socket with a path.
    listeners: Listeners,
    acceptors: Vec<Acceptor>,
    state: BrokerState,
    store: DescriptorStore,
    /// An empty file that each client gets, so that a successor knows the clients.
    client_file: PrivateFd,
    made: Arc<EventFd>,
    idle: Option<Duration>,
    unused_since: Instant,
}

/// The smallest number of descriptors with which a broker serves a few clients and segments.
const MIN_DESCRIPTORS: u64 = 64;

/// Checks that the broker can find what an earlier one has granted, and can open files of clients
/// for writing.
fn check_proc() -> Result<(), PoolError> {
    let doing =
        "reading /proc/self/fd, which a broker needs to find the memory of an earlier one (mount /proc)";
    std::fs::read_dir("/proc/self/fd").map(drop).map_err(PoolError::os(doing))
}

/// Checks that the limit on descriptors suffices for a few clients.
fn check_descriptors() -> Result<(), PoolError> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(PoolError::os("asking for the limit on descriptors (ulimit -n)"))?;
    if soft >= MIN_DESCRIPTORS {
        return Ok(());
    }
    let what = format!(
        "the limit on descriptors is {soft} (ulimit -n), and a broker needs at least {MIN_DESCRIPTORS}: raise it for the \
         broker"
    );
    Err(PoolError::Invalid { what })
}

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventSource {
    Stop,
    Acceptor,
    Made,
    Connection(u64),
    Process(u64),
}

impl Broker {
    /// Opens the sockets, or takes over those of a service manager (`LISTEN_FDS`), and looks for
    /// what an earlier broker has granted.
    ///
    /// # Errors
    /// [`PoolError::Os`]: of the kind [`AddrInUse`](std::io::ErrorKind::AddrInUse) if this user has
    /// a broker already, which the message names; of another kind if `/proc` is not mounted.
    /// [`PoolError::Invalid`] for a path that no socket can have, or a limit on descriptors below
    /// 64.
    pub fn open(options: &BrokerOptions) -> Result<Broker, PoolError> {
        let PassedDescriptors { sockets, segments } = PassedDescriptors::take();
        check_proc()?;
        check_descriptors()?;
        let listeners = Listeners::open(options, sockets)?;
        let recovery = Recovery::begin(BrokerTag::of(options));
        let mut broker = Broker::with_sockets(options, listeners, recovery)?;
        broker.store = DescriptorStore::open(&mut broker.state, segments);
        Ok(broker)
    }

    /// Opens a broker that has no predecessor.
    ///
    /// # Errors
    /// [`PoolError::Os`].
    pub(crate) fn open_private(options: &BrokerOptions) -> Result<Broker, PoolError> {
        Broker::with_sockets(options, Listeners::open_own(options)?, None)
    }

    fn with_sockets(
        options: &BrokerOptions,
        mut listeners: Listeners,
        recovery: Option<Recovery>,
    ) -> Result<Broker, PoolError> {
        let pool = PoolId::from_bits(process::random().map_err(PoolError::os("drawing a random number"))?);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let made =
            EventFd::from_value_and_flags(0, flags).map_err(PoolError::os("opening an event descriptor"))?;
        let made = Arc::new(made);
        let tag = BrokerTag::of(options);
        let client_file = memfd::create(&tag.client_file(), 0, Backing::Shmem)
            .map_err(PoolError::os("creating the file of the clients"))?;
        let state = BrokerState::new(pool, options, SegmentMaker::new(made.clone(), tag), recovery);
        Ok(Broker {
            acceptors: listeners.sockets.drain(..).map(Acceptor::new).collect(),
            listeners,
            state,
            store: DescriptorStore::absent(),
            client_file: client_file.into(),
            made,
            idle: options.idle,
            unused_since: Instant::now(),
        })
    }

    /// Returns the identity of the pool.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.state.pool
    }

    /// Returns the addresses of the sockets: `@NAME` or a path.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.listeners.addresses
    }

    /// Serves until `stop` is readable, or until the broker was unused for its idle time.
    ///
    /// # Errors
    /// [`PoolError::Os`].
    pub fn serve(&mut self, stop: BorrowedFd<'_>) -> Result<(), PoolError> {
        let served = self.serve_clients(stop);
        self.store.close();
        served
    }

    fn serve_clients(&mut self, stop: BorrowedFd<'_>) -> Result<(), PoolError> {
        loop {
            let ready = self.wait(stop)?;
            if ready.contains(&EventSource::Stop) {
                return Ok(());
            }
            for source in ready {
                match source {
                    EventSource::Made => drop(self.made.read()),
                    EventSource::Connection(client) => self.receive(client),
                    EventSource::Process(client) => self.state.end_client(client),
                    EventSource::Acceptor | EventSource::Stop => {}
                }
            }
            self.accept();
            self.state.collect_made();
            self.state.end_disconnected();
            self.state.end_segments();
            self.state.advance_recovery();
            self.state.retry_pending();
            self.store.update(&mut self.state);
            if !self.state.is_unused() {
                self.unused_since = Instant::now();
            } else if self.idle.is_some_and(|idle| self.unused_since.elapsed() >= idle) {
                return Ok(());
            }
        }
    }

    /// Waits until something is to be done, and returns the events.
    fn wait(&mut self, stop: BorrowedFd<'_>) -> Result<Vec<EventSource>, PoolError> {
        let retry = self.state.flush_all().then_some(RETRY_INTERVAL);
        let shortage = self.acceptors.iter().filter_map(Acceptor::retry_after).min();
        let idle = self.idle.filter(|_| self.state.is_unused());
        let idle = idle.map(|idle| idle.saturating_sub(self.unused_since.elapsed()));
        let stored = self.store.next_turn(&self.state);
        let timeout = [retry, shortage, idle, stored, self.state.next_turn()].into_iter().flatten().min();
        let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
            let rounded_up = timeout + Duration::from_micros(999);
            PollTimeout::try_from(rounded_up).unwrap_or(PollTimeout::MAX)
        });
        let mut sources = vec![(EventSource::Stop, stop), (EventSource::Made, self.made.as_fd())];
        for acceptor in &self.acceptors {
            sources.extend(acceptor.descriptors().map(|fd| (EventSource::Acceptor, fd)));
        }
        for (&id, client) in &self.state.clients {
            let connection = client.connection.as_ref().map(AsFd::as_fd);
            sources.extend(connection.map(|fd| (EventSource::Connection(id), fd)));
            let process = client.process.as_ref().map(AsFd::as_fd);
            sources.extend(process.map(|fd| (EventSource::Process(id), fd)));
        }
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, timeout) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => return Ok(Vec::new()),
            Err(errno) => return Err(PoolError::os("waiting for clients")(errno)),
        }
        let ready = fds.iter().map(|fd| fd.any().unwrap_or(false));
        Ok(sources.iter().zip(ready).filter(|(_, ready)| *ready).map(|((source, _), _)| *source).collect())
    }

    fn accept(&mut self) {
        let clients: Vec<AcceptedClient> = self.acceptors.iter_mut().flat_map(Acceptor::advance).collect();
        for client in clients {
            self.add_client(client);
        }
    }

    /// Takes in a client that has said hello, and answers it.
    fn add_client(&mut self, client: AcceptedClient) {
        let Ok(Message::Hello { hello, command }) = client.hello.message() else { return };
        if hello.role != Role::PoolClient {
            tracing::warn!(pid = client.connection.peer().pid, "a process that is no client of a pool");
            return;
        }
        let name = String::from_utf8_lossy(command).into_owned();
        let identity = hello.request;
        let pid = client.connection.peer().pid;
        let known = self.state.clients.iter().find(|(_, one)| one.identity == identity && one.pid == pid);
        let id = match known.map(|(&id, _)| id) {
            // It has lost its connection, and keeps what it has.
            Some(id) => {
                self.state.clients.get_mut(&id).expect("it was found").reconnect(client);
                id
            }
            None => {
                let id = self.state.next_client;
                self.state.next_client += 1;
                let record = ClientRecord::new(client, identity, name);
                tracing::debug!(client = record.describe(), "a client has connected");
                self.state.clients.insert(id, record);
                id
            }
        };
        let welcome = PoolMessage::Welcome {
            pool: self.state.pool,
            client: id,
            limit: self.state.accounts.limit(),
            per_client: self.state.accounts.per_client(),
        };
        self.welcome(id, &welcome);
    }

    /// Answers the hello of a client. The broker may have no descriptor left for a copy of the
    /// file, which a queued packet needs.
    fn welcome(&mut self, client: u64, welcome: &PoolMessage<'_>) {
        let connection = self.state.clients.get(&client).and_then(|record| record.connection.as_ref());
        let file = self.client_file.as_raw_fd();
        if connection.is_some_and(|connection| connection.send_packet(&welcome.encode(), &[file]).is_ok()) {
            return;
        }
        match self.client_file.try_clone() {
            Ok(file) => self.state.send(client, welcome, vec![file]),
            // The client connects again.
            Err(_) => self.state.disconnect(client),
        }
    }

    fn receive(&mut self, client: u64) {
        for _ in 0..MAX_PACKETS {
            let Some(record) = self.state.clients.get(&client) else { return };
            let Some(connection) = &record.connection else { return };
            let PrivatePacket { bytes, descriptors } = match PrivatePacket::receive(connection) {
                Ok(Some(packet)) => packet,
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return self.state.disconnect(client);
                }
                Err(error) => {
                    tracing::warn!(client = record.describe(), %error, "cannot receive from a client: disconnected");
                    return self.state.disconnect(client);
                }
            };
            let followed = match PoolMessage::parse(&bytes) {
                Ok(message) => self.state.handle(client, &message, descriptors),
                Err(_) => false,
            };
            if !followed {
                let name = self.state.clients.get(&client).map(ClientRecord::describe);
                tracing::warn!(
                    client = name,
                    "a client has sent something other than a request: disconnected"
                );
                return self.state.disconnect(client);
            }
        }
    }
}
