//! The command line of `read`.

use std::error::Error;
use std::fs::File;

use hostbuf_cuda::{CudaContext, Driver};
use hostbuf_staging::Backend;

use crate::cold_destination::Discarded;
use crate::gpu_source::GpuSource;
use crate::transfer_arguments::TransferArguments;
use crate::{disk_reads, file_reads};

/// The command line of `read`. The option without a value is `--cold`.
pub(crate) struct ReadCommand(TransferArguments);

impl ReadCommand {
    /// Parses the arguments after `read`.
    ///
    /// # Errors
    /// The invalid argument.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<ReadCommand, String> {
        let arguments = TransferArguments::parse(arguments, "--cold")?;
        if !arguments.has_flag && arguments.backends.len() > 1 {
            return Err("several backends are compared with --cold only".to_owned());
        }
        Ok(ReadCommand(arguments))
    }

    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        let TransferArguments { has_flag: is_cold, mut backends, bytes, path, rounds } = self.0;
        let length = std::fs::metadata(&path).map_err(|error| format!("{path}: {error}"))?.len();
        let bytes = bytes.unwrap_or(length);
        if bytes > length {
            return Err(format!("{path} has {length} bytes, which is less than the size {bytes}").into());
        }
        if is_cold && backends.is_empty() {
            backends = vec![Backend::Uring, Backend::Direct];
        }
        match is_cold {
            true => measure_cold(&path, bytes, &backends, rounds),
            false => {
                file_reads::measure(&path, bytes, backends.first().copied().unwrap_or(Backend::Posix), rounds)
            }
        }
    }
}

/// Measures reads from a cold disk to GPU 0, or without a GPU into the slots of rings only.
fn measure_cold(path: &str, bytes: u64, backends: &[Backend], rounds: usize) -> Result<(), Box<dyn Error>> {
    match Driver::find().and_then(|driver| driver.gpu(0)) {
        Ok(gpu) => {
            println!("to the memory of GPU 0");
            let context = CudaContext::retain(&gpu)?;
            let mut memory = GpuSource::new(&context, usize::try_from(bytes)?)?;
            disk_reads::measure(path, &mut memory, backends, rounds)
        }
        Err(error) => {
            println!("{error}; the slots of the rings are discarded");
            let mut discarded = Discarded::new(File::open(path)?, bytes);
            disk_reads::measure(path, &mut discarded, backends, rounds)
        }
    }
}
