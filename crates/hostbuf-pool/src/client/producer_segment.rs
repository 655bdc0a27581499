//! A segment that this process writes.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_os::{FrameSocket, PrivateFd};
use hostbuf_register::{Access, Registrar};

use super::broker_link::{BrokerLink, send, unexpected};
use super::caller_registrations::CallerRegistrations;
use super::producer_data::ProducerData;
use super::reader_policy::ReaderPolicy;
use super::take_error::TakeError;
use super::taker_queue::TakerQueue;
use crate::clock::monotonic_ns;
use crate::error::PoolError;
use crate::header::BlockHeader;
use crate::hold::{BlockState, are_unheld};
use crate::segment::{RowView, SpaceEvent, TableView, ViewAccess};
use crate::wire::{PoolMessage, SegmentKey, SegmentTerms};

/// The interval at which a producer without a free block asks for the work of a GPU.
const GPU_INTERVAL: Duration = Duration::from_millis(1);

/// A segment that this process writes. The block table is never read back: the state here
/// is the producer's own.
#[derive(Debug)]
pub(super) struct ProducerSegment {
    key: SegmentKey,
    stream: String,
    parts: ManuallyDrop<ProducerParts>,
    /// The tasks that wait for blocks.
    takers: TakerQueue,
    is_closed: AtomicBool,
    link: Weak<BrokerLink>,
}

#[derive(Debug)]
struct ProducerParts {
    terms: SegmentTerms,
    retain: u32,
    caller_registrations: CallerRegistrations,
    data: ProducerData,
    table: TableView,
    rows: Vec<RowView>,
    space: SpaceEvent,
    table_file: PrivateFd,
    row_files: Vec<PrivateFd>,
    state: Mutex<ProducerState>,
    /// True once the broker has sealed the data file.
    ready: Mutex<bool>,
    became_ready: Condvar,
}

impl ProducerParts {
    /// Returns whether no reader holds a block.
    fn is_unheld(&self, number: u32) -> bool {
        are_unheld(self.rows.iter().map(|row| row.cell(number)))
    }
}

#[derive(Debug)]
struct ProducerState {
    blocks: Vec<OwnBlock>,
    /// The published blocks, the oldest first.
    published: VecDeque<u32>,
    policy: ReaderPolicy,
    sequence: u64,
    /// The number of threads that wait for a block.
    waiting: u32,
}

/// A block as its producer knows it.
#[derive(Clone, Copy, Debug)]
struct OwnBlock {
    state: BlockState,
    generation: u64,
    /// The sequence number of the content that was published last.
    sequence: u64,
}

impl ProducerSegment {
    /// Maps a new segment from the broker's descriptors: table, event, rows.
    ///
    /// # Errors
    /// [`PoolError::Memory`] for files that are not those of the segment.
    pub(super) fn map(
        key: SegmentKey,
        (terms, retain): (SegmentTerms, u32),
        stream: &str,
        wait_for: &[String],
        data: ProducerData,
        mut descriptors: impl Iterator<Item = PrivateFd>,
        link: Weak<BrokerLink>,
    ) -> Result<ProducerSegment, PoolError> {
        let geometry = terms.geometry;
        let mut next = || descriptors.next().ok_or_else(unexpected);
        let (table_file, space) = (next()?, next()?);
        let row_files: Vec<PrivateFd> = descriptors.collect();
        if row_files.len() != geometry.readers() as usize {
            return Err(unexpected());
        }
        let rows = row_files.iter().map(|file| RowView::map(file.as_fd(), geometry, ViewAccess::Read));
        let state = ProducerState {
            blocks: vec![
                OwnBlock { state: BlockState::Free, generation: 0, sequence: 0 };
                geometry.blocks() as usize
            ],
            published: VecDeque::new(),
            policy: ReaderPolicy::new(wait_for),
            sequence: 0,
            waiting: 0,
        };
        let parts = ProducerParts {
            terms,
            retain,
            rows: rows.collect::<Result<_, _>>()?,
            caller_registrations: CallerRegistrations::default(),
            data,
            table: TableView::map(table_file.as_fd(), geometry, ViewAccess::Write)?,
            space: SpaceEvent::from_fd(space).map_err(PoolError::os("checking the event descriptor"))?,
            table_file,
            row_files,
            state: Mutex::new(state),
            ready: Mutex::new(false),
            became_ready: Condvar::new(),
        };
        let parts = ManuallyDrop::new(parts);
        let (takers, is_closed) = (TakerQueue::default(), AtomicBool::new(false));
        Ok(ProducerSegment { key, stream: stream.to_owned(), parts, takers, is_closed, link })
    }

