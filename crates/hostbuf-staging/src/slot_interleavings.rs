//! Loom models of threads that fill and send the slots of a ring, in every interleaving.
//! scripts/test runs them:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --package hostbuf-staging --lib --target-dir target/loom \
//!     interleavings
//! ```

#![allow(unsafe_code, reason = "the models access cells as threads access the memory of a slot")]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use crate::slot_word::{OwnedSlot, SlotWord};

/// The number of pieces of a slot.
const PIECES: usize = 2;

/// A slot. loom reports every access that another thread's access does not happen before.
struct ModelSlot {
    state: SlotWord,
    /// The number of the chunk.
    record: UnsafeCell<usize>,
    memory: [UnsafeCell<usize>; PIECES],
}

impl ModelSlot {
    fn new() -> ModelSlot {
        ModelSlot {
            state: SlotWord::new(),
            record: UnsafeCell::new(0),
            memory: [UnsafeCell::new(0), UnsafeCell::new(0)],
        }
    }

    /// Fills a piece, if there is one.
    fn fill(&self) -> Option<OwnedSlot<'_>> {
        let piece = self.state.claim()?;
        // SAFETY: loom checks that no other thread writes the record, or accesses the piece.
        let chunk = self.record.with(|record| unsafe { *record });
        // SAFETY: as above.
        self.memory[piece.number as usize].with_mut(|memory| unsafe { *memory = chunk });
        piece.finish()
    }

    /// Starts the turn of chunk `chunk`.
    fn begin(&self, owned: OwnedSlot<'_>, chunk: usize) {
        // SAFETY: loom checks that no other thread accesses the record.
        self.record.with_mut(|record| unsafe { *record = chunk });
        owned.offer(PIECES as u32);
    }

    /// Checks the whole memory, as a device reads it.
    fn check(&self) {
        // SAFETY: as above.
        let chunk = self.record.with(|record| unsafe { *record });
        for memory in &self.memory {
            // SAFETY: as above.
            memory.with(|memory| assert_eq!(unsafe { *memory }, chunk, "a piece of another turn"));
        }
    }
}

/// A ring of `slots` slots, and the number of chunks that were begun and that have landed.
struct ModelRing {
    slots: Vec<ModelSlot>,
    begun: AtomicUsize,
    landed: AtomicUsize,
}

impl ModelRing {
    fn new(slots: usize) -> Arc<ModelRing> {
        let slots = (0..slots).map(|_| ModelSlot::new()).collect();
        Arc::new(ModelRing { slots, begun: AtomicUsize::new(0), landed: AtomicUsize::new(0) })
    }

    /// Does one step of a worker on each slot: fills a piece, ends a copy, or begins a chunk.
    fn step(&self, chunks: usize) {
        for slot in &self.slots {
            if let Some(owned) = slot.fill() {
                owned.start_copy();
            }
            if let Some(owned) = slot.state.poll() {
                slot.check();
                self.landed.fetch_add(1, Ordering::Relaxed);
                owned.free();
            }
            if self.begun.load(Ordering::Relaxed) < chunks
                && let Some(owned) = slot.state.open()
            {
                match self.begun.fetch_add(1, Ordering::Relaxed) {
                    chunk if chunk < chunks => slot.begin(owned, chunk + 1),
                    _ => owned.free(),
                }
            }
        }
    }
}

/// Lets two workers do all chunks in a ring, and the last ones by one of them.
fn run(slots: usize, chunks: usize, steps: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let ring = ModelRing::new(slots);
        for slot in &ring.slots {
            let chunk = ring.begun.fetch_add(1, Ordering::Relaxed);
            slot.begin(slot.state.open().unwrap(), chunk + 1);
        }
        let other = ring.clone();
        let worker = thread::spawn(move || (0..steps).for_each(|_| other.step(chunks)));
        (0..steps).for_each(|_| ring.step(chunks));
        worker.join().unwrap();
        while ring.landed.load(Ordering::Relaxed) < chunks {
            ring.step(chunks);
        }
        assert!(ring.slots.iter().all(|slot| slot.state.is_free()));
    });
}

#[test]
fn a_slot_has_one_turn_at_a_time() {
    run(1, 2, 2);
}

#[test]
fn two_slots_take_turns() {
    run(2, 3, 1);
}
