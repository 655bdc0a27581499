//! Loom models of readers beside a producer that reuses blocks, in every interleaving: the shipped
//! protocol, and the same with one fence missing, which must fail. scripts/test runs them:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --package hostbuf-pool --lib --target-dir target/loom \
//!     interleavings
//! ```
//!
//! Not modelled: the death of a process. The broker writes to a row or to a block only after the
//! kernel has reported that the process which wrote to it has ended.

#![allow(unsafe_code, reason = "the models access a cell as processes access a block")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Notify;
use loom::thread;

use super::sync::{FenceSite, without_fence};
use super::{BlockState, BlockWord, HoldCell, HoldRefused, WaitingFlag, are_unheld};

/// A block with two readers. The content is the generation.
struct SharedBlock {
    word: BlockWord,
    content: UnsafeCell<u64>,
    rows: [HoldCell; 2],
    waiting: WaitingFlag,
    wake: Notify,
}

impl SharedBlock {
    /// Makes a block whose generation 1 is published.
    fn published() -> Arc<SharedBlock> {
        Arc::new(SharedBlock {
            word: BlockWord::new(BlockState::Published, 1),
            content: UnsafeCell::new(1),
            rows: [HoldCell::new(), HoldCell::new()],
            waiting: WaitingFlag::new(),
            wake: Notify::new(),
        })
    }

    /// Reads the content of `generation` twice as reader `row`, if it is still there.
    fn read(&self, row: usize, generation: u64) -> Result<(), HoldRefused> {
        let held = self.rows[row].hold(&self.word, generation);
        if held.is_ok() {
            for _ in 0..2 {
                // SAFETY: loom checks that no other thread writes meanwhile.
                self.content.with(|content| assert_eq!(unsafe { *content }, generation, "a torn read"));
                thread::yield_now();
            }
            self.rows[row].release(generation);
        }
        // Also after a refused hold, which the producer may have counted.
        self.wake();
        held
    }

    fn wake(&self) {
        if self.waiting.must_wake() {
            self.wake.notify();
        }
    }

    /// Overwrites the block with `generation` and publishes it, unless a reader holds it.
    fn reuse(&self, generation: u64) -> bool {
        self.word.set(BlockState::Retired, generation - 1);
        self.overwrite(generation)
    }

    fn overwrite(&self, generation: u64) -> bool {
        if !are_unheld(self.rows.iter()) {
            return false;
        }
        self.word.set(BlockState::Writing, generation);
        // SAFETY: loom checks that no other thread accesses it meanwhile.
        self.content.with_mut(|content| unsafe { *content = generation });
        self.word.set(BlockState::Published, generation);
        true
    }
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

/// Models one reader and a producer that reuses the block once.
fn reader_beside_producer() {
    model(|| {
        let block = SharedBlock::published();
        let reader = block.clone();
        let reader = thread::spawn(move || reader.read(0, 1));
        let reused = block.reuse(2);
        let read = reader.join().expect("no torn read");
        // A reader that is refused may have kept the producer from reusing the block in this turn.
        assert!(read.is_ok() || read == Err(HoldRefused::Gone));
        if reused || block.overwrite(2) {
            assert_eq!(block.read(1, 1), Err(HoldRefused::Gone));
            assert_eq!(block.read(1, 2), Ok(()));
        }
    });
}

/// Overwrites the block as a producer that waits until it is free.
fn wait_and_reuse(block: &SharedBlock) {
    if !block.reuse(2) {
        block.waiting.raise();
        // Without a wake-up loom finds that no thread can continue. A wake-up may be that of
        // another reader.
        while !block.overwrite(2) {
            block.wake.wait();
        }
        block.waiting.lower();
    }
}

/// Models one reader, and a producer that waits until the reader has released the block.
fn waiting_producer() {
    model(|| {
        let block = SharedBlock::published();
        assert_eq!(block.rows[0].hold(&block.word, 1), Ok(()));
        let reader = block.clone();
        let reader = thread::spawn(move || {
            reader.rows[0].release(1);
            reader.wake();
        });
        wait_and_reuse(&block);
        reader.join().expect("it ends");
    });
}

/// Models a named reader that finishes with a generation, and a producer that waits for it.
fn producer_of_a_named_reader() {
    model(|| {
        let block = SharedBlock::published();
        assert_eq!(block.rows[0].hold(&block.word, 1), Ok(()));
        let reader = block.clone();
        let reader = thread::spawn(move || {
            reader.rows[0].release(1);
            reader.wake();
        });
        if !block.rows[0].has_finished(1) {
            block.waiting.raise();
            // As above.
            while !block.rows[0].has_finished(1) {
                block.wake.wait();
            }
            block.waiting.lower();
        }
        reader.join().expect("it ends");
    });
}

#[test]
fn a_read_is_never_torn() {
    reader_beside_producer();
}

#[test]
fn two_threads_of_a_reader_share_its_row() {
    model(|| {
        let block = SharedBlock::published();
        let reader = block.clone();
        let reader = thread::spawn(move || reader.read(0, 1));
        let producer = block.clone();
        let producer = thread::spawn(move || producer.reuse(2));
        let read = block.read(0, 1);
        let (other, reused) = (reader.join().expect("no torn read"), producer.join().expect("it ends"));
        assert!([read, other].iter().all(|read| matches!(read, Ok(()) | Err(HoldRefused::Gone))));
        assert!(reused || block.overwrite(2), "a hold was not taken back");
    });
}

#[test]
fn a_waiting_producer_is_woken() {
    waiting_producer();
}

#[test]
fn a_producer_that_waits_for_a_named_reader_is_woken() {
    producer_of_a_named_reader();
}

#[test]
fn a_refused_reader_wakes_the_producer() {
    model(|| {
        let block = SharedBlock::published();
        let reader = block.clone();
        let reader = thread::spawn(move || reader.read(0, 1));
        wait_and_reuse(&block);
        let _ = reader.join().expect("no torn read");
    });
}

#[test]
fn each_fence_is_necessary() {
    let models: [(FenceSite, fn()); 5] = [
        (FenceSite::Hold, reader_beside_producer),
        (FenceSite::Reuse, reader_beside_producer),
        (FenceSite::Wait, producer_of_a_named_reader),
        (FenceSite::Wake, producer_of_a_named_reader),
        (FenceSite::Wake, waiting_producer),
    ];
    for (site, run) in models {
        let failed = catch_unwind(AssertUnwindSafe(|| without_fence(site, run))).is_err();
        assert!(failed, "the model does not need the fence {site:?}");
    }
}
