//! Processes that do one step at a time, and answer after each.

use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

use hostbuf_pool::{AcquireError, ProducerOptions, TakeError, Token};

use crate::broken_promise::BrokenPromise;
use crate::child::RoleProcess;
use crate::stamps;
use crate::test_broker::connect;

/// The number of blocks of a writer.
pub(crate) const BLOCKS: u32 = 8;
/// The largest number of blocks that a reader may hold.
pub(crate) const QUOTA: u32 = 3;
/// The length of a writer's block in bytes.
pub(crate) const BLOCK_BYTES: u64 = 16 << 10;
/// The time for which a writer waits for a free block.
const TAKE_LIMIT: Duration = Duration::from_millis(2);
/// The number of blocks that a reader keeps.
const KEPT: usize = 2;

/// The result of a reader for one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// All of the frame had this stamp.
    Frame(u64),
    /// The stamps of the frame differed.
    Torn,
    /// The block was gone.
    Gone,
    /// The token or the block was refused with another error.
    Refused,
}

/// A frame that a writer has published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenFrame {
    pub(crate) token: [u8; Token::SIZE],
    pub(crate) stamp: u64,
}

/// A process that publishes one frame at a time.
#[derive(Debug)]
pub(crate) struct SteppingWriter {
    pub(crate) process: RoleProcess,
    /// The number of frames.
    published: u64,
}

/// A process that reads one frame at a time, and keeps the last ones.
#[derive(Debug)]
pub(crate) struct SteppingReader(pub(crate) RoleProcess);

impl SteppingWriter {
    pub(crate) fn start(broker: &str) -> Result<SteppingWriter, BrokenPromise> {
        let mut process = RoleProcess::start("stepping-writer", &[broker])?;
        process.wait_ready()?;
        Ok(SteppingWriter { process, published: 0 })
    }

    /// Asks for a frame.
    pub(crate) fn ask(&mut self) {
        // A process that has ended does not answer.
        self.process.send(b"n");
    }

    /// Returns the frame, or `None` if no block was free.
    pub(crate) fn answer(&mut self) -> Result<Option<WrittenFrame>, BrokenPromise> {
        let (mut kind, mut token) = ([0], [0; Token::SIZE]);
        self.process.receive(&mut kind)?;
        if kind == *b"-" {
            return Ok(None);
        }
        self.process.receive(&mut token)?;
        self.published += 1;
        Ok(Some(WrittenFrame { token, stamp: self.published }))
    }

    /// Publishes a frame, as `ask` and `answer`.
    pub(crate) fn step(&mut self) -> Result<Option<WrittenFrame>, BrokenPromise> {
        self.ask();
        self.answer()
    }

    /// Publishes a frame, which `reader` reads.
    pub(crate) fn step_to(&mut self, reader: &mut SteppingReader) -> Result<(), BrokenPromise> {
        let frame = self.step()?.ok_or("a writer has no free block")?;
        match reader.step(&frame.token)? {
            ReadStep::Frame(stamp) if stamp == frame.stamp => Ok(()),
            step => Err(format!("a reader got {step:?} instead of frame {}", frame.stamp)),
        }
    }
}

impl SteppingReader {
    pub(crate) fn start(broker: &str) -> Result<SteppingReader, BrokenPromise> {
        let mut process = RoleProcess::start("stepping-reader", &[broker])?;
        process.wait_ready()?;
        Ok(SteppingReader(process))
    }

    /// Passes a token on.
    pub(crate) fn ask(&mut self, token: &[u8; Token::SIZE]) {
        // A process that has ended does not answer.
        self.0.send(token);
    }

    /// Returns the result of the reader.
    pub(crate) fn answer(&mut self) -> Result<ReadStep, BrokenPromise> {
        let (mut kind, mut stamp) = ([0], [0; 8]);
        self.0.receive(&mut kind)?;
        self.0.receive(&mut stamp)?;
        Ok(match kind[0] {
            b's' => ReadStep::Frame(u64::from_ne_bytes(stamp)),
            b't' => ReadStep::Torn,
            b'g' => ReadStep::Gone,
            _ => ReadStep::Refused,
        })
    }

    /// Reads a frame, as `ask` and `answer`.
    pub(crate) fn step(&mut self, token: &[u8; Token::SIZE]) -> Result<ReadStep, BrokenPromise> {
        self.ask(token);
        self.answer()
    }
}

fn text(error: impl std::fmt::Display) -> BrokenPromise {
    error.to_string()
}

fn say(bytes: &[u8]) -> Result<(), BrokenPromise> {
    let mut output = std::io::stdout();
    output.write_all(bytes).and_then(|()| output.flush()).map_err(text)
}

/// Reads exactly as many bytes as `bytes` has. Returns false at the end of the input.
fn hear(bytes: &mut [u8]) -> Result<bool, BrokenPromise> {
    match std::io::stdin().read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(text(error)),
    }
}

/// Publishes a frame for each byte of its input, until the end of the input.
pub(crate) fn write(broker: &str) -> Result<(), BrokenPromise> {
    let pool = connect(broker, "stepping-writer")?;
    let options = ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1).quota(QUOTA).readers(2);
    let producer = pool.producer(&options).map_err(text)?;
    say(b"r")?;
    let mut stamp = 0;
    while hear(&mut [0])? {
        match producer.take_timeout(TAKE_LIMIT) {
            Ok(block) => {
                stamp += 1;
                let token = stamps::publish(block, stamp);
                say(&[b"f".as_slice(), &token.to_bytes()].concat())?;
            }
            Err(TakeError::Timeout { .. }) => say(b"-")?,
            Err(error) => return Err(text(error)),
        }
    }
    Ok(())
}

/// Acquires the block of each token of its input, until the end of the input.
pub(crate) fn read(broker: &str) -> Result<(), BrokenPromise> {
    let pool = connect(broker, "stepping-reader")?;
    say(b"r")?;
    let mut kept = std::collections::VecDeque::new();
    let mut token = [0; Token::SIZE];
    while hear(&mut token)? {
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        let (kind, stamp) = match pool.acquire_bytes(&token) {
            Ok(block) => {
                let stamp = stamps::check(&block);
                kept.push_back(block);
                stamp.map_or((b't', 0), |stamp| (b's', stamp))
            }
            Err(AcquireError::Gone) => (b'g', 0),
            Err(_) => (b'e', 0),
        };
        say(&[&[kind], stamp.to_ne_bytes().as_slice()].concat())?;
    }
    Ok(())
}
