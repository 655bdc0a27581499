//! `hostbuf bench`: measures how fast files are read, by each backend, into memory and to a GPU.

mod bench_bar;
mod bench_error;
mod bench_report;
mod bench_row;
mod bench_sample;
mod best_backend;
mod gpu_destination;
mod json;
mod measured_files;
mod needed_memory;
mod ring_destination;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use hostbuf::Bytes;
use hostbuf_agent::report::end;
use hostbuf_staging::{CudaDevice, HostDevice, RingOptions};

use crate::arguments::gpu_number;
use crate::printable::printable_json;
use crate::result_output::print_result;
use bench_error::BenchError;
use bench_report::BenchReport;
use measured_files::MeasuredFiles;
use ring_destination::{BenchDestination, RingDestination};

/// Measure how fast files are read by each backend, and name the best one
///
/// It reads the files several times by each backend, with a cold page cache and with a warm one,
/// into memory of the host, and with --gpu also to a GPU. It needs at most 150 MiB of memory for
/// files of any size, and never writes to a file. The files are dropped from the page cache, which
/// other programs that read them notice. Files on tmpfs are also read through a mapping: if another
/// program truncates one meanwhile, SIGBUS may end the command.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A name of a backend in the last lines is for `hostbuf load --backend`, hostbuf.File(path, backend=...) in Python, \
hostbuf_file_open in C and FileOptions::backend in Rust.")]
pub(crate) struct BenchArguments {
    /// The files, on the disk to be measured; a few GiB suffice
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Copy the bytes to this GPU too, by its number
    #[arg(long, value_name = "N", value_parser = gpu_number)]
    gpu: Option<u32>,
    /// Repeat each read this many times, and report the median
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Read at most this much, from the beginning of the files: 512M, 8G
    #[arg(long, value_name = "SIZE", value_hint = ValueHint::Other, default_value = "8G")]
    bytes: Bytes,
    /// Use this many threads. The default is one for each core, at most 16
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=RingOptions::MAX_WORKERS as i64))]
    threads: Option<u16>,
    /// Print JSON, with the figures of all rounds
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// Measures the files, and prints the report.
pub fn run(arguments: &BenchArguments) -> ExitCode {
    let report = match measure(arguments) {
        Ok(report) => report,
        Err(error) => return end("hostbuf bench", error.class(), &error),
    };
    let text = if arguments.json { printable_json(&json::json(&report)) } else { table::text(&report) };
    print_result("hostbuf bench", &text, ExitCode::SUCCESS)
}

fn measure(arguments: &BenchArguments) -> Result<BenchReport, BenchError> {
    if arguments.bytes.0 == 0 {
        return Err(BenchError::Option { what: "invalid --bytes 0: expected a size such as 8G".to_owned() });
    }
    let files = MeasuredFiles::open(&arguments.files, arguments.bytes.0)?;
    let options = RingOptions::new();
    let options = arguments.threads.map_or(options, |threads| options.workers(threads.into()));
    needed_memory::check(options, arguments.gpu.is_some())?;
    let mut destinations: Vec<Box<dyn BenchDestination>> =
        vec![Box::new(RingDestination::<HostDevice>::on_host(options)?)];
    if let Some(number) = arguments.gpu {
        destinations.push(Box::new(RingDestination::<CudaDevice>::on_gpu(number, options)?));
    }
    let counts = (usize::from(arguments.rounds), options.workers);
    BenchReport::measure(files, &destinations, counts, arguments.quiet)
}
