//! Lookups in one buffer by Rust, C and numpy, which must be equally fast.
//!
//! This runs as the only rank of a job, fills the launcher's buffer, and starts the others as its
//! children, which attach to it: so all read the same pages. They work in turns, which lines on
//! pipes start. numpy's turn evaluates the same expression on the buffer and on a private array.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use hostbuf::HostBuffer;

use crate::fixture::BenchResult;
use crate::lookups::{chain, fill, lanes};
use crate::sample::{sample, timed, turns};

/// The number of lookups of each kind in a turn. It is small, so that both sides of a ratio run at
/// the same speed of the machine's memory.
const STEPS: u64 = 1 << 17;

/// A program that takes turns.
struct LookupProgram {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl LookupProgram {
    fn start(words: &[&str]) -> Result<LookupProgram, Box<dyn std::error::Error>> {
        let [program, arguments @ ..] = words else { return Err("no program".into()) };
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(LookupProgram { child, input, output })
    }

    fn turn<const N: usize>(&mut self, start: u64) -> Result<[f64; N], Box<dyn std::error::Error>> {
        writeln!(self.input, "{start}")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let numbers: Vec<f64> = line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        numbers.try_into().map_err(|_| format!("a peer answered {line:?} to a turn").into())
    }

    fn end(self) -> BenchResult {
        let LookupProgram { mut child, input, output } = self;
        drop((input, output));
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a peer ended with {status}").into()) }
    }
}

/// Measures `c`, a program, and `python` with a script, in `repeats` turns each.
pub(crate) fn compare(repeats: usize, c: &str, python: &[&str]) -> BenchResult {
    let buffer = HostBuffer::attach()?;
    let table = buffer.as_ptr().as_ptr().cast::<u64>();
    let words = (buffer.len() / 8) as u64;
    if !words.is_power_of_two() {
        return Err("a power of two is meant".into());
    }
    fill(table, words);
    let mut in_c = LookupProgram::start(&[c, &STEPS.to_string()])?;
    let in_rust = |start| {
        let (elapsed, end) = timed(|| chain(table, start, STEPS));
        let (elapsed_lanes, sum) = timed(|| lanes(table, end, words, STEPS));
        let [chain, lanes] = [elapsed, elapsed_lanes].map(|time| time.as_secs_f64() / STEPS as f64);
        [chain, lanes, ((end + sum) % words) as f64]
    };
    // Each continues from its last word, so that none finds the words of another in the processor's
    // cache.
    let mut starts = [0, words / 2];
    for repeat in 0..repeats {
        let mut took = [[0.0; 2]; 2];
        for side in turns(repeat) {
            let [chain, lanes, next] = match side {
                0 => in_c.turn(starts[side])?,
                _ => in_rust(starts[side]),
            };
            (took[side], starts[side]) = ([chain, lanes], next as u64);
        }
        for (i, key) in ["lookup-c", "lookup16-c"].into_iter().enumerate() {
            sample(key, "ours", took[0][i]);
            sample(key, "theirs", took[1][i]);
        }
    }
    in_c.end()?;
    // numpy runs by itself, because it leaves its words in the processor's cache for the next
    // program.
    let mut numpy = LookupProgram::start(python)?;
    for repeat in 0..repeats {
        let [shared, private] = numpy.turn(repeat as u64)?;
        sample("lookup-numpy", "ours", shared);
        sample("lookup-numpy", "theirs", private);
    }
    numpy.end()
}