    /// Returns the identity of the segment.
    pub(super) fn key(&self) -> SegmentKey {
        self.key
    }

    /// Notes that the broker has sealed the data file.
    pub(super) fn set_ready(&self) {
        *self.parts.ready.lock().ignore_poison() = true;
        self.parts.became_ready.notify_all();
    }

    /// Waits until the data file is sealed. Returns false after `limit`.
    pub(super) fn wait_ready(&self, limit: Duration) -> bool {
        let ready = self.parts.ready.lock().ignore_poison();
        let waited = self.parts.became_ready.wait_timeout_while(ready, limit, |ready| !*ready);
        *waited.ignore_poison().0
    }

    fn state(&self) -> MutexGuard<'_, ProducerState> {
        self.parts.state.lock().ignore_poison()
    }

    /// Takes a free block, if there is one, and returns its number and its new generation.
    pub(super) fn try_take(&self) -> Option<(u32, u64)> {
        self.take_with(&mut self.state())
    }

    fn take_with(&self, state: &mut ProducerState) -> Option<(u32, u64)> {
        let parts = &*self.parts;
        retire_old(state, parts);
        let is_free = |(number, block): &(u32, &OwnBlock)| match block.state {
            BlockState::Free => true,
            BlockState::Retired => parts.is_unheld(*number) && parts.data.is_written(*number),
            BlockState::Writing | BlockState::Published => false,
        };
        let (number, _) = (0..).zip(&state.blocks).find(is_free)?;
        let block = &mut state.blocks[number as usize];
        block.state = BlockState::Writing;
        block.generation += 1;
        parts.table.word(number).set(BlockState::Writing, block.generation);
        Some((number, block.generation))
    }

    /// Takes a free block, for which it waits at most `limit`.
    ///
    /// # Errors
    /// [`TakeError`].
    pub(super) fn take(&self, limit: Option<Duration>) -> Result<(u32, u64), TakeError> {
        if let Some(taken) = self.try_take() {
            return Ok(taken);
        }
        self.count_exhausted();
        // A limit beyond the range of the clock is none.
        let deadline = limit.and_then(|limit| Some((limit, Instant::now().checked_add(limit)?)));
        self.count_waiting(1);
        let result = loop {
            if self.is_closed() {
                break Err(TakeError::Closed);
            }
            if let Some(taken) = self.try_take() {
                break Ok(taken);
            }
            let left = deadline.map(|(_, end)| end.saturating_duration_since(Instant::now()));
            if let (Some((limit, _)), Some(Duration::ZERO)) = (deadline, left) {
                break Err(TakeError::Timeout { limit, details: self.describe_use() });
            }
            if let Err(error) = self.wait_for_space(left) {
                break Err(PoolError::os("waiting for a free block")(error).into());
            }
        };
        self.count_waiting(-1);
        result
    }

    /// Ends all waits for a block.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.takers.close();
        // Each thread that waits passes this on.
        self.parts.space.notify();
    }

    /// Returns whether no more blocks are given out.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Counts that no block was free.
    pub(super) fn count_exhausted(&self) {
        self.parts.table.counters().exhausted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the tasks that wait for blocks.
    pub(super) fn takers(&self) -> &TakerQueue {
        &self.takers
    }

    /// Waits at most `limit` until a block may be free.
    ///
    /// # Errors
    /// As `poll(2)`.
    pub(super) fn wait_for_space(&self, limit: Option<Duration>) -> io::Result<()> {
        let limit = match self.waits_for_gpu() {
            true => Some(limit.map_or(GPU_INTERVAL, |limit| limit.min(GPU_INTERVAL))),
            false => limit,
        };
        self.parts.space.wait(limit)
    }

    /// Returns whether a retired block without holds waits only for the GPU to finish writing it.
    /// No event reports that, so the producer polls.
    fn waits_for_gpu(&self) -> bool {
        let (state, parts) = (self.state(), &*self.parts);
        (0..).zip(&state.blocks).any(|(number, block)| {
            block.state == BlockState::Retired && parts.is_unheld(number) && !parts.data.is_written(number)
        })
    }

    /// Ends a wait in [`wait_for_space`](ProducerSegment::wait_for_space).
    pub(super) fn wake_takers(&self) {
        self.parts.space.notify();
    }

    /// Changes the number of threads that wait for a block. While it is not 0, readers notify the
    /// producer.
    pub(super) fn count_waiting(&self, change: i32) {
        let mut state = self.state();
        state.waiting = state.waiting.saturating_add_signed(change);
        match state.waiting {
            0 => self.parts.table.waiting().lower(),
            _ => self.parts.table.waiting().raise(),
        }
        if change < 0 && state.waiting > 0 {
            // This thread may have taken the notification of another one.
            self.parts.space.notify();
        }
    }

    fn describe_use(&self) -> String {
        let state = self.state();
        let count = |wanted| state.blocks.iter().filter(|block| block.state == wanted).count();
        let mut text = format!(
            "of {} blocks, {} are being written, {} are retained for readers",
            state.blocks.len(),
            count(BlockState::Writing),
            count(BlockState::Published)
        );
        for (number, row) in self.parts.rows.iter().enumerate() {
            let held = row.held_blocks();
            if held > 0 {
                let reader = self.parts.table.reader(number as u32).load();
                let process = match reader.map_or(0, |reader| reader.pid) {
                    0 => String::new(),
                    pid => format!(" (process {pid})"),
                };
                text += &format!(", reader {number}{process} holds {held}");
            }
        }
        text + &state.policy.describe_missing()
    }

    /// Publishes a block that this process has written, and completes its header.
    pub(super) fn publish(&self, number: u32, header: &mut BlockHeader) {
        let parts = &*self.parts;
        let mut state = self.state();
        header.generation = state.blocks[number as usize].generation;
        header.sequence = state.sequence;
        header.published_ns = monotonic_ns();
        state.sequence += 1;
        parts.table.write_header(number, &header.encode());
        parts.table.word(number).set(BlockState::Published, header.generation);
        let block = &mut state.blocks[number as usize];
        block.state = BlockState::Published;
        block.sequence = header.sequence;
        state.published.push_back(number);
        let counters = parts.table.counters();
        counters.published.store(state.sequence, Ordering::Relaxed);
        retire_old(&mut state, parts);
        if state.waiting > 0 {
            // Retiring may have freed a block, and no reader reports that.
            parts.space.notify();
        }
    }

    /// Frees a block that was taken and not published.
    pub(super) fn free(&self, number: u32) {
        let mut state = self.state();
        let block = &mut state.blocks[number as usize];
        block.state = BlockState::Free;
        self.parts.table.word(number).set(BlockState::Free, block.generation);
        if state.waiting > 0 {
            self.parts.space.notify();
        }
    }

    /// Ends the writing of a block without publishing it, also if readers hold it. It is taken
    /// again when no reader holds it any more.
    pub(super) fn retire_unpublished(&self, number: u32) {
        let mut state = self.state();
        let block = &mut state.blocks[number as usize];
        block.state = BlockState::Retired;
        self.parts.table.word(number).set(BlockState::Retired, block.generation);
        if state.waiting > 0 {
            self.parts.space.notify();
        }
    }

    /// Returns the generation of a block.
    pub(super) fn generation(&self, number: u32) -> u64 {
        self.state().blocks[number as usize].generation
    }

    /// Returns the number of readers that have ended or detached.
    pub(super) fn departures(&self) -> u64 {
        let rows = 0..self.parts.terms.geometry.readers();
        // The table may contain any numbers.
        rows.fold(0, |sum, row| sum.wrapping_add(self.parts.table.reader(row).departures()))
    }

    /// Returns the blocks.
    pub(super) fn data(&self) -> &ProducerData {
        &self.parts.data
    }

    /// Returns the address of a block.
    pub(super) fn block(&self, number: u32) -> NonNull<u8> {
        self.parts.data.block(number)
    }

    /// Registers all blocks with a registrar of the caller, and returns the key.
    ///
    /// # Errors
    /// As [`Registrar::register`]; [`Error::Forked`](hostbuf_register::Error::Forked).
    pub(super) fn register<R: Registrar>(
        &self,
        registrar: &Arc<R>,
        access: Access,
    ) -> hostbuf_register::Result<R::Key> {
        if !self.is_mapped() {
            return Err(hostbuf_register::Error::Forked);
        }
        self.parts.caller_registrations.key(registrar, access, self.parts.data.host())
    }

    /// Returns the length of a block in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        self.parts.terms.geometry.block_bytes()
    }

    /// Returns the number of blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.parts.terms.geometry.blocks()
    }

    /// Returns whether this process has the mappings: a forked child has not.
    pub(super) fn is_mapped(&self) -> bool {
        self.parts.table.is_mapped()
    }

    /// Waits until all work on the GPU that writes published blocks has ended, so that readers need
    /// the events no more.
    #[cfg(feature = "cuda")]
    fn complete(&self) {
        let ProducerData::Gpu(gpu) = &self.parts.data else { return };
        match gpu.synchronize() {
            Ok(()) => self.parts.table.counters().is_complete.store(1, Ordering::Release),
            Err(error) => tracing::warn!(key = %self.key, %error, "the work that writes blocks has failed"),
        }
    }

    /// Hands the segment back to a new broker.
    ///
    /// # Errors
    /// As `sendmsg(2)`.
    pub(super) fn hand_back(&self, socket: &FrameSocket) -> io::Result<()> {
        let parts = &*self.parts;
        let message =
            PoolMessage::HandBack { key: self.key, terms: parts.terms, row: None, stream: &self.stream };
        let mut descriptors = parts.data.files();
        descriptors.extend([parts.table_file.as_fd(), parts.space.as_fd()]);
        descriptors.extend(parts.row_files.iter().map(AsFd::as_fd));
        send(socket, &message, &descriptors)
    }
}

/// Retires the oldest published blocks beyond those that are retained, as far as the readers that
/// the producer waits for have read them.
fn retire_old(state: &mut ProducerState, parts: &ProducerParts) {
    state.policy.observe(&parts.table, parts.terms.geometry.readers(), state.sequence);
    while state.published.len() > parts.retain as usize {
        let number = state.published[0];
        let OwnBlock { generation, sequence, .. } = state.blocks[number as usize];
        let content = (number, generation);
        if !state.policy.have_finished(&parts.table, &parts.rows, content, sequence) {
            return;
        }
        state.published.pop_front();
        state.blocks[number as usize].state = BlockState::Retired;
        parts.table.word(number).set(BlockState::Retired, generation);
    }
}

impl Drop for ProducerSegment {
    #[allow(unsafe_code, reason = "drops a field once")]
    fn drop(&mut self) {
        let is_mapped = self.is_mapped();
        #[cfg(feature = "cuda")]
        if is_mapped {
            self.complete();
        }
        // SAFETY: nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.parts) };
        if let Some(link) = self.link.upgrade().filter(|_| is_mapped) {
            link.give_up(self.key);
        }
    }
}
