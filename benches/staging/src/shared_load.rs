//! A file that the ranks of a host load together, each with its slices on the GPU.

#![allow(unsafe_code, reason = "starts copies of the GPU between two ranges that outlive them")]

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use hostbuf::job::{Collective, Local, Reduce};
use hostbuf::register::{Access, CudaHost};
use hostbuf::{BufferOptions, HostBuffer};
use hostbuf_cuda::{CudaContext, DeviceMemory, Driver, PageLockedMemory};
use hostbuf_load::{LoadOptions, TensorTable};
use hostbuf_staging::{CopyDevice, CudaDevice, DeviceCopy};

use crate::rank_slices::RankSlices;
use crate::transfer_sample::median;

/// The length and the number of the copies to which the ranks are compared.
const LARGE: usize = 64 << 20;
const LARGE_COPIES: usize = 32;

/// The times of the rounds in seconds.
#[derive(Default)]
struct SharedSamples {
    allocate: Vec<f64>,
    register: Vec<f64>,
    load: Vec<f64>,
    copy: Vec<f64>,
    /// The rate of copies from page-locked memory to all GPUs at once, in bytes each second.
    reference: Vec<f64>,
}

/// Measures loads of a file by all ranks that `hostbuf run` has started on this host, each with its
/// part of the first dimension of all tensors on a GPU. The visible GPUs are assigned to the ranks
/// in turn. Rank 0 prints a table.
///
/// # Errors
/// The driver's, and those of the load.
pub(crate) fn measure(path: &str, rounds: usize) -> Result<(), Box<dyn Error>> {
    let group = Local::from_env()?;
    let table = TensorTable::read(&[path])?;
    let driver = Driver::find()?;
    let gpus = driver.gpu_count()?;
    let gpu = (group.rank() % gpus as usize) as u32;
    let context = CudaContext::retain(&driver.gpu(gpu)?)?;
    let (device, registrar) = (CudaDevice::new(&context)?, Arc::new(CudaHost::new(gpu)?));
    let slices = RankSlices::new(&context, &table, &group)?;
    let reference = (group.rank() < gpus as usize).then(|| Reference::new(&context)).transpose()?;
    let options = LoadOptions::new();
    let bytes = options.buffer_bytes(&table)?;
    let mut samples = SharedSamples::default();
    // The first round does not count.
    for round in 0..=rounds {
        let private = memory_share()?;
        let buffer = timed(&group, &mut samples.allocate, || {
            Ok(HostBuffer::allocate(&group, BufferOptions::new(bytes))?)
        })?;
        let registration =
            timed(&group, &mut samples.register, || Ok(buffer.register(&registrar, .., Access::READ)?))?;
        let tensors = timed(&group, &mut samples.load, || {
            let targets = |_: &TensorTable| Ok(slices.targets.clone());
            Ok(options.load_to_device(&group, &buffer, &[path], &device, &targets)?)
        })?;
        timed(&group, &mut samples.copy, || Ok(tensors.copy_to_device(&device, &slices.targets)?))?;
        let rate = reference.as_ref().map_or(Ok(0.0), |reference| reference.rate(&device))?;
        let mut rates = [rate as u64];
        group.all_reduce(&mut rates, Reduce::Sum)?;
        samples.reference.push(rates[0] as f64);
        if round == 0 {
            samples = SharedSamples::default();
        }
        if round == rounds {
            let mut memory = [memory_share()?.saturating_sub(private)];
            group.all_reduce(&mut memory, Reduce::Sum)?;
            slices.compare(&device, &tensors)?;
            let counters = tensors.counters();
            if group.rank() == 0 {
                print(&samples, group.size(), table.file_bytes() as f64);
                let file = counters.file_bytes as f64;
                println!("read: {:.3} of the file", counters.job_bytes_read as f64 / file);
                println!("memory of all ranks: {:.3} of the file", memory[0] as f64 / file);
                println!("all bytes equal");
            }
            group.barrier()?;
        }
        drop((registration, tensors));
    }
    Ok(())
}

/// Measures the time from the moment when all ranks are there until the last one has done its part.
fn timed<T>(
    group: &Local,
    samples: &mut Vec<f64>,
    part: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    group.barrier()?;
    let begun = Instant::now();
    let result = part()?;
    group.barrier()?;
    samples.push(begun.elapsed().as_secs_f64());
    Ok(result)
}

/// Prints the medians as a row.
fn print(samples: &SharedSamples, ranks: usize, bytes: f64) {
    let SharedSamples { allocate, register, load, copy, reference } = samples;
    let reference = median(reference.iter().copied());
    let [load, copy] = [load, copy].map(|seconds| median(seconds.iter().copied()));
    let of_reference = |seconds: f64| bytes / seconds / reference;
    println!(
        "| ranks | allocate, s | register, s | load and copy, s | of {:.1} GB/s | copy again, s | of the same |",
        reference / 1e9
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    println!(
        "| {ranks} | {:.3} | {:.3} | {load:.4} | {:.2} | {copy:.4} | {:.3} |",
        median(allocate.iter().copied()),
        median(register.iter().copied()),
        of_reference(load),
        of_reference(copy)
    );
}

/// Returns this process's share of its memory in bytes: each page divided by the number of its
/// users.
fn memory_share() -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).ok_or("no Pss")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Large copies from page-locked memory.
struct Reference {
    from: PageLockedMemory,
    to: DeviceMemory,
}

impl Reference {
    fn new(context: &CudaContext) -> Result<Reference, Box<dyn Error>> {
        Ok(Reference { from: PageLockedMemory::new(context, LARGE)?, to: DeviceMemory::new(context, LARGE)? })
    }

    /// Returns the rate in bytes each second.
    fn rate(&self, device: &CudaDevice) -> Result<f64, Box<dyn Error>> {
        let copy = DeviceCopy { host: self.from.as_ptr(), bytes: LARGE, address: self.to.address() };
        let (done, begun) = (device.new_event()?, Instant::now());
        for _ in 0..LARGE_COPIES {
            // SAFETY: both sides live longer, and nothing else uses them.
            unsafe { device.copy_to_device(&[copy], &done) }?;
        }
        device.wait(&done)?;
        Ok((LARGE_COPIES * LARGE) as f64 / begun.elapsed().as_secs_f64())
    }
}
