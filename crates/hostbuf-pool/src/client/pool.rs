//! A connection of this process to a pool.

use std::sync::Arc;
use std::time::Duration;

use hostbuf_os::PrivateFd;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_os::{process, thread};

use super::acquire_error::AcquireError;
use super::attached_segment::{AttachedSegment, SharedSegment};
use super::block_ref::BlockRef;
use super::broker_link::{BrokerLink, unexpected};
use super::broker_process::start_and_connect;
use super::connect::{ConnectFailure, OpenConnection, connect, describe_socket};
use super::connection::PoolConnection;
use super::pool_client::PoolClient;
use super::pool_options::{PoolMode, PoolOptions};
use super::private_broker::PrivateBroker;
use super::producer::Producer;
use super::producer_data::ProducerData;
use super::producer_options::ProducerOptions;
use super::producer_segment::ProducerSegment;
use super::segment_reader::SegmentReader;
use super::service;
use crate::error::{BrokerRefusal, PoolError};
use crate::pool_id::PoolId;
use crate::segment::SpaceEvent;
use crate::token::Token;
use crate::wire::{PoolMessage, SegmentKey, SegmentTerms};

/// The kind of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolKind {
    /// A broker makes the memory, and its clients share it.
    Shared,
    /// The memory is that of this process alone. Tokens are valid in this process only.
    Private,
}

/// A connection of this process to a pool. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct Pool {
    client: Arc<PoolClient>,
}

impl Pool {
    /// Connects to the pool of this user.
    ///
    /// # Errors
    /// [`PoolError::NoBroker`] if there is no broker and the options need one; [`PoolError::Os`].
    pub fn connect(mut options: PoolOptions) -> Result<Pool, PoolError> {
        // The kernel takes 0 for no limit, and fewer seconds than a Duration has.
        options.timeout = options.timeout.clamp(Duration::from_millis(1), Duration::from_secs(1 << 30));
        let random = process::random().map_err(PoolError::os("drawing a random number"))?;
        let identity = (random as u64).max(1);
        let found = match options.mode {
            PoolMode::Private => Err(ConnectFailure::NoBroker),
            _ => connect(&options, identity),
        };
        let (open, private) = match (found, &options.mode) {
            (Ok(open), _) => (open, None),
            (Err(ConnectFailure::Other(error)), _) => return Err(error),
            (Err(ConnectFailure::NoBroker), PoolMode::Start) => {
                (start_and_connect(&options, identity)?, None)
            }
            (Err(ConnectFailure::NoBroker), PoolMode::Required) => return Err(no_broker(&options)),
            (Err(ConnectFailure::NoBroker), PoolMode::Optional | PoolMode::Private) => {
                let broker = PrivateBroker::start(&options)?;
                options = options.socket(broker.name());
                options.path = None;
                let open = connect(&options, identity).map_err(|failure| match failure {
                    ConnectFailure::Other(error) => error,
                    ConnectFailure::NoBroker => PoolError::BrokerGone,
                })?;
                (open, Some(broker))
            }
        };
        Pool::with_connection(options, identity, open, private)
    }

    fn with_connection(
        options: PoolOptions,
        identity: u64,
        open: OpenConnection,
        private: Option<PrivateBroker>,
    ) -> Result<Pool, PoolError> {
        let event = || SpaceEvent::new().map_err(PoolError::os("opening an event descriptor"));
        let stop = event()?;
        let copy = stop.try_clone_fd().map_err(PoolError::os("copying an event descriptor"))?;
        let thread_stop = SpaceEvent::from_fd(copy).map_err(PoolError::os("copying an event descriptor"))?;
        let link = Arc::new(BrokerLink::new(open, options.clone()));
        let connection = Arc::new(PoolConnection::new(options, identity, link, stop, private));
        let weak = Arc::downgrade(&connection);
        thread::spawn(c"hostbuf-pool", move || service::serve(&weak, &thread_stop))
            .map_err(PoolError::os("starting a thread"))?;
        Ok(Pool { client: Arc::new(PoolClient::new(connection)) })
    }

    pub(super) fn connection(&self) -> &Arc<PoolConnection> {
        self.client.connection()
    }

