//! `hostbuf load`: loads files of tensors into memory, and to a GPU.

mod load_bar;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::ValueHint;
use hostbuf::job::Solo;
use hostbuf::{BufferOptions, Bytes, ErrorClass, HostBuffer, JobError, Pages};
use hostbuf_agent::report::end;
use hostbuf_load::{FileFormat, GpuCopy, LoadError, LoadOptions, LoadProgress, TensorTable, Tensors};
use hostbuf_os::poison::IgnorePoison;
use hostbuf_os::printable::printable_path;
use hostbuf_staging::Backend;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::arguments::gpu_number;
use crate::broker::stop_signals::StopSignals;
use crate::result_output::write_result;
use load_bar::LoadBar;

/// Load files of tensors into memory, and report the rate and what bounds it
///
/// It reads each file once, by several threads, bypassing the page cache where that is faster.
/// Folders and files model.safetensors.index.json stand for all their shards. With --gpu, the GPU
/// copies each part as soon as it has been read.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The rate counts the bytes of the files from the first read to the last. It is bound by the disk, if the threads have \
waited for it, or else by the cores. With --gpu it may also be bound by the GPU, if its copies take longer than the \
reads. In a job, hostbuf.load and hostbuf_load::load share the memory between all ranks.")]
pub(crate) struct LoadArguments {
    /// The files: safetensors, npy, Arrow IPC, or folders with an index
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    files: Vec<PathBuf>,
    /// Copy the bytes to this GPU too, by its number
    #[arg(long, value_name = "N", value_parser = gpu_number)]
    gpu: Option<u32>,
    /// Keep the memory, and that of the GPU, until a signal ends the command
    #[arg(long)]
    keep: bool,
    /// Use this backend: auto, posix, direct, uring or mmap
    #[arg(long, value_name = "BACKEND", value_hint = ValueHint::Other, default_value = "auto")]
    #[arg(value_parser = |text: &str| text.parse::<Backend>())]
    backend: Backend,
    /// Use this many threads. The default is one for each core, at most 16
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=LoadOptions::MAX_WORKERS as i64))]
    threads: Option<u16>,
    /// Use pages of this size: auto (the largest available), 4k, thp, 2m, 1g
    #[arg(long, value_name = "PAGES", value_hint = ValueHint::Other, default_value = "auto")]
    #[arg(value_parser = |text: &str| text.parse::<Pages>())]
    pages: Pages,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// Loads the files, prints one line about it, and keeps the memory if requested.
pub fn run(arguments: &LoadArguments) -> ExitCode {
    match load(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => end("hostbuf load", error.class, error.message),
    }
}

/// Returns the failure of the command for an error: the class is the exit status.
fn failure(error: LoadError) -> JobError {
    let class = match &error {
        LoadError::Job(error) => error.class(),
        LoadError::Option { .. } => ErrorClass::Invalid,
        _ => ErrorClass::General,
    };
    JobError::new(class, error.to_string())
}

/// Returns the failure for a file that has no known format. A library loads it as plain bytes.
fn refused(path: &Path) -> JobError {
    let remedy = match path.extension() {
        Some(extension) if extension == "npz" => "extract its arrays (unzip), and load the .npy files",
        _ => "use `hostbuf run --load FILE --as-files DIR` for programs that read such files",
    };
    let message = format!("{} is neither safetensors nor npy nor Arrow IPC: {remedy}", printable_path(path));
    JobError::new(ErrorClass::General, message)
}

fn load(arguments: &LoadArguments) -> Result<(), JobError> {
    let table = TensorTable::read(&arguments.files).map_err(|error| failure(error.into()))?;
    if let Some(file) = table.files().iter().find(|file| file.format == FileFormat::Raw) {
        return Err(refused(&file.path));
    }
    load_table(arguments, &table).map_err(failure)
}

fn load_table(arguments: &LoadArguments, table: &TensorTable) -> Result<(), LoadError> {
    let options =
        LoadOptions::new().backend(arguments.backend).workers(arguments.threads.map_or(0, usize::from));
    let bytes = options.buffer_bytes(table)?;
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(bytes).pages(arguments.pages))?;
    let make = |number| GpuCopy::new(number, &buffer, table, &options);
    let mut gpu = arguments.gpu.map(make).transpose()?;
    let begun = Instant::now();
    let tensors = match &mut gpu {
        None => load_with_bar(arguments, options, &buffer)?,
        Some(gpu) => load_with_gpu(arguments, options, &buffer, gpu)?,
    };
    print(&tensors, gpu.as_ref().map(|gpu| (gpu, begun.elapsed())))?;
    if arguments.keep {
        keep(&tensors)?;
    }
    drop(gpu);
    Ok(())
}

