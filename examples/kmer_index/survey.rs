//! An estimate of the memory that the index needs, made before the allocation, and the memory that
//! is available.

use std::collections::HashSet;
use std::fs;

use crate::fasta::Source;
use crate::index;
use crate::kmer::{kmers, spread};

/// The memory that an index of the first few genomes needs.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The largest possible number of different k-mers.
    pub distinct: u64,
    /// The bytes of the buffer, a multiple of 2 MiB.
    pub bytes: u64,
}

/// The number of bases up to which all k-mers are counted; beyond it one in [`SAMPLE`] is, chosen
/// by its hash.
const COUNTED: u64 = 4 << 20;
const SAMPLE: u64 = 64;
const PAGE: u64 = 2 << 20;

/// Returns the needs of the first genome, the first two, and so on. Related genomes share most
/// k-mers, so k-mers are counted; an estimate from a sample is an upper bound by six standard
/// deviations.
pub fn survey(genomes: &[Source]) -> Vec<Need> {
    let one_in = if genomes.iter().map(Source::bases).sum::<u64>() <= COUNTED { 1 } else { SAMPLE };
    let mut seen: HashSet<u64, rustc_hash::FxBuildHasher> = HashSet::default();
    let mut needs = Vec::new();
    for (i, genome) in genomes.iter().enumerate() {
        for record in &genome.records {
            // The low bits of the hash choose the sample: its high bits choose the bucket.
            let chosen =
                kmers(&record.bases).map(|(_, kmer)| kmer).filter(|&k| spread(k).is_multiple_of(one_in));
            seen.extend(chosen);
        }
        let estimate = seen.len() as u64 * one_in;
        let error = if one_in == 1 { 0.0 } else { 6.0 * ((estimate + one_in) as f64 * one_in as f64).sqrt() };
        let distinct = estimate + error as u64;
        let bytes = index::bytes_needed(&genomes[..=i], distinct).next_multiple_of(PAGE);
        needs.push(Need { distinct, bytes });
    }
    needs
}

/// Returns the number of genomes whose index fits into a buffer of `bytes`.
pub fn fitting(needs: &[Need], bytes: u64) -> usize {
    needs.iter().take_while(|need| need.bytes <= bytes).count()
}

/// Returns the size of the largest buffer for which this machine has memory, if `copies` hosts
/// share the machine (simulated hosts do) and `own` bytes are needed besides. A sixteenth stays
/// free.
pub fn room(copies: u64, own: u64) -> u64 {
    (available() / 16 * 15).saturating_sub(own) / copies.max(1)
}

/// Returns the available memory in bytes.
pub fn available() -> u64 {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    // In a container the limit of its cgroup applies.
    let left = |limit, used| Some(number(limit)?.saturating_sub(number(used)?));
    let limits = [
        left("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        left("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
        available_of_host(),
    ];
    limits.into_iter().flatten().min().unwrap_or(u64::MAX)
}

fn available_of_host() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fasta::FastaRecord;

    #[test]
    fn a_sample_gives_a_close_upper_bound() {
        let mut seed = 1;
        let mut bases = || {
            seed = spread(seed + 1);
            b"ACGT"[(seed >> 60 & 3) as usize]
        };
        let record = |bases| FastaRecord { name: "r".into(), bases };
        let one: Vec<u8> = (0..5 << 20).map(|_| bases()).collect();
        let source = |bases| Source { name: "s".into(), records: vec![record(bases)] };
        let needs = survey(&[source(one.clone()), source(one)]);
        let exact = (5 << 20) - 30;
        assert!((exact..exact + exact / 30).contains(&needs[0].distinct), "{needs:?}");
        assert_eq!(needs[0].distinct, needs[1].distinct);
        assert!(needs[0].bytes < needs[1].bytes, "the text comes twice");
        assert_eq!(fitting(&needs, needs[0].bytes), 1);
    }
}
