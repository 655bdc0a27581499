//! A segment that this process reads.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use hostbuf_os::{FrameSocket, PrivateFd};
use hostbuf_register::{Access, DeviceName, Registrar};

use super::acquire_error::AcquireError;
use super::attached_data::AttachedData;
use super::broker_link::{BrokerLink, send, unexpected};
use super::caller_registrations::CallerRegistrations;
#[cfg(feature = "cuda")]
use super::imported_gpu::GpuView;
use super::segment_registrations::SegmentRegistrations;
use crate::clock::monotonic_ns;
use crate::dma::{CopyReason, DmaPath};
use crate::error::PoolError;
use crate::header::BlockHeader;
use crate::hold::{BlockState, HoldRefused};
use crate::segment::{RowView, SpaceEvent, TableView, ViewAccess};
use crate::token::Token;
use crate::wire::{PoolMessage, SegmentKey, SegmentTerms};

/// The number of holds of a block while a thread counts its first one.
const COUNTING: u32 = u32::MAX;

/// A segment that this process reads. It is unmapped with the last hold after its end.
#[derive(Debug)]
pub(super) struct AttachedSegment {
    key: SegmentKey,
    parts: ManuallyDrop<AttachedParts>,
    link: Weak<BrokerLink>,
}

#[derive(Debug)]
struct AttachedParts {
    terms: SegmentTerms,
    row_number: u32,
    registrations: SegmentRegistrations,
    caller_registrations: CallerRegistrations,
    data: AttachedData,
    table: TableView,
    row: RowView,
    space: SpaceEvent,
    table_file: PrivateFd,
    row_file: PrivateFd,
    /// The number of holds of each block in this process.
    holds: Box<[AtomicU32]>,
    /// The number of blocks with holds.
    held_blocks: AtomicU32,
    /// True once the client has given the segment up: nothing can be acquired any more.
    is_ended: AtomicBool,
}

impl AttachedSegment {
    /// Maps a segment from the broker's descriptors: those of the blocks, table, event, row.
    ///
    /// # Errors
    /// [`PoolError::Memory`] for files that are not those of the segment.
    pub(super) fn map(
        key: SegmentKey,
        terms: SegmentTerms,
        row_number: u32,
        descriptors: Vec<PrivateFd>,
        link: Weak<BrokerLink>,
    ) -> Result<AttachedSegment, PoolError> {
        let geometry = terms.geometry;
        let mut descriptors = descriptors.into_iter();
        let data = AttachedData::take(key, terms, &mut descriptors)?;
        let files: Vec<PrivateFd> = descriptors.collect();
        let Ok([table_file, space, row_file]) = <[PrivateFd; 3]>::try_from(files) else {
            return Err(unexpected());
        };
        let parts = AttachedParts {
            terms,
            row_number,
            registrations: SegmentRegistrations::default(),
            caller_registrations: CallerRegistrations::default(),
            data,
            table: TableView::map(table_file.as_fd(), geometry, ViewAccess::Read)?,
            row: RowView::map(row_file.as_fd(), geometry, ViewAccess::Write)?,
            space: SpaceEvent::from_fd(space).map_err(PoolError::os("checking the event descriptor"))?,
            table_file,
            row_file,
            holds: (0..geometry.blocks()).map(|_| AtomicU32::new(0)).collect(),
            held_blocks: AtomicU32::new(0),
            is_ended: AtomicBool::new(false),
        };
        Ok(AttachedSegment { key, parts: ManuallyDrop::new(parts), link })
    }

    /// Holds the block of a token, and returns its checked header.
    ///
    /// # Errors
    /// [`AcquireError`]; nothing is held then.
    pub(super) fn hold(&self, token: &Token) -> Result<BlockHeader, AcquireError> {
        let parts = &*self.parts;
        let geometry = parts.terms.geometry;
        if token.block >= geometry.blocks() || token.length > geometry.block_bytes() {
            return Err(AcquireError::OutOfRange);
        }
        self.count(token.block)?;
        let held = parts.row.cell(token.block).hold(parts.table.word(token.block), token.generation);
        if let Err(refused) = held {
            return Err(self.refused(token.block, refused));
        }
        let header = parts.table.read_header(token.block);
        match BlockHeader::decode(&header, geometry.block_bytes(), token.generation) {
            Ok(header) if header.length == token.length => {
                parts.row.counters().acquired.fetch_add(1, Ordering::Relaxed);
                // The clocks of time namespaces differ.
                parts.row.latencies().record(monotonic_ns().saturating_sub(header.published_ns));
                Ok(header)
            }
            Ok(_) => {
                self.release(token.block, token.generation);
                Err(AcquireError::OutOfRange)
            }
            Err(error) => {
                self.release(token.block, token.generation);
                Err(AcquireError::InvalidHeader(error))
            }
        }
    }

