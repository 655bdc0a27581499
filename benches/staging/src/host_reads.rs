//! A file to memory of the host, by a ring, and by as many threads that call `pread(2)` in a loop.

#![allow(unsafe_code, reason = "threads read into parts of memory that nothing else uses meanwhile")]

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::slice;
use std::sync::{Arc, Barrier};

use hostbuf_staging::{
    Backend, BorrowedMemory, DeviceTarget, FileOptions, HostMemory, Ring, RingMemory, RingOptions,
};

use crate::transfer_sample::TransferSample;

/// Measures both in turns, and prints the samples of the rows `KEY` (bytes a second) and `KEY-cpu`
/// (CPU seconds for each GiB) of scripts/bench.
///
/// # Errors
/// Those of the file and of the ring.
pub(crate) fn measure(key: &str, path: &str, rounds: usize) -> Result<(), Box<dyn Error>> {
    let file = FileOptions::new().backend(Backend::Posix).open(path)?;
    let bytes = file.bytes()?;
    let ring = Ring::for_host(RingOptions::new())?;
    let RingOptions { workers, piece_bytes, .. } = ring.options();
    let memory = Arc::new(HostMemory::new(bytes as usize));
    let start = memory.address();
    // SAFETY: the memory stays as long as its owner, and transfers and threads take turns.
    let target = unsafe { BorrowedMemory::new(start, bytes as usize, memory.clone()) };
    let target = DeviceTarget::new(Arc::new(target));
    println!("# {key} {bytes} bytes, {workers} threads, {}", file.backend().backend);
    // The first round brings the file into the page cache, and allocates the memory.
    for round in 0..=rounds {
        for turn in [round % 2, 1 - round % 2] {
            let (side, sample) = match turn {
                0 => (
                    "ours",
                    TransferSample::of(bytes, || file.pread(&ring, target.clone(), 0).wait().map(drop))?,
                ),
                _ => ("theirs", read_by_threads(file.as_std(), &memory, workers, piece_bytes)?),
            };
            if round > 0 {
                println!("@ {key} {side} {}", sample.rate() * 1e9);
                println!("@ {key}-cpu {side} {}", sample.cpu_per_gib());
            }
        }
    }
    // SAFETY: as above, and this is the only user now.
    let content = unsafe { slice::from_raw_parts_mut(start.as_ptr(), bytes as usize) };
    content.fill(0);
    file.pread(&ring, target, 0).wait()?;
    match is_content_of(path, content)? {
        true => Ok(()),
        false => Err(format!("the ring has read other bytes than {path} has").into()),
    }
}

/// Reads the file by threads, each a part of its own in reads of `piece` bytes. The threads have
/// started before the time begins.
fn read_by_threads(
    file: &File,
    memory: &HostMemory,
    threads: usize,
    piece: usize,
) -> io::Result<TransferSample> {
    let part = memory.bytes().div_ceil(threads);
    let begin = Barrier::new(threads + 1);
    let read_part = &|start: usize| -> io::Result<()> {
        let length = part.min(memory.bytes().saturating_sub(start));
        // SAFETY: the part lies in the memory, and no other thread has it.
        let into = unsafe {
            slice::from_raw_parts_mut(memory.address().as_ptr().add(start.min(memory.bytes())), length)
        };
        begin.wait();
        let mut at = start as u64;
        for piece in into.chunks_mut(piece) {
            file.read_exact_at(piece, at)?;
            at += piece.len() as u64;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || read_part(thread * part))).collect();
        begin.wait();
        TransferSample::of(memory.bytes() as u64, || {
            running
                .into_iter()
                .try_for_each(|thread| thread.join().expect("a thread that reads has no panic"))
        })
    })
}

/// Returns whether a file has these bytes.
fn is_content_of(path: &str, content: &[u8]) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    for piece in content.chunks(buffer.len()) {
        let buffer = &mut buffer[..piece.len()];
        file.read_exact(buffer)?;
        if buffer != piece {
            return Ok(false);
        }
    }
    Ok(true)
}
