//! A connection of a sender.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_pool::Block;

use super::block_supply::BlockSupply;
use super::frame_reads::{FrameReader, FrameReads};
use super::options::MirrorReceiverOptions;
use super::receiver_state::ReceiverState;
use super::timed_stream::TimedStream;
use crate::refusal::MirrorRefusal;
use crate::wire::{FrameRequest, FrameSource, HelloStatus, InvalidRecord, ReceiverHello, SenderHello};

/// The objects that all connections of a receiver share.
#[derive(Debug)]
pub(super) struct ReceiverShared {
    pub(super) options: MirrorReceiverOptions,
    /// The random number of the receiver.
    pub(super) identity: u128,
    pub(super) supply: BlockSupply,
    pub(super) reader: FrameReader,
    pub(super) state: Mutex<ReceiverState>,
}

impl ReceiverShared {
    /// Returns the state.
    pub(super) fn state(&self) -> MutexGuard<'_, ReceiverState> {
        self.state.lock().ignore_poison()
    }
}

/// The reason why a connection has ended.
#[derive(Debug)]
pub(super) enum LinkEnd {
    /// The connection is lost, or the peer was too slow.
    Lost(io::Error),
    /// The peer has broken the protocol.
    Invalid(InvalidRecord),
    /// The sender has connected again, or the receiver ends.
    Superseded,
}

impl From<io::Error> for LinkEnd {
    fn from(error: io::Error) -> LinkEnd {
        LinkEnd::Lost(error)
    }
}

impl From<InvalidRecord> for LinkEnd {
    fn from(error: InvalidRecord) -> LinkEnd {
        LinkEnd::Invalid(error)
    }
}

/// A connection of a sender.
#[derive(Debug)]
pub(super) struct PeerLink {
    shared: Arc<ReceiverShared>,
    stream: TimedStream,
    connection: u64,
}

impl PeerLink {
    pub(super) fn new(shared: Arc<ReceiverShared>, stream: TimedStream, connection: u64) -> PeerLink {
        PeerLink { shared, stream, connection }
    }

    /// Serves the sender until it ends the connection.
    ///
    /// # Errors
    /// [`LinkEnd`].
    pub(super) fn serve(&self) -> Result<(), LinkEnd> {
        let (session, mut settled, mut reads) = self.greet()?;
        let most = self.shared.options.most();
        let mut record = [0; FrameRequest::SIZE];
        while self.stream.read_record(&mut record, self.shared.options.timeout)? {
            let request = FrameRequest::decode(&record, most)?;
            if request.number <= settled {
                return Err(InvalidRecord::Damaged("the numbers of frames do not rise").into());
            }
            let received = self.receive(&request, session, reads.as_mut())?;
            let answer = self.shared.state().commit((session, self.connection), &request, received);
            let answer = answer.ok_or(LinkEnd::Superseded)?;
            settled = request.number;
            self.stream.write(&answer.encode())?;
        }
        Ok(())
    }

    /// Exchanges the first records, and returns the session, the number of its last frame that was
    /// answered, and the connection for reads.
    fn greet(&self) -> Result<(u128, u64, Option<FrameReads>), LinkEnd> {
        let shared = &*self.shared;
        let mut record = [0; SenderHello::SIZE];
        self.stream.read_until(&mut record, Instant::now() + shared.options.timeout)?;
        let hello = SenderHello::decode(&record).inspect_err(|error| {
            if let InvalidRecord::OtherVersion(_) = error {
                // The peer is told the version of this side.
                let _ = self.stream.write(&ReceiverHello::refusing(HelloStatus::OtherVersion).encode());
            }
        })?;
        let (settled, answers) =
            shared.state().begin_session(&hello, self.connection, self.stream.stream())?;
        let reads = shared.reader.accept(&hello.reads);
        let own = ReceiverHello {
            status: HelloStatus::Accepted,
            answers: answers.len() as u32,
            receiver: shared.identity,
            settled,
            most: shared.options.most(),
            reads: reads.as_ref().map_or([0; 28], FrameReads::endpoint),
        };
        let mut records = own.encode().to_vec();
        answers.iter().for_each(|answer| records.extend(answer.encode()));
        self.stream.write(&records)?;
        Ok((hello.session, settled, reads))
    }

    /// Receives the bytes of a frame into a block. The bytes of a frame that is refused are taken
    /// from the stream too, since the next frame follows them.
    fn receive(
        &self,
        request: &FrameRequest,
        session: u128,
        reads: Option<&mut FrameReads>,
    ) -> Result<Result<Block, MirrorRefusal>, LinkEnd> {
        let shared = &*self.shared;
        let time_left = request.time_left.min(shared.options.timeout);
        let until = Instant::now() + time_left;
        let is_over = || !shared.state().serves(session, self.connection);
        let length = request.token.length;
        let is_newer = shared.state().check_order(request);
        // The sender needs the rest of the time to hear that there is no block.
        let taken = is_newer.and_then(|()| shared.supply.take(length, patience(time_left), &is_over));
        match taken {
            Ok(mut block) => {
                match (request.source, reads) {
                    (FrameSource::Stream, _) => {
                        self.stream.read_until(&mut block.as_mut_slice()[..length as usize], until)?;
                    }
                    (FrameSource::Memory { address, remote_key }, Some(reads)) => {
                        let limits = (self.stream.stream(), &is_over as &dyn Fn() -> bool);
                        let (target, remote) = ((&mut block, length), (address, remote_key));
                        shared.reader.read(reads, target, remote, until, limits)?;
                    }
                    (FrameSource::Memory { .. }, None) => {
                        return Err(InvalidRecord::Damaged("a frame lies in memory without RDMA").into());
                    }
                }
                Ok(Ok(block))
            }
            Err(refusal) => {
                if request.source == FrameSource::Stream {
                    self.stream.discard(length, until)?;
                }
                Ok(Err(refusal))
            }
        }
    }
}

/// Returns the time for which a receiver waits for a block of a frame that has `time_left`.
fn patience(time_left: Duration) -> Duration {
    time_left * 3 / 4
}
