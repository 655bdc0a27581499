//! Holds: the protocol by which readers keep a block from being reused.
//!
//! A reader counts its holds of each block in a row of cells that it alone writes. It counts before
//! it looks at the state of the block, and a producer marks the block before it looks at the
//! counts, each with a sequentially consistent fence in between. So at least one of them sees the
//! other (the store-buffering pattern): the reader takes its count back, or the producer takes
//! another block. No read is torn, no lock is taken, and no system call is made.
//!
//! A producer that finds no free block waits in the same way: it states that it waits before it
//! looks at the counts once more, and a reader ends its hold before it looks whether the producer
//! waits.

mod block_state;
mod block_word;
mod hold_cell;
#[cfg(all(test, loom))]
mod interleavings;
mod sync;
mod waiting_flag;

pub(crate) use block_state::BlockState;
pub(crate) use block_word::BlockWord;
pub(crate) use hold_cell::{HoldCell, HoldRefused, are_unheld};
pub(crate) use waiting_flag::WaitingFlag;