    /// Returns the identity of the pool. It is another one after a restart of the broker.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.connection().link.pool()
    }

    /// Returns the kind of the pool.
    #[must_use]
    pub fn kind(&self) -> PoolKind {
        if self.connection().private.is_some() { PoolKind::Private } else { PoolKind::Shared }
    }

    /// Makes a segment, and returns its producer.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] for invalid options; [`PoolError::Refused`] with
    /// [`BrokerRefusal::NoSpace`] beyond a limit.
    pub fn producer(&self, options: &ProducerOptions) -> Result<Producer, PoolError> {
        let terms = options.terms()?;
        let segment = self.make_segment(options, terms, |_, descriptors| {
            ProducerData::map(descriptors.next().ok_or_else(unexpected)?, terms.0.geometry)
        })?;
        Ok(Producer::new(segment, self.client.clone()))
    }

    /// Makes a segment. `make_data` takes its blocks from the broker's descriptors, or makes them.
    ///
    /// # Errors
    /// As [`producer`](Pool::producer), and those of `make_data`.
    pub(super) fn make_segment(
        &self,
        options: &ProducerOptions,
        (terms, retain): (SegmentTerms, u32),
        make_data: impl Fn(SegmentKey, &mut std::vec::IntoIter<PrivateFd>) -> Result<ProducerData, PoolError>,
    ) -> Result<Arc<ProducerSegment>, PoolError> {
        let connection = self.connection();
        let segment = connection.link.with_broker(|deadline| {
            let _changing = connection.changing.read().ignore_poison();
            let (packet, descriptors) = connection.link.request("making a segment", deadline, |request| {
                PoolMessage::Create { request, terms, stream: &options.stream }
            })?;
            let Ok(PoolMessage::Granted { key, .. }) = PoolMessage::parse(&packet) else {
                return Err(unexpected());
            };
            let link = Arc::downgrade(&connection.link);
            let names = &options.wait_for;
            let mut descriptors = descriptors.into_iter();
            let made = make_data(key, &mut descriptors).and_then(|data| {
                let terms = (terms, retain);
                ProducerSegment::map(key, terms, &options.stream, names, data, descriptors, link)
            });
            let segment = Arc::new(made.inspect_err(|_| connection.link.give_up(key))?);
            connection.add_produced(&segment);
            Ok(segment)
        })?;
        // A broker that ends before it has sealed the file leaves that to its successor.
        let made_here = segment.data().made_here();
        connection.link.notify_with(&PoolMessage::Mapped { key: segment.key() }, &made_here);
        let limit = connection.link.timeout();
        if !segment.wait_ready(limit) {
            return Err(connection.link.timed_out("making a segment"));
        }
        Ok(segment)
    }

    /// Returns the client of the connection.
    #[cfg(feature = "cuda")]
    pub(super) fn client(&self) -> &Arc<PoolClient> {
        &self.client
    }

    /// Acquires the block of a token. After the first token of a segment it makes no system call.
    ///
    /// # Errors
    /// [`AcquireError`]; [`AcquireError::OnGpu`] for a block on a GPU.
    pub fn acquire(&self, token: &Token) -> Result<BlockRef, AcquireError> {
        self.connection().link.check_process()?;
        let segment = self.segment(SegmentKey { pool: token.pool, number: token.segment })?;
        segment.require_host()?;
        let header = segment.hold(token)?;
        Ok(BlockRef::new(segment, token.block, header, self.client.clone()))
    }

    /// Acquires the block of an encoded token.
    ///
    /// # Errors
    /// [`AcquireError`]; [`AcquireError::InvalidToken`] for bytes that are no token.
    pub fn acquire_bytes(&self, token: &[u8]) -> Result<BlockRef, AcquireError> {
        self.acquire(&Token::from_bytes(token)?)
    }

    /// States that this process does not need the block of a token, for a producer that waits for
    /// this reader.
    ///
    /// # Errors
    /// [`AcquireError::Pool`] if the segment cannot be attached.
    pub fn skip(&self, token: &Token) -> Result<(), AcquireError> {
        self.connection().link.check_process()?;
        self.segment(SegmentKey { pool: token.pool, number: token.segment })?.skip(token)
    }

    /// Attaches a segment for blocks that another transport passes on, which are not published and
    /// have no tokens.
    ///
    /// # Errors
    /// [`AcquireError::Gone`] for a segment that has ended; [`AcquireError::OnGpu`];
    /// [`AcquireError::Pool`].
    pub fn attach(&self, key: SegmentKey) -> Result<SegmentReader, AcquireError> {
        self.connection().link.check_process()?;
        let segment = self.segment(key)?;
        segment.require_host()?;
        Ok(SegmentReader::new(segment, self.client.clone()))
    }

    /// Returns the attached segment, which is attached first if necessary.
    pub(super) fn segment(&self, key: SegmentKey) -> Result<SharedSegment, AcquireError> {
        let connection = self.connection();
        if let Some(segment) = connection.attached(key) {
            return Ok(segment);
        }
        let _one_by_one = connection.attaching.lock().ignore_poison();
        if let Some(segment) = connection.attached(key) {
            return Ok(segment);
        }
        let _attaching = connection.begin_attaching();
        let attached = connection.link.with_broker(|deadline| {
            let _changing = connection.changing.read().ignore_poison();
            let (packet, descriptors) =
                connection.link.request("attaching a segment", deadline, |request| PoolMessage::Attach {
                    request,
                    key,
                })?;
            let Ok(PoolMessage::Attached { terms, row, .. }) = PoolMessage::parse(&packet) else {
                return Err(unexpected());
            };
            let link = Arc::downgrade(&connection.link);
            let mapped = AttachedSegment::map(key, terms, row, descriptors, link).map(Arc::new);
            match &mapped {
                Ok(segment) => connection.add_attached(key, segment.clone()),
                Err(_) => connection.link.notify(&PoolMessage::Detached { key, row: Some(row) }),
            }
            mapped
        });
        attached.map_err(|error| match error {
            // Tokens of segments that have ended are late, whichever broker made them.
            PoolError::Refused(BrokerRefusal::UnknownSegment) if connection.link.has_known(key.pool) => {
                AcquireError::Gone
            }
            PoolError::Refused(BrokerRefusal::UnknownSegment) => {
                AcquireError::OtherPool { token: key.pool, own: connection.describe() }
            }
            other => AcquireError::Pool(other),
        })
    }

    /// Returns the state of the pool as a JSON text: clients, segments, and the holders of each
    /// block.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn status(&self) -> Result<String, PoolError> {
        let link = &self.connection().link;
        link.with_broker(|deadline| link.request_status(deadline))
    }
}

fn no_broker(options: &PoolOptions) -> PoolError {
    PoolError::NoBroker {
        why: format!(
            "there is no broker at {} on {}: start one ({})",
            describe_socket(options),
            process::host_name(),
            options.broker_command()
        ),
    }
}
