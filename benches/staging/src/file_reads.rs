//! A file to a GPU, by rings of several shapes.

#![allow(unsafe_code, reason = "starts copies of the GPU between two ranges that outlive them")]

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, Driver, PageLockedMemory};
use hostbuf_staging::{Backend, CudaDevice, DeviceTarget, FileOptions, Ring, RingOptions};

use crate::comparing_sink::ComparingSink;
use crate::transfer_sample::{TransferSample, median};

/// The length of the copies to which the rings are compared.
const LARGE: usize = 64 << 20;

/// Measures reads of the first `bytes` bytes by all shapes in turns, and prints a table.
///
/// # Errors
/// The driver's, those of the file, and those of a ring.
pub(crate) fn measure(path: &str, bytes: u64, backend: Backend, rounds: usize) -> Result<(), Box<dyn Error>> {
    let gpu = Driver::find()?.gpu(0)?;
    let context = CudaContext::retain(&gpu)?;
    let file = Arc::new(FileOptions::new().backend(backend).open(path)?);
    let memory = Arc::new(DeviceMemory::new(&context, bytes as usize)?);
    let target = DeviceTarget::new(memory.clone());
    let rings = shapes().into_iter().map(|options| ring(&context, options));
    let rings = rings.collect::<Result<Vec<_>, _>>()?;
    let large = PageLockedMemory::new(&context, LARGE)?;
    let stream = CudaStream::new(&context)?;
    let mut pcie = Vec::new();
    let mut rates = vec![Vec::new(); rings.len()];
    // The first round does not count.
    for round in 0..=rounds {
        let large_copies = || -> Result<f64, Box<dyn Error>> {
            let (begun, copies) = (Instant::now(), (bytes as usize / LARGE).clamp(1, 64));
            for copy in 0..copies {
                let to = memory.address() + (copy * LARGE) as u64 % (bytes - bytes.min(LARGE as u64) + 1);
                let from =
                    std::ptr::slice_from_raw_parts(large.as_ptr().cast_const(), LARGE.min(bytes as usize));
                // SAFETY: both ranges live until the stream has been waited for.
                unsafe { stream.copy_to_device(from, to) }?;
            }
            stream.synchronize()?;
            Ok((copies * LARGE.min(bytes as usize)) as f64 / begun.elapsed().as_secs_f64() / 1e9)
        };
        let rate = large_copies()?;
        if round > 0 {
            pcie.push(rate);
        }
        for (ring, rates) in rings.iter().zip(&mut rates) {
            let sample =
                TransferSample::of(bytes, || ring.read(file.clone(), 0, target.clone()).wait().map(drop))?;
            if round > 0 {
                rates.push(sample);
            }
        }
    }
    let pcie = median(pcie);
    println!("| {path}, {bytes} bytes | GB/s | of {pcie:.1} GB/s | CPU s a GiB |");
    println!("| --- | --- | --- | --- |");
    for (ring, samples) in rings.iter().zip(rates) {
        let RingOptions { slots, slot_bytes, workers, .. } = ring.options();
        let rate = median(samples.iter().map(TransferSample::rate));
        let cpu = median(samples.iter().map(TransferSample::cpu_per_gib));
        println!(
            "| {workers} threads, {slots} slots of {} MiB | {rate:.1} | {:.2} | {cpu:.3} |",
            slot_bytes >> 20,
            rate / pcie
        );
    }
    println!("{}", file.backend());
    for ring in &rings {
        ring.read(file.clone(), 0, target.clone()).wait()?;
        ring.write(target.clone(), Arc::new(ComparingSink(fs::File::open(path)?)), 0).wait()?;
    }
    println!("all bytes equal");
    Ok(())
}

/// Returns the shapes of the rings.
fn shapes() -> Vec<RingOptions> {
    let cores = available_parallelism().map_or(1, std::num::NonZero::get);
    let mut workers: Vec<usize> =
        [cores / 4, cores / 2, cores * 3 / 4, cores].into_iter().filter(|&n| n > 0).collect();
    workers.dedup();
    let shape = |workers, (slots, mib): (usize, usize)| {
        RingOptions::new().workers(workers).slots(slots).slot_bytes(mib << 20)
    };
    workers
        .iter()
        .flat_map(|&workers| [(4, 8), (8, 8), (16, 8), (4, 16), (8, 16)].map(|slots| shape(workers, slots)))
        .collect()
}

fn ring(context: &CudaContext, options: RingOptions) -> Result<Ring<CudaDevice>, Box<dyn Error>> {
    let memory = PageLockedMemory::new(context, options.bytes()?)?;
    Ok(Ring::new(CudaDevice::new(context)?, options, memory)?)
}
