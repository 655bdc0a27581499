//! The blocks of a provider that zenoh has.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hostbuf_pool::{Block, Producer, TakeError};

/// The time for which a block that a process may have held when it ended is left alone: a message
/// on its way to another reader arrives meanwhile.
const GRACE: Duration = Duration::from_millis(40);

/// The references of this process to one block: those of the buffers that the application and
/// zenoh have. It keeps the memory mapped after the end of the provider.
#[derive(Debug)]
pub(crate) struct LocalReferences {
    _producer: Arc<Producer>,
}

/// A block that zenoh has.
#[derive(Debug)]
struct OutstandingBlock {
    block: Block,
    generation_low: u32,
    local: Weak<LocalReferences>,
    /// True if a reader has ended since the block was taken: zenoh's count of references may be
    /// too high for ever.
    is_suspect: bool,
    /// False once zenoh has given the block back, although this process still refers to it.
    is_counted: bool,
    /// The end of the grace for a suspect that this process does not refer to.
    grace_end: Option<Instant>,
}

/// The blocks of a provider that zenoh has.
#[derive(Debug)]
pub(crate) struct BlockLedger {
    producer: Arc<Producer>,
    /// The blocks, indexed by their numbers.
    outstanding: Vec<Option<OutstandingBlock>>,
    departures: u64,
    /// The number of chunks that zenoh still counts and whose blocks were taken back.
    stale_chunks: usize,
}

/// A block that was taken for a message.
#[derive(Debug)]
pub(crate) struct TakenBlock {
    pub(crate) number: u32,
    pub(crate) generation_low: u32,
    pub(crate) address: *mut u8,
    pub(crate) references: Arc<LocalReferences>,
}

impl BlockLedger {
    pub(crate) fn new(producer: Producer) -> BlockLedger {
        let outstanding = (0..producer.blocks()).map(|_| None).collect();
        let departures = producer.departures();
        BlockLedger { producer: Arc::new(producer), outstanding, departures, stale_chunks: 0 }
    }

    /// Returns the producer.
    pub(crate) fn producer(&self) -> &Producer {
        &self.producer
    }

    /// Takes a free block, or one back that only processes have held that have ended. Returns
    /// `None` if there is none.
    ///
    /// # Errors
    /// [`TakeError`] in a forked child.
    pub(crate) fn take(&mut self) -> Result<Option<TakenBlock>, TakeError> {
        // Fails in a forked child, before anything is read.
        let mut found = self.producer.try_take()?;
        self.note_departures();
        if found.is_none() {
            self.take_back(Instant::now());
            found = self.producer.try_take()?;
        }
        let Some(mut block) = found else { return Ok(None) };
        let references = Arc::new(LocalReferences { _producer: self.producer.clone() });
        let taken = TakenBlock {
            number: block.number(),
            generation_low: block.generation() as u32,
            address: block.as_mut_ptr(),
            references,
        };
        self.outstanding[taken.number as usize] = Some(OutstandingBlock {
            block,
            generation_low: taken.generation_low,
            local: Arc::downgrade(&taken.references),
            is_suspect: false,
            is_counted: true,
            grace_end: None,
        });
        Ok(Some(taken))
    }

    /// Suspects all blocks that zenoh has if a reader has ended.
    fn note_departures(&mut self) {
        let departures = self.producer.departures();
        if departures != self.departures {
            self.departures = departures;
            let grace_end = Instant::now() + GRACE;
            for block in self.outstanding.iter_mut().flatten() {
                block.is_suspect = true;
                block.grace_end = Some(grace_end);
            }
        }
    }

    /// Retires the suspects without references in this process, after their grace. The pool gives
    /// them out again when no living reader holds them.
    fn take_back(&mut self, now: Instant) {
        for entry in &mut self.outstanding {
            let Some(block) = entry.as_mut().filter(|block| block.is_suspect) else { continue };
            if block.local.strong_count() > 0 {
                // A message may be sent when this process gives it up.
                block.grace_end = None;
            } else if *block.grace_end.get_or_insert(now + GRACE) <= now {
                let block = entry.take().expect("it was found");
                self.stale_chunks += usize::from(block.is_counted);
                block.block.retire();
            }
        }
    }

    /// Takes a block from zenoh, which has freed it. The pool gives it out again when no reader
    /// holds it, which the rows of the readers state: zenoh may have decremented the count of
    /// another message by mistake.
    pub(crate) fn give_back(&mut self, number: u32, generation_low: u32) {
        let entry = self.outstanding.get_mut(number as usize);
        let Some(entry) = entry else { return };
        match entry.take() {
            Some(block) if block.generation_low == generation_low => {
                if block.local.strong_count() == 0 {
                    block.block.retire();
                } else {
                    *entry = Some(OutstandingBlock { is_suspect: true, is_counted: false, ..block });
                }
            }
            other => {
                // Its block was taken back before.
                *entry = other;
                self.stale_chunks = self.stale_chunks.saturating_sub(1);
            }
        }
    }

    /// Returns the number of blocks that zenoh does not have.
    pub(crate) fn free_blocks(&self) -> usize {
        self.outstanding.iter().filter(|block| block.is_none()).count()
    }

    /// Returns whether zenoh still counts chunks whose blocks were taken back.
    pub(crate) fn has_stale_chunks(&self) -> bool {
        self.stale_chunks > 0
    }
}

#[cfg(test)]
mod tests {
    use hostbuf_pool::{Pool, PoolMode, PoolOptions, ProducerOptions};

    use super::*;

    fn ledger(blocks: u32) -> (Pool, BlockLedger) {
        let pool = Pool::connect(PoolOptions::new("test").mode(PoolMode::Private)).unwrap();
        let producer = pool.producer(&ProducerOptions::new(4096, blocks).quota(blocks)).unwrap();
        (pool, BlockLedger::new(producer))
    }

    #[test]
    fn a_freed_block_that_a_reader_holds_is_not_taken() {
        let (pool, mut ledger) = ledger(2);
        let reader = pool.attach(ledger.producer().segment()).unwrap();
        let TakenBlock { number, generation_low, references, .. } = ledger.take().unwrap().unwrap();
        let held = reader.hold(number, generation_low).unwrap();
        drop(references);
        ledger.give_back(number, generation_low);
        let other = ledger.take().unwrap().unwrap();
        assert_ne!(other.number, number);
        assert!(ledger.take().unwrap().is_none(), "the block of a reader is given out");
        drop(held);
        assert_eq!(ledger.take().unwrap().unwrap().number, number);
    }

    #[test]
    fn a_freed_block_that_this_process_refers_to_is_not_taken() {
        let (_pool, mut ledger) = ledger(2);
        let taken = ledger.take().unwrap().unwrap();
        let _other = ledger.take().unwrap().unwrap();
        ledger.give_back(taken.number, taken.generation_low);
        ledger.take_back(Instant::now() + 2 * GRACE);
        assert!(ledger.take().unwrap().is_none(), "the block of a buffer is given out");
        drop(taken);
        ledger.take_back(Instant::now());
        ledger.take_back(Instant::now() + 2 * GRACE);
        assert!(ledger.take().unwrap().is_some());
    }
}