    /// Holds a block that its producer writes, if the lower half of its generation is
    /// `generation_low`, and returns the generation.
    ///
    /// # Errors
    /// [`AcquireError`]; nothing is held then.
    pub(super) fn hold_unpublished(&self, block: u32, generation_low: u32) -> Result<u64, AcquireError> {
        let parts = &*self.parts;
        if block >= parts.terms.geometry.blocks() {
            return Err(AcquireError::OutOfRange);
        }
        self.count(block)?;
        let word = parts.table.word(block);
        let (_, generation) = word.load();
        if generation as u32 != generation_low {
            return Err(self.refused(block, HoldRefused::Gone));
        }
        match parts.row.cell(block).hold_while(BlockState::Writing, word, generation) {
            Ok(()) => {
                parts.row.counters().acquired.fetch_add(1, Ordering::Relaxed);
                Ok(generation)
            }
            Err(refused) => Err(self.refused(block, refused)),
        }
    }

    /// Undoes the count of a block that could not be held.
    fn refused(&self, block: u32, refused: HoldRefused) -> AcquireError {
        self.uncount(block);
        // The producer may have seen the hold before it was taken back.
        self.wake_producer();
        match refused {
            HoldRefused::Gone => {
                self.parts.row.counters().gone.fetch_add(1, Ordering::Relaxed);
                AcquireError::Gone
            }
            HoldRefused::NotPublished => AcquireError::NotPublished,
        }
    }

    /// Notes that the client has given the segment up.
    pub(super) fn set_ended(&self) {
        self.parts.is_ended.store(true, Ordering::Release);
    }

    /// Returns whether nothing can be acquired any more.
    pub(super) fn is_ended(&self) -> bool {
        self.parts.is_ended.load(Ordering::Acquire)
    }

    /// Returns the sizes and the quota.
    pub(super) fn terms(&self) -> SegmentTerms {
        self.parts.terms
    }

    /// Returns the identity of the segment.
    pub(super) fn key(&self) -> SegmentKey {
        self.key
    }

    /// Adds a hold to a block that this process holds.
    pub(super) fn hold_again(&self, block: u32) {
        self.parts.holds[block as usize].fetch_add(1, Ordering::Relaxed);
        self.parts.row.cell(block).hold_again();
    }

    /// Ends a hold.
    pub(super) fn release(&self, block: u32, generation: u64) {
        // The quota is taken back last: a thread that is stopped in between leaves fewer holds in
        // the row than the quota allows, never more.
        self.parts.row.cell(block).release(generation);
        self.uncount(block);
        self.wake_producer();
    }

    /// States that this reader does not need the block of a token, for a producer that waits for
    /// it.
    ///
    /// # Errors
    /// [`AcquireError::OutOfRange`] and [`AcquireError::NotPublished`].
    pub(super) fn skip(&self, token: &Token) -> Result<(), AcquireError> {
        if token.block >= self.parts.terms.geometry.blocks() {
            return Err(AcquireError::OutOfRange);
        }
        let (_, generation) = self.parts.table.word(token.block).load();
        if token.generation > generation {
            return Err(AcquireError::NotPublished);
        }
        self.parts.row.cell(token.block).finish(token.generation);
        self.wake_producer();
        Ok(())
    }

    /// Fails if the blocks lie on a GPU.
    ///
    /// # Errors
    /// [`AcquireError::OnGpu`].
    pub(super) fn require_host(&self) -> Result<(), AcquireError> {
        match self.parts.terms.gpu {
            None => Ok(()),
            Some(gpu) => Err(AcquireError::OnGpu { gpu: gpu.to_string() }),
        }
    }

