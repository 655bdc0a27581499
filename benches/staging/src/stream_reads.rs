//! Reads of a file to a GPU in the order of a stream, beside reads that no stream waits for.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, Driver};
use hostbuf_staging::{Backend, CudaDevice, DeviceTarget, File, FileOptions, Ring, RingOptions};

use crate::transfer_sample::median;

/// The lengths of the reads in bytes, besides the whole file.
const LENGTHS: [u64; 4] = [4 << 10, 1 << 20, 64 << 20, 1 << 30];

/// The times of a read.
#[derive(Clone, Copy)]
struct ReadTimes {
    /// Of the call that starts it.
    call: Duration,
    /// Until the bytes are there.
    whole: Duration,
}

/// Measures both ways in turns, and prints a table.
///
/// # Errors
/// The driver's, those of the file, and those of a ring.
pub(crate) fn measure(path: &str, rounds: usize) -> Result<(), Box<dyn Error>> {
    let gpu = Driver::find()?.gpu(0)?;
    let context = CudaContext::retain(&gpu)?;
    let file = FileOptions::new().backend(Backend::Posix).open(path)?;
    let bytes = file.bytes()?;
    let memory = DeviceTarget::new(Arc::new(DeviceMemory::new(&context, bytes as usize)?));
    let (ring, stream) = (Ring::for_gpu(&gpu, RingOptions::new())?, CudaStream::new(&context)?);
    let mut lengths: Vec<u64> = LENGTHS.into_iter().filter(|&length| length < bytes).collect();
    lengths.push(bytes);
    println!("| read of {path} | pread: us | in the order of a stream: us | ratio | the call: us |");
    println!("| --- | --- | --- | --- | --- |");
    for length in lengths {
        let target = memory.part(0..length)?;
        let (mut plain, mut ordered) = (Vec::new(), Vec::new());
        // The first round does not count.
        for round in 0..=rounds {
            let one = read(&file, &ring, None, &target)?;
            let other = read(&file, &ring, Some(&stream), &target)?;
            if round > 0 {
                plain.push(one);
                ordered.push(other);
            }
        }
        let micros = |times: &[ReadTimes], of: fn(&ReadTimes) -> Duration| {
            median(times.iter().map(|times| of(times).as_secs_f64() * 1e6))
        };
        let (one, other) = (micros(&plain, |times| times.whole), micros(&ordered, |times| times.whole));
        let call = micros(&ordered, |times| times.call);
        println!("| {length} bytes | {one:.1} | {other:.1} | {:.2} | {call:.1} |", other / one);
    }
    Ok(())
}

/// Reads the beginning of a file, and waits.
fn read(
    file: &File,
    ring: &Ring<CudaDevice>,
    stream: Option<&CudaStream>,
    target: &DeviceTarget,
) -> Result<ReadTimes, Box<dyn Error>> {
    let begun = Instant::now();
    let transfer = match stream {
        Some(stream) => file.pread_on(ring, stream, target.clone(), 0),
        None => file.pread(ring, target.clone(), 0),
    };
    let call = begun.elapsed();
    transfer.wait()?;
    if let Some(stream) = stream {
        stream.synchronize()?;
    }
    Ok(ReadTimes { call, whole: begun.elapsed() })
}
