//! Many tensors from a loaded file in registered memory to a GPU.

#![allow(unsafe_code, reason = "starts copies of the GPU between two ranges that outlive them")]

use std::error::Error;
use std::sync::Arc;

use hostbuf::BufferOptions;
use hostbuf::job::Solo;
use hostbuf::register::{Access, CudaHost};
use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, Driver, PageLockedMemory};
use hostbuf_load::{LoadOptions, SliceTarget, Tensors};
use hostbuf_staging::{CopyDevice, CudaDevice, DeviceCopy, DeviceTarget};

use crate::copy_ways::{CopyResult, CopyWay, medians_in_turn};
use crate::tensor_file::{TensorFile, tensor_name};

/// The bytes between two tensors on the GPU, as between two allocations.
const GAP: u64 = 256;

/// Measures `count` tensors of `bytes` bytes in three ways, and prints a table: one copy of all
/// bytes, one call for each tensor, and `Tensors::copy_to_device`. The reference is a copy from
/// page-locked memory in the same rounds.
///
/// # Errors
/// The driver's, and those of the load.
pub(crate) fn measure(count: usize, bytes: usize, rounds: usize) -> CopyResult {
    let file = TensorFile::new(count, &[bytes])?;
    let tensors = LoadOptions::new().allocate_and_load(&Solo, BufferOptions::new(0), &[file.path()])?;
    let _registration = tensors.buffer().register(&Arc::new(CudaHost::new(0)?), .., Access::READ)?;
    let context = CudaContext::retain(&Driver::find()?.gpu(0)?)?;
    let (device, stream) = (CudaDevice::new(&context)?, CudaStream::new(&context)?);
    let (all, stride) = ((count * bytes) as u64, (bytes as u64).next_multiple_of(GAP) + GAP);
    let memory = Arc::new(DeviceMemory::new(&context, (count as u64 * stride) as usize)?);
    let target = DeviceTarget::new(memory.clone());
    let targets: Vec<SliceTarget> = (0..count)
        .map(|number| {
            let start = number as u64 * stride;
            Ok(SliceTarget::new(tensor_name(number), target.part(start..start + bytes as u64)?))
        })
        .collect::<Result<_, Box<dyn Error>>>()?;
    let hosts: Vec<(*const [u8], u64)> = (0..count)
        .map(|number| {
            let bytes: *const [u8] = tensors.get(&tensor_name(number))?.bytes;
            Ok((bytes, memory.address() + number as u64 * stride))
        })
        .collect::<Result<_, Box<dyn Error>>>()?;
    let whole: *const [u8] = tensors.file_bytes(0).ok_or("no file")?;
    let locked = PageLockedMemory::new(&context, count * bytes)?;
    let locked: *const [u8] = std::ptr::slice_from_raw_parts(locked.as_ptr().cast_const(), count * bytes);
    let one_copy = |from: *const [u8]| -> CopyResult {
        // Without the header of the file.
        let skipped = from.len() - count * bytes;
        // SAFETY: at most as many bytes as `from` has.
        let start = unsafe { from.cast::<u8>().add(skipped) };
        // SAFETY: both ranges live until the stream has been waited for.
        unsafe {
            stream.copy_to_device(std::ptr::slice_from_raw_parts(start, count * bytes), memory.address())
        }?;
        Ok(stream.synchronize()?)
    };
    let each = || -> CopyResult {
        for &(from, to) in &hosts {
            // SAFETY: both ranges live until the stream has been waited for.
            unsafe { stream.copy_to_device(from, to) }?;
        }
        Ok(stream.synchronize()?)
    };
    let loaded = || -> CopyResult {
        assert_eq!(tensors.copy_to_device(&device, &targets)?, all);
        Ok(())
    };
    let ways = [
        CopyWay { name: "page-locked memory, one copy", copy: &|| one_copy(locked) },
        CopyWay { name: "the loaded file, one copy", copy: &|| one_copy(whole) },
        CopyWay { name: "a call for each tensor", copy: &each },
        CopyWay { name: "Tensors::copy_to_device", copy: &loaded },
    ];
    let medians = medians_in_turn(&ways, rounds)?;
    println!("| {count} tensors of {bytes} bytes | GB/s | of page-locked memory | of a call for each |");
    println!("| --- | --- | --- | --- |");
    for (CopyWay { name, .. }, seconds) in ways.iter().zip(&medians) {
        let rate = all as f64 / seconds / 1e9;
        println!("| {name} | {rate:.1} | {:.2} | {:.2} |", medians[0] / seconds, medians[2] / seconds);
    }
    loaded()?;
    compare(&device, &tensors, &memory, stride)
}

/// Compares the tensors on the GPU with those in the buffer.
///
/// # Errors
/// The driver's.
fn compare(device: &CudaDevice, tensors: &Tensors, memory: &DeviceMemory, stride: u64) -> CopyResult {
    let mut found = vec![0u8; memory.span().bytes()];
    let copy = DeviceCopy { host: found.as_mut_ptr(), bytes: found.len(), address: memory.address() };
    let done = device.new_event()?;
    // SAFETY: both sides live until the copy has ended, and nothing else uses them.
    unsafe { device.copy_to_host(&[copy], &done) }?;
    device.wait(&done)?;
    for number in 0..tensors.table().tensors().len() {
        let start = number * stride as usize;
        let tensor = tensors.get(&tensor_name(number))?;
        if found[start..start + tensor.bytes.len()] != *tensor.bytes {
            return Err(format!("{} differs on the GPU", tensor_name(number)).into());
        }
    }
    println!("all bytes equal");
    Ok(())
}