    /// Returns the blocks on a GPU, which are imported first if necessary.
    ///
    /// # Errors
    /// [`AcquireError::Gpu`]; [`AcquireError::OnHost`] for a segment on the host.
    #[cfg(feature = "cuda")]
    pub(super) fn gpu(&self) -> Result<&GpuView, AcquireError> {
        let AttachedParts { terms, data, .. } = &*self.parts;
        match (data, terms.gpu) {
            (AttachedData::Gpu { memory, events, imported }, Some(gpu)) => {
                imported.get(self.key, *terms, gpu, [memory.as_fd(), events.as_fd()])
            }
            _ => Err(AcquireError::OnHost),
        }
    }

    /// Returns the block table.
    #[cfg(feature = "cuda")]
    pub(super) fn table(&self) -> &TableView {
        &self.parts.table
    }

    /// Returns the address of a block.
    pub(super) fn block(&self, block: u32) -> NonNull<u8> {
        self.parts.data.host().block(block)
    }

    /// Returns whether this process has the mappings: a forked child has not.
    pub(super) fn is_mapped(&self) -> bool {
        self.parts.table.is_mapped()
    }

    /// Returns the way in which a device reads a block that this process holds.
    pub(super) fn dma(&self, block: u32, device: &DeviceName) -> DmaPath {
        if !self.is_mapped() {
            return DmaPath::Copy(CopyReason::Forked);
        }
        let offset = self.parts.terms.geometry.block_offset(block);
        match self.parts.registrations.address(device, self.parts.data.host(), offset) {
            Ok(address) => DmaPath::Direct(address),
            Err(why) => DmaPath::Copy(why),
        }
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

    /// Counts a hold of this process, within its quota of blocks.
    fn count(&self, block: u32) -> Result<(), AcquireError> {
        let (parts, quota) = (&*self.parts, self.parts.terms.quota);
        let holds = &parts.holds[block as usize];
        let mut found = holds.load(Ordering::Relaxed);
        loop {
            if found == COUNTING {
                // Its result decides whether this hold counts as another block.
                std::thread::yield_now();
                found = holds.load(Ordering::Relaxed);
                continue;
            }
            let next = if found == 0 { COUNTING } else { found + 1 };
            match holds.compare_exchange(found, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(0) => break,
                Ok(_) => return Ok(()),
                Err(other) => found = other,
            }
        }
        let below = |held: u32| (held < quota).then_some(held + 1);
        let counted = parts.held_blocks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below);
        holds.store(u32::from(counted.is_ok()), Ordering::Relaxed);
        counted.map(drop).map_err(|_| AcquireError::Quota { quota })
    }

    fn uncount(&self, block: u32) {
        if self.parts.holds[block as usize].fetch_sub(1, Ordering::Relaxed) == 1 {
            self.parts.held_blocks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn wake_producer(&self) {
        if self.parts.table.waiting().must_wake() {
            self.parts.space.notify();
        }
    }

    /// Hands the segment back to a new broker.
    ///
    /// # Errors
    /// As `sendmsg(2)`.
    pub(super) fn hand_back(&self, socket: &FrameSocket) -> io::Result<()> {
        let AttachedParts { terms, row_number, data, table_file, space, row_file, .. } = &*self.parts;
        let message =
            PoolMessage::HandBack { key: self.key, terms: *terms, row: Some(*row_number), stream: "" };
        let mut descriptors = data.files();
        descriptors.extend([table_file.as_fd(), space.as_fd(), row_file.as_fd()]);
        send(socket, &message, &descriptors)
    }
}

impl Drop for AttachedSegment {
    #[allow(unsafe_code, reason = "drops a field once")]
    fn drop(&mut self) {
        let (is_mapped, row) = (self.is_mapped(), self.parts.row_number);
        // SAFETY: nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.parts) };
        // The broker counts the bytes until then.
        if let Some(link) = self.link.upgrade().filter(|_| is_mapped) {
            link.notify(&PoolMessage::Detached { key: self.key, row: Some(row) });
        }
    }
}

/// A segment that this process reads, as blocks share it.
pub(super) type SharedSegment = Arc<AttachedSegment>;
