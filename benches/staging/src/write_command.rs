//! The command line of `write`.

use std::error::Error;

use hostbuf_cuda::{CudaContext, Driver};
use hostbuf_os::Bytes;
use hostbuf_staging::Backend;

use crate::disk_writes;
use crate::gpu_source::GpuSource;
use crate::simulated_source::SimulatedSource;
use crate::transfer_arguments::TransferArguments;
use crate::written_file::BLOCK;

/// The number of bytes unless `--size` is given.
const BYTES: u64 = 1 << 30;

/// The command line of `write`. The option without a value is `--simulated`.
pub(crate) struct WriteCommand {
    arguments: TransferArguments,
    bytes: usize,
}

impl WriteCommand {
    /// Parses the arguments after `write`.
    ///
    /// # Errors
    /// The invalid argument.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<WriteCommand, String> {
        let mut arguments = TransferArguments::parse(arguments, "--simulated")?;
        if arguments.backends.is_empty() {
            arguments.backends = vec![Backend::Uring, Backend::Direct];
        }
        let past_the_cache = |backend: &Backend| matches!(backend, Backend::Uring | Backend::Direct);
        if let Some(other) = arguments.backends.iter().find(|backend| !past_the_cache(backend)) {
            return Err(format!(
                "invalid backend \"{other}\": fio bypasses the page cache, as direct and uring do"
            ));
        }
        let bytes = arguments.bytes.unwrap_or(BYTES);
        if !bytes.is_multiple_of(BLOCK as u64) {
            return Err(format!("invalid size {bytes}: expected a multiple of {}", Bytes(BLOCK as u64)));
        }
        Ok(WriteCommand { arguments, bytes: bytes as usize })
    }

    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        let WriteCommand { arguments: TransferArguments { has_flag, backends, path, rounds, .. }, bytes } =
            self;
        if has_flag {
            return disk_writes::measure(&path, &mut SimulatedSource::new(bytes), &backends, rounds);
        }
        let context = CudaContext::retain(&Driver::find()?.gpu(0)?)?;
        disk_writes::measure(&path, &mut GpuSource::new(&context, bytes)?, &backends, rounds)
    }
}
