//! A second classification for comparison, in one process, by other means and in private memory:
//! sorted lists instead of a hash table, and another computation of the reverse strand. It does not
//! use the buffer.

use crate::classify::{Contig, Verdict};
use crate::fasta::Source;
use crate::kmer::K;

/// The number of k-mers of contigs that are classified together. It bounds the memory, at 16 bytes
/// each.
const TOGETHER: usize = 16 << 20;

/// Returns an upper bound of the bytes that [`verdicts`] takes.
pub fn bytes_needed(genomes: &[Source], contigs: &[Contig]) -> u64 {
    let longest = contigs.iter().map(|c| c.bases.len()).max().unwrap_or(0);
    let all: usize = contigs.iter().map(|c| c.bases.len()).sum();
    let genome = genomes.iter().map(Source::bases).max().unwrap_or(0);
    (all.min(TOGETHER + longest) * size_of::<(u64, u32)>()) as u64 + genome * size_of::<u64>() as u64
}

/// Returns the verdicts on all contigs.
pub fn verdicts(genomes: &[Source], contigs: &[Contig]) -> Vec<Verdict> {
    let mut all = vec![Verdict::default(); contigs.len()];
    let mut begin = 0;
    while begin < contigs.len() {
        let mut words: Vec<(u64, u32)> = Vec::new();
        let mut end = begin;
        while end < contigs.len() && (end == begin || words.len() + contigs[end].bases.len() <= TOGETHER) {
            let before = words.len();
            words.extend(canonical(&contigs[end].bases).map(|kmer| (kmer, end as u32)));
            all[end].kmers = (words.len() - before) as u64;
            end += 1;
        }
        words.sort_unstable();
        for (number, genome) in (0..).zip(genomes) {
            let hits = hits(genome, &words, begin, end);
            for (verdict, hits) in all[begin..end].iter_mut().zip(hits) {
                verdict.count(number, hits);
            }
        }
        begin = end;
    }
    all
}

/// Counts the sorted `words` of each contig that occur in `genome`.
fn hits(genome: &Source, words: &[(u64, u32)], begin: usize, end: usize) -> Vec<u64> {
    let mut index: Vec<u64> = genome.records.iter().flat_map(|r| canonical(&r.bases)).collect();
    index.sort_unstable();
    index.dedup();
    let mut hits = vec![0; end - begin];
    let mut known = index.iter().peekable();
    for &(word, contig) in words {
        while known.next_if(|&&k| k < word).is_some() {}
        if known.peek() == Some(&&word) {
            hits[contig as usize - begin] += 1;
        }
    }
    hits
}

/// Returns the canonical k-mers, in order. The reverse complement is not rolled along but computed
/// from each k-mer: all bits inverted (which complements the bases) and reversed in pairs.
fn canonical(bases: &[u8]) -> impl Iterator<Item = u64> {
    const UNUSED: u32 = u64::BITS - 2 * K as u32;
    const EVEN: u64 = 0x5555_5555_5555_5555;
    let (mut word, mut known) = (0u64, 0);
    bases.iter().filter_map(move |base| {
        let code = match base {
            b'A' => 0,
            b'C' => 1,
            b'G' => 2,
            b'T' => 3,
            _ => {
                known = 0;
                return None;
            }
        };
        (word, known) = (word << 2 | code, known + 1);
        let forward = word << UNUSED >> UNUSED;
        let turned = (!word).reverse_bits();
        let reverse = ((turned >> 1 & EVEN) | (turned & EVEN) << 1) >> UNUSED;
        (known >= K).then_some(forward.min(reverse))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmer::kmers;

    #[test]
    fn rolling_and_direct_kmers_agree() {
        let bases = b"ACGATTTGCAGGCATTACGGACATTTACAGGACCANTTTACCAGGATATACCAGGATTTACACATAGGACACCC";
        assert!(canonical(bases).eq(kmers(bases).map(|(_, kmer)| kmer)));
        assert_eq!(canonical(bases).count(), 13);
    }
}