/// Loads the files, and lets the GPU copy each window that was read.
fn load_with_gpu(
    arguments: &LoadArguments,
    options: LoadOptions,
    buffer: &HostBuffer,
    gpu: &mut GpuCopy,
) -> Result<Tensors, LoadError> {
    let (ready, windows) = mpsc::channel::<LoadProgress>();
    std::thread::scope(|scope| {
        let copy = scope.spawn(move || {
            let mut bar = LoadBar::new(arguments.quiet);
            let copied = copy_windows(gpu, &windows, &mut bar);
            bar.end();
            copied
        });
        let tell = |progress: &LoadProgress| {
            // The receiver has ended with an error, which it returns.
            let _ = ready.send(progress.clone());
        };
        let tensors = options.load_with(&Solo, buffer, &arguments.files, &tell);
        // All windows are ready, if the load has succeeded.
        if let Ok(tensors) = &tensors {
            tell(&tensors.progress());
        }
        drop(ready);
        let copied = copy.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        tensors.and_then(|tensors| copied.map(|()| tensors))
    })
}

/// Lets the GPU copy windows as they become ready, and waits for the last one.
fn copy_windows(
    gpu: &mut GpuCopy,
    windows: &mpsc::Receiver<LoadProgress>,
    bar: &mut LoadBar,
) -> Result<(), LoadError> {
    let report = |gpu: &GpuCopy, bar: &mut LoadBar| {
        let counters = gpu.counters();
        bar.report(&counters, counters.bytes_copied);
    };
    for progress in windows {
        gpu.start_ready(&progress)?;
        report(gpu, bar);
    }
    while gpu.wait_for_window()? {
        report(gpu, bar);
    }
    gpu.wait().map(drop)
}

/// Loads the files, with a bar on a terminal.
fn load_with_bar(
    arguments: &LoadArguments,
    options: LoadOptions,
    buffer: &HostBuffer,
) -> Result<Tensors, LoadError> {
    let bar = std::sync::Mutex::new(LoadBar::new(arguments.quiet));
    let loaded = options.load_with(&Solo, buffer, &arguments.files, &|progress| {
        let counters = progress.counters();
        bar.lock().ignore_poison().report(&counters, counters.bytes());
    });
    bar.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).end();
    loaded
}

/// Prints one line about a load.
///
/// # Errors
/// As [`write_result`].
fn print(tensors: &Tensors, gpu: Option<(&GpuCopy, Duration)>) -> Result<(), hostbuf::Error> {
    let table = tensors.table();
    let counters = gpu.map_or_else(|| tensors.counters(), |(gpu, _)| gpu.counters());
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let mut line = format!(
        "hostbuf load: {} of {}, {} in {:.3} s: {:.2} GB/s",
        count(table.tensors().len(), "tensor"),
        count(table.files().len(), "file"),
        Bytes(counters.file_bytes),
        counters.elapsed.as_secs_f64(),
        counters.rate() / 1e9
    );
    if let Some((gpu, elapsed)) = gpu {
        let (number, seconds) = (gpu.gpu(), elapsed.as_secs_f64());
        let rate = gpu.bytes() as f64 / seconds / 1e9;
        line += &format!("; on GPU {number} after {seconds:.3} s: {rate:.2} GB/s");
    }
    // That of the last rate.
    if let Some(bound) = counters.bound() {
        line += &format!(", bound by the {bound}");
    }
    write_result(&(line + "\n"))
}

/// Waits for a signal.
fn keep(tensors: &Tensors) -> Result<(), LoadError> {
    use std::os::fd::AsFd;
    let stop = StopSignals::block()?;
    let line = format!(
        "hostbuf load: the memory stays until a signal ends process {} ({} at {:#x})\n",
        std::process::id(),
        Bytes(tensors.buffer().len() as u64),
        tensors.buffer().as_ptr().as_ptr() as usize
    );
    write_result(&line)?;
    let mut waits = [PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
    while let Err(nix::Error::EINTR) = poll(&mut waits, PollTimeout::NONE) {}
    Ok(())
}
