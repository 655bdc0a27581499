//! A table that all hosts fill together: each computes its part and puts it to all other hosts, at
//! the same address. Without RDMA the parts are sent by MPI.
//!
//! ```text
//!   mpirun ... symmetric_put [--size SIZE] [--rounds N]
//! ```
//!
//! The table's words are a function of their positions, and every rank of every host checks all of
//! them in each round.

#![allow(unsafe_code, reason = "one-sided operations and shared views are unsafe functions")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use hostbuf::job::{Collective, Hosts, Mpi, Reduce};
use hostbuf::{BufferOptions, Bytes, Error, HostBuffer, Result};
use mpi::topology::SimpleCommunicator;

const USAGE: &str = "\
usage: symmetric_put [--size SIZE] [--rounds N]

  --size SIZE   bytes of the table when no launcher made a buffer (16M); at least 8 a host
  --rounds N    how often it is filled (3)";

fn main() -> ExitCode {
    let arguments = arguments();
    let _universe = mpi::initialize();
    let world = Mpi::gentle(&SimpleCommunicator::world());
    match arguments.and_then(|(size, rounds)| run(&world, size, rounds)) {
        Ok(said) => {
            if world.rank() == 0 {
                println!("{said}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("symmetric_put: rank {}: {error}", world.rank());
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<(u64, u64)> {
    let invalid = |what: String| Error::Invalid { what: format!("{what}\n\n{USAGE}") };
    let number = |value: &str| {
        value.parse().map_err(|_| invalid(format!("invalid value '{value}' for --rounds: expected a number")))
    };
    let (mut size, mut rounds) = (16 << 20, 3);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value =
            words.next().ok_or_else(|| invalid(format!("\"{word}\" is no option, or lacks its value")))?;
        match &*word {
            "--size" => {
                let size_error = |why| invalid(format!("invalid value '{value}' for --size: {why}"));
                size = value.parse::<Bytes>().map_err(size_error)?.0;
            }
            "--rounds" => rounds = number(&value)?,
            _ => return Err(invalid(format!("\"{word}\": no such option"))),
        }
    }
    Ok((size, rounds))
}

fn failed(why: String) -> Error {
    Error::Collective { operation: "filling the table", why }
}

fn run(world: &Mpi, size: u64, rounds: u64) -> Result<String> {
    let buffer = match std::env::var_os("HOSTBUF_JOB") {
        Some(_) => HostBuffer::attach()?,
        None => HostBuffer::allocate(world, BufferOptions::new(size))?,
    };
    let hosts = Hosts::new(world)?;
    let table = Table { buffer: &buffer, words: buffer.len() / 8 / hosts.count };
    if table.words == 0 {
        return Err(Error::Invalid {
            what: format!("a table of {} bytes has none for each of {} hosts", buffer.len(), hosts.count),
        });
    }
    let way = Transport::find(world, &buffer)?;
    let mut took = Duration::ZERO;
    for round in 0..rounds {
        if hosts.leads() {
            table.fill(hosts.index.0, round);
        }
        // A new part is sent only after all ranks have checked the previous one.
        world.barrier()?;
        let begun = Instant::now();
        if hosts.leads() {
            way.send(&table, &hosts, round)?;
        }
        world.barrier()?;
        took += begun.elapsed();
        let mut wrong = [table.wrong(hosts.count, round)];
        world.all_reduce(&mut wrong, Reduce::Sum)?;
        if wrong[0] > 0 {
            return Err(failed(format!("of round {round} {} words are not what they should be", wrong[0])));
        }
        world.barrier()?;
    }
    let (hosts, ranks, bytes) = (hosts.count, world.size(), Bytes((table.words * 8) as u64));
    Ok(format!(
        "{rounds} times {bytes} of each of {hosts} hosts to all others, {way} in {took:.1?}; {ranks} ranks found every word as it \
         should be"
    ))
}

/// A table with the same number of words for each host, one host after the other.
struct Table<'b> {
    buffer: &'b HostBuffer,
    words: usize,
}

impl Table<'_> {
    /// Returns the byte range of a host's part.
    fn part(&self, host: usize) -> std::ops::Range<usize> {
        host * self.words * 8..(host + 1) * self.words * 8
    }

    fn word(&self, place: usize) -> *mut u64 {
        self.buffer.as_ptr().as_ptr().cast::<u64>().wrapping_add(place)
    }

    /// Returns the expected word at a place in a round.
    fn value(place: usize, round: u64) -> u64 {
        (place as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round
    }

    fn fill(&self, host: usize, round: u64) {
        for place in host * self.words..(host + 1) * self.words {
            // SAFETY: inside the buffer, and only this rank uses this part between the barriers.
            unsafe { self.word(place).write(Table::value(place, round)) };
        }
    }

    /// Counts the wrong words in the parts of all hosts.
    fn wrong(&self, hosts: usize, round: u64) -> u64 {
        let wrong = |&place: &usize| {
            // SAFETY: inside the buffer; no rank writes between the barriers.
            unsafe { self.word(place).read_volatile() != Table::value(place, round) }
        };
        (0..hosts * self.words).filter(wrong).count() as u64
    }
}

/// The transport of the parts from host to host.
enum Transport {
    #[cfg(feature = "rdma")]
    Puts(hostbuf_rdma::Fabric),
    /// The reason why RDMA is not used.
    Mpi(String),
}

impl Transport {
    #[cfg(feature = "rdma")]
    fn find(world: &Mpi, buffer: &HostBuffer) -> Result<Transport> {
        // SAFETY: no code makes references into the buffer. It is accessed through pointers,
        // between barriers.
        match unsafe { hostbuf_rdma::Fabric::connect(world, buffer, hostbuf_rdma::FabricOptions::default()) }
        {
            Ok(fabric) => Ok(Transport::Puts(fabric)),
            Err(Error::Unsupported { why, .. }) => Ok(Transport::Mpi(why)),
            Err(error) => Err(error),
        }
    }

    #[cfg(not(feature = "rdma"))]
    fn find(_: &Mpi, _: &HostBuffer) -> Result<Transport> {
        Ok(Transport::Mpi("built without it".into()))
    }

    /// Sends this host's part to all other hosts, and waits for theirs. Only leaders call it.
    #[cfg_attr(
        not(feature = "rdma"),
        allow(unused_variables, reason = "a round is what a signal is counted by")
    )]
    fn send(&self, table: &Table, hosts: &Hosts, round: u64) -> Result<()> {
        match self {
            #[cfg(feature = "rdma")]
            Transport::Puts(fabric) => {
                /// The signal that reports the arrival of a host's part, and the time limit for it.
                const FILLED: hostbuf_rdma::Signal = hostbuf_rdma::Signal(0);
                const TIMEOUT: Duration = Duration::from_secs(60);
                let others =
                    (0..hosts.count).map(hostbuf_rdma::HostIndex).filter(|&host| host != hosts.index);
                let puts = others.map(|host| fabric.put_signal(table.part(hosts.index.0), host, FILLED));
                for put in puts.collect::<Result<Vec<_>>>()? {
                    put.wait()?;
                }
                let times = (round + 1) * (hosts.count as u64 - 1);
                if !fabric.wait_signal(FILLED, times, TIMEOUT)? {
                    return Err(failed(format!("the other hosts' parts have not come for {TIMEOUT:?}")));
                }
                Ok(())
            }
            Transport::Mpi(_) => (0..hosts.count).try_for_each(|host| {
                let part = table.part(host);
                let at = table.buffer.as_ptr().as_ptr().wrapping_add(part.start);
                // SAFETY: inside the buffer, and only this rank has it between the barriers.
                let bytes = unsafe { std::slice::from_raw_parts_mut(at, part.len()) };
                hosts.leaders.broadcast(bytes, host)
            }),
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            #[cfg(feature = "rdma")]
            Transport::Puts(_) => f.write_str("by puts over RDMA"),
            Transport::Mpi(why) => write!(f, "over MPI (no RDMA: {why})"),
        }
    }
}
