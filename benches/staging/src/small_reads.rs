//! Short reads of a file to a GPU, and what a ring costs before and between them.

#![allow(unsafe_code, reason = "starts copies of the GPU between two ranges that outlive them")]

use std::error::Error;
use std::os::unix::fs::FileExt;
use std::ptr::{slice_from_raw_parts, slice_from_raw_parts_mut};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hostbuf_cuda::{CudaContext, CudaGpu, CudaStream, DeviceMemory, Driver, PageLockedMemory};
use hostbuf_staging::{Backend, CudaDevice, DeviceTarget, File, FileOptions, Ring, RingOptions};

use crate::thread_time::nanoseconds_of_rings;
use crate::transfer_sample::median;

/// The lengths of the reads.
const LENGTHS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// The number of reads of a sample.
const READS: usize = 500;
/// The time for which the CPU time of an idle ring is measured.
const IDLE: Duration = Duration::from_secs(2);

/// Measures both ways in turns, and prints tables.
///
/// # Errors
/// The driver's, those of the file, and those of a ring.
pub(crate) fn measure(path: &str, rounds: usize) -> Result<(), Box<dyn Error>> {
    let gpu = Driver::find()?.gpu(0)?;
    let context = CudaContext::retain(&gpu)?;
    let ready = (0..=rounds).map(|_| seconds_to_ready(&gpu)).collect::<Result<Vec<_>, _>>()?;
    let ring = Ring::for_gpu(&gpu, RingOptions::new())?;
    let file = FileOptions::new().backend(Backend::Posix).open(path)?;
    let reads = ShortReads {
        bytes: file.bytes()?,
        memory: Arc::new(DeviceMemory::new(&context, 1 << 20)?),
        slot: PageLockedMemory::new(&context, 1 << 20)?,
        stream: CudaStream::new(&context)?,
        file,
        ring,
    };
    let mut samples = LENGTHS.map(|_| [Vec::new(), Vec::new()]);
    // The first round does not count.
    for round in 0..=rounds {
        for (length, [plain, by_ring]) in LENGTHS.iter().zip(&mut samples) {
            let (one, two) = (reads.plain(*length)?, reads.by_ring(*length)?);
            if round > 0 {
                plain.push(one);
                by_ring.push(two);
            }
        }
    }
    println!("| read of {path} to the GPU | pread, copy, wait: us | by a ring: us | ratio |");
    println!("| --- | --- | --- | --- |");
    for (length, [plain, by_ring]) in LENGTHS.iter().zip(samples) {
        let (plain, by_ring) = (median(plain), median(by_ring));
        println!("| {} KiB | {plain:.1} | {by_ring:.1} | {:.2} |", length >> 10, by_ring / plain);
    }
    // The threads look for work for a moment after the last transfer.
    sleep(IDLE / 20);
    let before = nanoseconds_of_rings()?;
    sleep(IDLE);
    let idle = nanoseconds_of_rings()? - before;
    println!("| a ring of {} bytes | |", reads.ring.options().bytes()?);
    println!("| --- | --- |");
    println!("| ready after | {:.2} ms |", median(ready[1..].iter().copied()) * 1e3);
    println!("| CPU time of its threads while it is idle for {IDLE:?} | {:.3} ms |", idle as f64 / 1e6);
    Ok(())
}

/// Returns the time in which a ring is made, in seconds.
fn seconds_to_ready(gpu: &CudaGpu) -> Result<f64, Box<dyn Error>> {
    let begun = Instant::now();
    let ring = Ring::for_gpu(gpu, RingOptions::new())?;
    let seconds = begun.elapsed().as_secs_f64();
    drop(ring);
    Ok(seconds)
}

/// The file, and what both ways need.
struct ShortReads {
    file: File,
    bytes: u64,
    memory: Arc<DeviceMemory>,
    slot: PageLockedMemory,
    stream: CudaStream,
    ring: Ring<CudaDevice>,
}

impl ShortReads {
    /// Returns offsets in the file, far from each other.
    fn offsets(&self, length: usize) -> impl Iterator<Item = u64> {
        let places = (self.bytes / length as u64).max(1);
        (0..READS as u64).map(move |number| number.wrapping_mul(7919) % places * length as u64)
    }

    /// Reads into page-locked memory, copies, and waits. Returns the time of a read in µs.
    fn plain(&self, length: usize) -> Result<f64, Box<dyn Error>> {
        let begun = Instant::now();
        for offset in self.offsets(length) {
            let into = slice_from_raw_parts_mut(self.slot.as_ptr(), length);
            // SAFETY: nothing else uses the memory; the copy before has been waited for.
            self.file.as_std().read_exact_at(unsafe { &mut *into }, offset)?;
            let from = slice_from_raw_parts(self.slot.as_ptr().cast_const(), length);
            // SAFETY: both ranges live until the stream has been waited for.
            unsafe { self.stream.copy_to_device(from, self.memory.address()) }?;
            self.stream.synchronize()?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / READS as f64)
    }

    /// Reads by the ring, and waits. Returns the time of a read in µs.
    fn by_ring(&self, length: usize) -> Result<f64, Box<dyn Error>> {
        let whole = DeviceTarget::new(self.memory.clone());
        let target = whole.part(0..length as u64)?;
        let begun = Instant::now();
        for offset in self.offsets(length) {
            self.file.pread(&self.ring, target.clone(), offset).wait()?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / READS as f64)
    }
}
