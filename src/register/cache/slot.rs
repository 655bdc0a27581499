//! One registration of a cache: who may use it, and what the device gave.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::span::{Access, Span};

/// Where a slot is in its life. Only the holder of the cache's lock changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// Nothing is registered.
    Free = 0,
    /// The device is at work on it.
    Filling = 1,
    /// It may be leased.
    Live = 2,
    /// It is looked at whether it is leased; for a moment.
    Dying = 3,
    /// It goes when its last lease does: its memory has changed, or cannot be watched.
    Stale = 4,
    /// The device is ending it.
    Ending = 5,
}

/// What lookups read, two slots in a line.
#[repr(C, align(32))]
pub(super) struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Bytes of the budget that it takes.
    bytes: AtomicUsize,
    state: AtomicU32,
    /// The rights, and whether a hit must ask whether the address space is changing.
    access: AtomicU32,
}

const WATCHED: u32 = 1 << 8;

impl Slot {
    pub(super) fn new() -> Slot {
        Slot {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            state: AtomicU32::new(State::Free as u32),
            access: AtomicU32::new(0),
        }
    }

    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::SeqCst) {
            0 => State::Free,
            1 => State::Filling,
            2 => State::Live,
            3 => State::Dying,
            4 => State::Stale,
            _ => State::Ending,
        }
    }

    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.state.load(Ordering::SeqCst) == State::Live as u32
    }

    /// Whether somebody must look after it when a lease ends.
    #[inline]
    pub(super) fn is_stale(&self) -> bool {
        self.state.load(Ordering::Relaxed) == State::Stale as u32
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u32, Ordering::SeqCst);
    }

    /// What it is, before anybody can find it.
    pub(super) fn describe(&self, span: Span, access: Access, watched: bool, bytes: usize) {
        self.start.store(span.start(), Ordering::Relaxed);
        self.end.store(span.end(), Ordering::Relaxed);
        let watched = if watched { WATCHED } else { 0 };
        self.access.store(u32::from(access.bits()) | watched, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn covers(&self, span: Span, access: Access) -> bool {
        self.start.load(Ordering::Relaxed) <= span.start()
            && span.end() <= self.end.load(Ordering::Relaxed)
            && self.access().allows(access)
    }

    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.access.load(Ordering::Relaxed) & WATCHED != 0
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn access(&self) -> Access {
        Access::from_bits(self.access.load(Ordering::Relaxed) as u8)
    }

    /// Its range; of a free slot the last one.
    pub(super) fn span(&self) -> Span {
        let start = self.start.load(Ordering::Relaxed);
        let end = self.end.load(Ordering::Relaxed);
        Span::new(start.max(1), end.saturating_sub(start).max(1)).expect("a range that was one")
    }
}

/// What the device gave for a slot, and what keeps the memory. Written while the slot is Filling or Ending, by the one thread
/// that made it so; read by those who hold a lease.
pub(super) struct Content<H>(UnsafeCell<Option<Kept<H>>>);

type Kept<H> = (H, Option<Arc<dyn Send + Sync>>);

// SAFETY: it is shared with those who hold a lease, and has one owner while there is none.
unsafe impl<H: Send + Sync> Sync for Content<H> {}

impl<H> Content<H> {
    pub(super) fn new() -> Content<H> {
        Content(UnsafeCell::new(None))
    }

    /// Puts the content in.
    ///
    /// # Safety
    /// The slot is Filling, and this thread made it so.
    pub(super) unsafe fn fill(&self, handle: H, memory: Option<Arc<dyn Send + Sync>>) {
        // SAFETY: nobody else looks at a slot that is Filling.
        unsafe { *self.0.get() = Some((handle, memory)) };
    }

    /// Takes the content out.
    ///
    /// # Safety
    /// The slot is Ending, and this thread made it so; or nobody else has the cache any more.
    pub(super) unsafe fn empty(&self) -> Option<Kept<H>> {
        // SAFETY: nobody else looks at a slot that is Ending.
        unsafe { (*self.0.get()).take() }
    }

    /// What the device gave.
    ///
    /// # Safety
    /// The caller holds a lease of it.
    pub(super) unsafe fn handle(&self) -> Option<&H> {
        // SAFETY: the content does not change while there is a lease.
        unsafe { (*self.0.get()).as_ref().map(|(handle, _)| handle) }
    }
}
