//! The rates of the disk by fio.

use std::process::{Command, ExitStatus};
use std::{fmt, io};

use crate::transfer_sample::TransferSample;

/// The options of a run of fio.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FioOptions {
    /// The block size in KiB.
    pub(crate) block_kib: usize,
    /// The number of reads or writes in flight.
    pub(crate) depth: usize,
}

/// The reason why fio has no result.
#[derive(Debug)]
pub(crate) enum FioError {
    /// It does not start.
    Start(io::Error),
    /// It has failed.
    Failed(ExitStatus, String),
    /// Its output has no such number.
    Output(&'static str),
}

/// Returns whether fio can be started.
///
/// # Errors
/// [`FioError::Start`] for another reason than that it does not exist.
pub(crate) fn is_installed() -> Result<bool, FioError> {
    match Command::new("fio").arg("--version").output() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(FioError::Start(error)),
    }
}

impl FioOptions {
    /// Returns the blocks and depths of the sweep.
    pub(crate) fn sweep() -> Vec<FioOptions> {
        let depths = [(256, 16), (256, 32), (1024, 4), (1024, 8), (1024, 16)];
        depths.map(|(block_kib, depth)| FioOptions { block_kib, depth }).to_vec()
    }

    /// Reads the first `bytes` bytes of a file once, bypassing the page cache.
    ///
    /// # Errors
    /// [`FioError`].
    pub(crate) fn read(&self, path: &str, bytes: u64) -> Result<TransferSample, FioError> {
        self.run("read", &["--readonly"], path, bytes)
    }

    /// Overwrites the first `bytes` bytes of a file once, bypassing the page cache, and then calls
    /// `fsync(2)`. The time ends when that has returned.
    ///
    /// # Errors
    /// [`FioError`].
    pub(crate) fn write(&self, path: &str, bytes: u64) -> Result<TransferSample, FioError> {
        self.run("write", &["--overwrite=1", "--end_fsync=1"], path, bytes)
    }

    /// Runs fio. `direction` is also the key of the results in its output.
    fn run(
        &self,
        direction: &'static str,
        options: &[&str],
        path: &str,
        bytes: u64,
    ) -> Result<TransferSample, FioError> {
        let (block, depth) = (format!("--bs={}k", self.block_kib), format!("--iodepth={}", self.depth));
        let (file, size) = (format!("--filename={path}"), format!("--size={bytes}"));
        let run = Command::new("fio")
            .args(["--name=bench", &format!("--rw={direction}"), "--ioengine=io_uring", "--direct=1"])
            .args(options)
            .args([&file, &size, &block, &depth, "--output-format=json"])
            .output()
            .map_err(FioError::Start)?;
        if !run.status.success() {
            return Err(FioError::Failed(run.status, String::from_utf8_lossy(&run.stderr).into_owned()));
        }
        let output: serde_json::Value =
            serde_json::from_slice(&run.stdout).map_err(|_| FioError::Output("JSON"))?;
        let job = &output["jobs"][0];
        let number = |value: &serde_json::Value, name| value[name].as_f64().ok_or(FioError::Output(name));
        let bytes = number(&job[direction], "io_bytes")?;
        let seconds = number(&job[direction], "runtime")? / 1000.0;
        let percent = number(job, "usr_cpu")? + number(job, "sys_cpu")?;
        Ok(TransferSample { bytes, seconds, cpu_seconds: percent / 100.0 * seconds })
    }
}

impl fmt::Display for FioOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fio, blocks of {} KiB, depth {}", self.block_kib, self.depth)
    }
}

impl fmt::Display for FioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FioError::Start(error) => write!(f, "fio: {error}"),
            FioError::Failed(status, text) => write!(f, "fio: {status}: {}", text.trim()),
            FioError::Output(name) => write!(f, "the output of fio has no {name}"),
        }
    }
}

impl std::error::Error for FioError {}
