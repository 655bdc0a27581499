//! A table that is linked by pointers, in memory of a GPU at one address in all ranks.
//!
//! Rank 0 builds a hash table in the GPU section "table", and the same table in the section "host"
//! of the host's memory. Kernels of all ranks then follow the pointers of both: those of GPU
//! memory, and those of host memory that each rank has registered.
//!
//! ```sh
//! hostbuf run -n 2 --launcher local \
//!     --section name=host,size=64M --section name=table,size=64M,gpu=0 -- gpu_table
//! ```

#![allow(unsafe_code, reason = "fills a section of host memory that other ranks do not use yet")]

mod look_up_kernel;
mod pointer_table;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hostbuf::job::{Collective, Local, all_or_none};
use hostbuf::register::CudaHost;
use hostbuf::{Access, Bytes, Error, GpuSection, HostBuffer, Result, Span};

use look_up_kernel::{LookUpKernel, TablePlace};
use pointer_table::{TableShape, key, value};

const USAGE: &str = "\
usage: hostbuf run -n 2 --launcher local --section name=host,size=64M --section name=table,size=64M,gpu=0 -- gpu_table

Builds a hash table linked by pointers in memory of a GPU, and walks it by kernels
of all ranks of this host; then repeats this in host memory.
";

/// The largest number of keys that each rank looks up.
const LOOK_UPS: usize = 1 << 20;

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_table: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    if !HostBuffer::is_launched() {
        return Err(Error::invalid(format!(
            "no launcher has started this program: {}",
            USAGE.lines().next().unwrap_or(USAGE)
        )));
    }
    let group = Local::from_env()?;
    let buffer = HostBuffer::attach()?;
    let (table, host) = all_or_none(
        &group,
        buffer.gpu_section("table").and_then(|table| Ok((table, buffer.section("host")?))),
    )?;
    let kernel = all_or_none(&group, LookUpKernel::new().map_err(driver_error))?;
    // The kernels of this rank read the host's memory too, once it is registered.
    let gpu = Arc::new(CudaHost::new(0)?);
    let _registered = all_or_none(&group, buffer.register(&gpu, .., Access::READ))?;
    let bytes = table.len().min(host.len());
    let shape = TableShape::of(bytes);
    let built = if group.rank() == 0 { build(&kernel, &table, host, shape) } else { Ok(()) };
    all_or_none(&group, built)?;
    if group.rank() == 0 {
        let (keys, size, address) = (shape.keys, Bytes(bytes as u64), table.address());
        println!("table       {keys} keys, {size} at {address:#x} on GPU {}", numbers(&table));
        println!("            a copy of the table at {:#x} in host memory", host.start());
    }
    group.barrier()?;
    let places = [("GPU", table.address()), ("host", host.start() as u64)];
    for (what, address) in places {
        let place = TablePlace { buckets: address, count: shape.buckets };
        let took = all_or_none(&group, check(&kernel, place, shape.keys, group.rank()))?;
        for rank in 0..group.size() {
            if rank == group.rank() {
                let each = took.as_nanos() as f64 / shape.keys.min(LOOK_UPS) as f64;
                println!(
                    "rank {rank}      followed the pointers in {what} memory: all values are right, {each:.2} ns a look-up"
                );
            }
            group.barrier()?;
        }
    }
    Ok(())
}

/// Builds the table in both memories.
fn build(kernel: &LookUpKernel, table: &GpuSection, host: Span, shape: TableShape) -> Result<()> {
    kernel.write(table.address(), &shape.words_at(table.address())).map_err(driver_error)?;
    let words = shape.words_at(host.start() as u64);
    // SAFETY: the section has as many bytes, and no other rank uses it before the next barrier.
    unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), host.start() as *mut u64, words.len()) };
    Ok(())
}

/// Looks keys up by the kernel, different ones in each rank, and compares their values. Returns the
/// time of the kernel.
fn check(kernel: &LookUpKernel, place: TablePlace, keys: usize, rank: usize) -> Result<Duration> {
    let wanted: Vec<u64> = (0..keys.min(LOOK_UPS)).map(|i| key((i * 7919 + rank) % keys)).collect();
    let (values, took) = kernel.look_up(place, &wanted).map_err(driver_error)?;
    let wrong = wanted.iter().zip(&values).find(|(wanted, found)| value(**wanted) != **found);
    match wrong {
        None => Ok(took),
        Some((key, found)) => Err(Error::invalid(format!(
            "key {key} has the value {found:#x} in the table instead of {:#x}",
            value(*key)
        ))),
    }
}

/// Returns the numbers of the GPUs of a section.
fn numbers(section: &GpuSection) -> String {
    section.pieces().iter().map(|piece| piece.gpu.to_string()).collect::<Vec<_>>().join(", ")
}

fn driver_error(error: cudarc::driver::DriverError) -> Error {
    Error::invalid(format!("the CUDA driver returned {:?}", error.0))
}
