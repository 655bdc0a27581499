//! Columns of a matrix from a loaded file in registered memory to a GPU.

#![allow(unsafe_code, reason = "starts copies of the GPU between two ranges that outlive them")]

use std::sync::Arc;

use hostbuf::BufferOptions;
use hostbuf::job::Solo;
use hostbuf::register::{Access, CudaHost};
use hostbuf_cuda::{CudaContext, DeviceMemory, Driver, PageLockedMemory};
use hostbuf_load::{LoadOptions, SliceTarget, StridedPart};
use hostbuf_staging::{CopyDevice, CudaDevice, DeviceCopy, DeviceTarget};

use crate::copy_ways::{CopyResult, CopyWay, medians_in_turn};
use crate::tensor_file::{TensorFile, tensor_name};

/// The number of ranks that divide the columns of the matrix.
const RANKS: usize = 2;
/// The number of rows of one call in the way that copies row by row.
const ROWS_A_START: usize = 512;

/// Measures the slice of `bytes` bytes of each of `rows` rows, of a matrix with twice as many
/// columns, in four ways, and prints a table: one copy of as many bytes from page-locked memory and
/// from the buffer, a batch of rows, and `Tensors::copy_to_device`.
///
/// # Errors
/// The driver's, and those of the load.
pub(crate) fn measure(rows: usize, bytes: usize, rounds: usize) -> CopyResult {
    let file = TensorFile::new(1, &[rows, RANKS * bytes])?;
    let tensors = LoadOptions::new().allocate_and_load(&Solo, BufferOptions::new(0), &[file.path()])?;
    let _registration = tensors.buffer().register(&Arc::new(CudaHost::new(0)?), .., Access::READ)?;
    let context = CudaContext::retain(&Driver::find()?.gpu(0)?)?;
    let device = CudaDevice::new(&context)?;
    let all = rows * bytes;
    let memory = Arc::new(DeviceMemory::new(&context, all)?);
    let slice = tensors.slice(&tensor_name(0), 1, 1, RANKS)?;
    let target = SliceTarget::new(tensor_name(0), DeviceTarget::new(memory.clone())).slice(slice.clone());
    let matrix = tensors.get(&tensor_name(0))?.bytes;
    let locked = PageLockedMemory::new(&context, all)?;
    let start = |copies: &[DeviceCopy]| -> Result<_, hostbuf_staging::DeviceError> {
        let done = device.new_event()?;
        // SAFETY: both sides live until the copies have ended, and nothing writes to the host
        // memory.
        unsafe { device.copy_to_device(copies, &done) }?;
        Ok(done)
    };
    let one_copy = |host: *mut u8| -> CopyResult {
        let done = start(&[DeviceCopy { host, bytes: all, address: memory.address() }])?;
        Ok(device.wait(&done)?)
    };
    let row_by_row = || -> CopyResult {
        let mut copies = Vec::with_capacity(ROWS_A_START);
        for (row, at) in slice.parts.iter().flat_map(StridedPart::rows) {
            let host = matrix[row.start as usize..row.end as usize].as_ptr().cast_mut();
            copies.push(DeviceCopy { host, bytes, address: memory.address() + at });
            if copies.len() == ROWS_A_START {
                start(&copies)?;
                copies.clear();
            }
        }
        let done = start(&copies)?;
        Ok(device.wait(&done)?)
    };
    let as_rows = || -> CopyResult {
        assert_eq!(tensors.copy_to_device(&device, std::slice::from_ref(&target))?, all as u64);
        Ok(())
    };
    let ways = [
        CopyWay { name: "page-locked memory, one contiguous copy", copy: &|| one_copy(locked.as_ptr()) },
        CopyWay { name: "the buffer, one contiguous copy", copy: &|| one_copy(matrix.as_ptr().cast_mut()) },
        CopyWay { name: "the slice, a batch of rows", copy: &row_by_row },
        CopyWay { name: "the slice, Tensors::copy_to_device (2-D)", copy: &as_rows },
    ];
    let medians = medians_in_turn(&ways, rounds)?;
    println!(
        "| {rows} rows of {bytes} bytes, half of each row | GB/s | of page-locked memory | of a batch of rows |"
    );
    println!("| --- | --- | --- | --- |");
    for (CopyWay { name, .. }, seconds) in ways.iter().zip(&medians) {
        let rate = all as f64 / seconds / 1e9;
        println!("| {name} | {rate:.1} | {:.2} | {:.2} |", medians[0] / seconds, medians[2] / seconds);
    }
    let mut expected = vec![0; all];
    slice.copy(matrix, &mut expected);
    for way in [&row_by_row as &dyn Fn() -> CopyResult, &as_rows] {
        // Other bytes, so that a way that copies nothing is found.
        one_copy(locked.as_ptr())?;
        way()?;
        let mut found = vec![0u8; all];
        let done = device.new_event()?;
        let copy = DeviceCopy { host: found.as_mut_ptr(), bytes: all, address: memory.address() };
        // SAFETY: both sides live until the copy has ended, and nothing else uses them.
        unsafe { device.copy_to_host(&[copy], &done) }?;
        device.wait(&done)?;
        if found != expected {
            return Err("the slice differs on the GPU".into());
        }
    }
    println!("all bytes equal");
    Ok(())
}
