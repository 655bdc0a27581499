//! The benchmarks of rings and of loaded tensors: see README.md.

mod cold_destination;
mod column_copies;
mod comparing_sink;
mod copy_ways;
mod discarding_device;
mod disk_reads;
mod disk_ring;
mod disk_writes;
mod file_reads;
mod fio;
mod gpu_source;
mod host_reads;
#[cfg(feature = "remote")]
mod object_checksum;
mod rank_slices;
mod read_command;
#[cfg(feature = "remote")]
mod remote_reads;
mod shared_load;
mod simulated_source;
mod small_reads;
mod source_memory;
mod stream_reads;
mod temporary_file;
mod tensor_copies;
mod tensor_file;
mod thread_time;
mod transfer_arguments;
mod transfer_sample;
mod write_command;
mod written_file;

use std::error::Error;
use std::process::ExitCode;

use read_command::ReadCommand;
use transfer_arguments::file_and_rounds;
use write_command::WriteCommand;

const USAGE: &str = "\
usage: hostbuf-bench-staging read [--size SIZE] [--backend NAME] FILE [ROUNDS]
       hostbuf-bench-staging read --cold [--size SIZE] [--backend NAME ...] FILE [ROUNDS]
       hostbuf-bench-staging write [--size SIZE] [--backend NAME ...] [--simulated] FILE [ROUNDS]
       hostbuf-bench-staging small FILE [ROUNDS]
       hostbuf-bench-staging streams FILE [ROUNDS]
       hostbuf-bench-staging host KEY FILE [ROUNDS]
       hostbuf-bench-staging remote [--reactors THREADSxREQUESTS] [--workers N] [--piece MIB] [--certificates FILE] URL
       hostbuf-bench-staging tensors [COUNT BYTES [ROUNDS]]
       hostbuf-bench-staging tensors --columns [ROWS BYTES [ROUNDS]]
       hostbuf run -n N --launcher local -- hostbuf-bench-staging shared FILE [ROUNDS]";

/// The command line of `tensors`.
struct TensorsCommand {
    /// True for `--columns`: the numbers are those of rows, and of bytes of each.
    is_columns: bool,
    count: usize,
    bytes: usize,
    rounds: usize,
}

impl TensorsCommand {
    /// Parses the arguments after `tensors`.
    fn parse(arguments: impl Iterator<Item = String>) -> Result<TensorsCommand, String> {
        let mut arguments = arguments.peekable();
        let is_columns = arguments.next_if(|argument| argument == "--columns").is_some();
        let numbers = arguments.map(|text| match text.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("invalid number {text}: expected 1 or more")),
        });
        let (count, bytes) = if is_columns { (20_000, 4 << 10) } else { (10_000, 64 << 10) };
        let default = TensorsCommand { is_columns, count, bytes, rounds: 7 };
        match numbers.collect::<Result<Vec<usize>, _>>()?[..] {
            [] => Ok(default),
            [count, bytes] => Ok(TensorsCommand { count, bytes, ..default }),
            [count, bytes, rounds] => Ok(TensorsCommand { count, bytes, rounds, ..default }),
            _ => Err("expected COUNT and BYTES".to_owned()),
        }
    }

    fn run(self) -> Result<(), Box<dyn Error>> {
        let TensorsCommand { is_columns, count, bytes, rounds } = self;
        match is_columns {
            true => column_copies::measure(count, bytes, rounds),
            false => tensor_copies::measure(count, bytes, rounds),
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = match arguments.next().as_deref() {
        Some("read") => ReadCommand::parse(arguments).map(ReadCommand::run),
        Some("write") => WriteCommand::parse(arguments).map(WriteCommand::run),
        Some("host") => match arguments.next() {
            Some(key) => {
                file_and_rounds(arguments).map(|(path, rounds)| host_reads::measure(&key, &path, rounds))
            }
            None => Err("expected the key of a row".to_owned()),
        },
        Some("small") => file_and_rounds(arguments).map(|(path, rounds)| small_reads::measure(&path, rounds)),
        Some("streams") => {
            file_and_rounds(arguments).map(|(path, rounds)| stream_reads::measure(&path, rounds))
        }
        Some("tensors") => TensorsCommand::parse(arguments).map(TensorsCommand::run),
        #[cfg(feature = "remote")]
        Some("remote") => remote_reads::RemoteCommand::parse(arguments).map(remote_reads::RemoteCommand::run),
        #[cfg(not(feature = "remote"))]
        Some("remote") => {
            Err("built without the feature remote: add --features remote to cargo build".to_owned())
        }
        Some("shared") => {
            file_and_rounds(arguments).map(|(path, rounds)| shared_load::measure(&path, rounds))
        }
        Some(other) => Err(format!("unexpected command {other}")),
        None => Err("expected a command".to_owned()),
    };
    match command {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(why)) => {
            eprintln!("hostbuf-bench-staging: {why}");
            ExitCode::from(2)
        }
        Err(why) => {
            eprintln!("hostbuf-bench-staging: {why}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}
