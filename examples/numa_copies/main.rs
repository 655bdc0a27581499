//! A k-mer index with a copy on each NUMA node.
//!
//! One rank builds the index of `kmer_index` in the buffer, linked by raw pointers. With
//! `--numa copies`, freezing gives each node a copy of it at the same address. Then all ranks look
//! k-mers up by the same pointers, and rank 0 prints which rank reads from which node.
//!
//! ```sh
//! hostbuf run -n 4 --launcher local --bind node --size 64M --numa copies -- numa_copies
//! ```

#[allow(dead_code, reason = "the example kmer_index uses the rest")]
#[path = "../kmer_index/fasta.rs"]
mod fasta;
#[allow(dead_code, reason = "the example kmer_index uses the rest")]
#[path = "../kmer_index/index.rs"]
mod index;
#[allow(dead_code, reason = "the example kmer_index uses the rest")]
#[path = "../kmer_index/kmer.rs"]
mod kmer;
#[allow(dead_code, reason = "the example kmer_index uses the rest")]
#[path = "../kmer_index/survey.rs"]
mod survey;

use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use hostbuf::job::{Collective, Local, Reduce, Solo, all_or_none};
use hostbuf::{BufferOptions, Bytes, Error, Frozen, HostBuffer, Placement, Result};

use crate::fasta::{FastaRecord, Source};

const USAGE: &str = "\
usage: numa_copies [FILE...]

Builds an index of the 31-mers of genomes in a buffer, freezes it, and looks k-mers
up in all ranks. FILE is a genome as FASTA; without files it is a random one. Start
it with `hostbuf run --numa copies --bind node` to have a copy on each NUMA node.
";

/// The number of bases of the genome that is made without files.
const RANDOM_BASES: usize = 100_000;
/// The number of k-mers that each rank looks up.
const LOOK_UPS: usize = 100_000;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.iter().any(|file| file == "--help" || file == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match run(&files) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("numa_copies: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(files: &[String]) -> Result<()> {
    let launched = HostBuffer::is_launched();
    let group: Box<dyn Collective> = if launched { Box::new(Local::from_env()?) } else { Box::new(Solo) };
    let group = &*group;
    // Every rank needs the k-mers that it looks up.
    let genomes = all_or_none(group, genomes(files))?;
    let need = *survey::survey(&genomes)
        .last()
        .ok_or(Error::invalid("the input contains no genome: pass FASTA files with at least one record"))?;
    let buffer = if launched {
        all_or_none(group, HostBuffer::attach())?
    } else {
        HostBuffer::allocate(group, BufferOptions::new(need.bytes).numa(Placement::Copies))?
    };
    buffer.initialize(|arena| index::build(arena, &genomes, need.distinct))?;
    // The reference stays valid: the copies have the same address.
    let index = buffer
        .root::<index::Index>()?
        .ok_or(Error::invalid("the buffer has no index of this example: start the job with a new buffer"))?;
    let begun = Instant::now();
    let frozen = buffer.freeze(group)?;
    let freeze = begun.elapsed();

    let wanted = sample(&genomes, group.rank() as u64);
    let begun = Instant::now();
    let mut found = 0;
    index.look_up(&wanted, |_, node| {
        black_box(node);
        found += 1;
    });
    let nanoseconds = begun.elapsed().as_nanos() as u64 / wanted.len().max(1) as u64;
    let mut missing = [(wanted.len() - found) as u64];
    group.all_reduce(&mut missing, Reduce::Sum)?;
    let mut all = vec![0; 8 * group.size()];
    group.all_gather(&nanoseconds.to_ne_bytes(), &mut all)?;
    let each: Vec<u64> =
        all.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes"))).collect();
    if group.rank() == 0 {
        println!(
            "index       {} k-mers, {} at {:p}, frozen in {freeze:.1?}",
            index.kmers,
            Bytes(buffer.high_water()?),
            buffer.as_ptr()
        );
        print!("{}", table(&frozen, &each));
    }
    if missing[0] == 0 {
        Ok(())
    } else {
        Err(Error::invalid(format!("{} k-mers were not found", missing[0])))
    }
}

/// Describes the node from which each rank reads, with the time of its look-ups.
fn table(frozen: &Frozen, nanoseconds: &[u64]) -> String {
    let ranks = frozen.rank_nodes();
    if ranks.is_empty() {
        return "nodes       the buffer has no copies: start with --numa copies\n".into();
    }
    let mut nodes: Vec<_> = ranks.iter().map(|rank| rank.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    let (count, names) = (nodes.len(), names.join(", "));
    let mut text = format!("nodes       the ranks read from {count} nodes: {names}\n");
    for (rank, nanoseconds) in ranks.iter().zip(nanoseconds) {
        let cores = if rank.is_local { "all its cores are there" } else { "it may run on other nodes" };
        text += &format!(
            "rank {:<6} reads from node {} ({cores}): {nanoseconds} ns a look-up\n",
            rank.rank, rank.node
        );
    }
    text
}

/// Reads the genomes, or makes one.
fn genomes(files: &[String]) -> Result<Vec<Source>> {
    if !files.is_empty() {
        return files.iter().map(|file| fasta::read(Path::new(file))).collect();
    }
    let mut random = Random(1);
    let bases = (0..RANDOM_BASES).map(|_| b"ACGT"[(random.next() % 4) as usize]).collect();
    let record = FastaRecord { name: "random".into(), bases };
    Ok(vec![Source { name: "random".into(), records: vec![record] }])
}

/// Returns a random sample of the k-mers of the genomes, a different one in each rank.
fn sample(genomes: &[Source], rank: u64) -> Vec<u64> {
    let records = genomes.iter().flat_map(|genome| &genome.records);
    let all: Vec<u64> = records.flat_map(|record| kmer::kmers(&record.bases).map(|(_, kmer)| kmer)).collect();
    let mut random = Random(rank + 2);
    let pick = |_| all[(random.next() % all.len() as u64) as usize];
    (0..if all.is_empty() { 0 } else { LOOK_UPS }).map(pick).collect()
}

/// A generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        kmer::spread(self.0) >> 16
    }
}
