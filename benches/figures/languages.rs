//! Lookups in one buffer by Rust, C and numpy: what a buffer gives does not depend on the language.
//!
//! This runs as the one rank of a job, fills the launcher's buffer, and starts the others as its children, which attach to it: so all
//! read the same pages. One works at a time, by lines on pipes. numpy's turn is the same expression on the buffer and on a private
//! array.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use hostbuf::HostBuffer;

use crate::Outcome;
use crate::lookups::{STEPS, chain, fill, lanes};
use crate::sample::{sample, timed};

/// A program that takes turns.
struct Peer {
    child: Child,
    say: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Peer {
    fn start(words: &[&str]) -> Result<Peer, Box<dyn std::error::Error>> {
        let [program, arguments @ ..] = words else { return Err("no program".into()) };
        let mut child =
            Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let say = child.stdin.take().ok_or("no input")?;
        let hear = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Peer { child, say, hear })
    }

    fn turn(&mut self, start: u64) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
        writeln!(self.say, "{start}")?;
        let mut line = String::new();
        self.hear.read_line(&mut line)?;
        Ok(line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?)
    }

    fn end(self) -> Outcome {
        let Peer { mut child, say, hear } = self;
        drop((say, hear));
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("a peer ended with {status}").into()) }
    }
}

/// Measures with `c`, a program, and `python` with a script; `repeats` turns each.
pub(crate) fn compare(repeats: usize, c: &str, python: &[&str]) -> Outcome {
    let buffer = HostBuffer::attach()?;
    let table = buffer.as_ptr().as_ptr().cast::<u64>();
    let words = (buffer.len() / 8) as u64;
    if !words.is_power_of_two() {
        return Err("a power of two is meant".into());
    }
    fill(table, words);
    let mut in_c = Peer::start(&[c])?;
    let mut numpy = Peer::start(python)?;
    let mut at = 0;
    for repeat in 0..repeats {
        let mut rust = || {
            let (elapsed, end) = timed(|| chain(table, at, STEPS));
            let (elapsed_lanes, sum) = timed(|| lanes(table, end, words, STEPS));
            at = (end + sum) % words;
            [elapsed, elapsed_lanes].map(|time| time.as_secs_f64() / STEPS as f64)
        };
        let mut c = |start| in_c.turn(start);
        // The other way round each time, from the same word.
        let start = (repeat as u64).wrapping_mul(0x9e37_79b9) % words;
        let (ours, theirs) = match repeat % 2 {
            0 => (rust(), c(start)?),
            _ => {
                let theirs = c(start)?;
                (rust(), theirs)
            }
        };
        let [chain_in_c, lanes_in_c, ..] = theirs[..] else {
            return Err("the program in C has ended".into());
        };
        for (key, c, rust) in [("lookup-c", chain_in_c, ours[0]), ("lookup16-c", lanes_in_c, ours[1])] {
            sample(key, "ours", c);
            sample(key, "theirs", rust);
        }
        let [shared, private] = numpy.turn(start)?[..] else { return Err("Python has ended".into()) };
        sample("lookup-numpy", "ours", shared);
        sample("lookup-numpy", "theirs", private);
    }
    in_c.end()?;
    numpy.end()
}
