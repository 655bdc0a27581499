//! The benchmarks of rings and of loaded tensors: see README.md.

mod column_copies;
mod comparing_sink;
mod copy_ways;
mod discarding_device;
mod disk_reads;
mod file_reads;
mod fio;
mod host_reads;
#[cfg(feature = "remote")]
mod object_checksum;
mod rank_slices;
mod read_sample;
#[cfg(feature = "remote")]
mod remote_reads;
mod shared_load;
mod small_reads;
mod stream_reads;
mod tensor_copies;
mod tensor_file;
mod thread_time;

use std::error::Error;
use std::process::ExitCode;

use hostbuf_staging::Backend;

const USAGE: &str = "\
usage: hostbuf-bench-staging read [--backend NAME] FILE [ROUNDS]
       hostbuf-bench-staging read --cold [--backend NAME ...] FILE [ROUNDS]
       hostbuf-bench-staging small FILE [ROUNDS]
       hostbuf-bench-staging streams FILE [ROUNDS]
       hostbuf-bench-staging host KEY FILE [ROUNDS]
       hostbuf-bench-staging remote [--reactors THREADSxREQUESTS] [--workers N] [--piece MIB] [--certificates FILE] URL
       hostbuf-bench-staging tensors [COUNT BYTES [ROUNDS]]
       hostbuf-bench-staging tensors --columns [ROWS BYTES [ROUNDS]]
       hostbuf run -n N --launcher local -- hostbuf-bench-staging shared FILE [ROUNDS]";

/// The command line of `read`.
struct ReadCommand {
    is_cold: bool,
    backends: Vec<Backend>,
    path: String,
    rounds: usize,
}

impl ReadCommand {
    /// Parses the arguments behind `read`.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<ReadCommand, String> {
        let (mut is_cold, mut backends, mut operands) = (false, Vec::new(), Vec::new());
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--cold" => is_cold = true,
                "--backend" => {
                    backends.push(arguments.next().ok_or("--backend needs a name")?.parse::<Backend>()?);
                }
                option if option.starts_with('-') => return Err(format!("unexpected option {option}")),
                _ => operands.push(argument),
            }
        }
        let (path, rounds) = file_and_rounds(operands.into_iter())?;
        if !is_cold && backends.len() > 1 {
            return Err("several backends are compared with --cold only".to_owned());
        }
        Ok(ReadCommand { is_cold, backends, path, rounds })
    }

    fn run(self) -> Result<(), Box<dyn Error>> {
        let ReadCommand { is_cold, mut backends, path, rounds } = self;
        if is_cold && backends.is_empty() {
            backends = vec![Backend::Uring, Backend::Direct];
        }
        match is_cold {
            true => disk_reads::measure(&path, &backends, rounds),
            false => file_reads::measure(&path, backends.first().copied().unwrap_or(Backend::Posix), rounds),
        }
    }
}

/// Parses a file, and the number of rounds.
fn file_and_rounds(arguments: impl Iterator<Item = String>) -> Result<(String, usize), String> {
    let mut operands: Vec<String> = arguments.collect();
    let rounds = match &operands[..] {
        [_] => 7,
        [_, rounds] => match rounds.parse() {
            Ok(rounds) if rounds > 0 => rounds,
            _ => return Err(format!("invalid number of rounds {rounds}: expected 1 or more")),
        },
        _ => return Err("expected a file".to_owned()),
    };
    Ok((operands.swap_remove(0), rounds))
}

/// The command line of `tensors`.
struct TensorsCommand {
    /// True for `--columns`: the numbers are those of rows, and of bytes of each.
    is_columns: bool,
    count: usize,
    bytes: usize,
    rounds: usize,
}

impl TensorsCommand {
    /// Parses the arguments behind `tensors`.
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
