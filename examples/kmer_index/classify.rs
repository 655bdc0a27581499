//! Classification of contigs: finds the genome that a contig comes from.

use crate::fasta::Source;
use crate::index::Index;
use crate::kmer::kmers;

/// A sequence to classify.
pub struct Contig {
    /// The file it comes from.
    pub file: usize,
    pub name: String,
    pub bases: Vec<u8>,
}

/// The result for a contig. A k-mer counts for every genome that has it, once for each occurrence
/// in the contig; the contig belongs to the genome with the most hits. Strains of a species share
/// most k-mers, so several genomes may have equal hits for a short contig. Then the result is a
/// tie, whatever the order of the genomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The number of its k-mers.
    pub kmers: u64,
    /// The hits in all genomes together.
    pub total: u64,
    /// The hits in the best genome, or 0.
    pub best: u64,
    /// The first genome with that many hits.
    pub genome: u64,
    /// The number of genomes with that many hits.
    pub tied: u64,
}

impl Verdict {
    /// The number of words of a verdict for the other ranks.
    pub const WORDS: usize = 5;

    pub fn words(self) -> [u64; Verdict::WORDS] {
        [self.kmers, self.total, self.best, self.genome, self.tied]
    }

    pub fn from_words(words: &[u64]) -> Verdict {
        Verdict { kmers: words[0], total: words[1], best: words[2], genome: words[3], tied: words[4] }
    }

    /// Takes the hits in the next genome into account.
    pub fn count(&mut self, genome: u64, hits: u64) {
        self.total += hits;
        if hits > self.best {
            (self.best, self.genome, self.tied) = (hits, genome, 1);
        } else if hits == self.best && hits > 0 {
            self.tied += 1;
        }
    }
}

/// Returns the contigs of all files.
pub fn contigs(files: Vec<Source>) -> Vec<Contig> {
    let of_file = |(file, source): (usize, Source)| {
        source.records.into_iter().map(move |r| Contig { file, name: r.name, bases: r.bases })
    };
    files.into_iter().enumerate().flat_map(of_file).collect()
}

/// Assigns each contig to a rank: the longest first, each to the rank with the least work. All
/// ranks compute the same assignment.
pub fn shares(contigs: &[Contig], ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contigs.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(contigs[i].bases.len()));
    let mut heap: std::collections::BinaryHeap<_> = (0..ranks).map(|r| std::cmp::Reverse((0, r))).collect();
    let mut rank_of = vec![0; contigs.len()];
    for i in order {
        let std::cmp::Reverse((load, rank)) = heap.pop().expect("a rank at least");
        rank_of[i] = rank;
        heap.push(std::cmp::Reverse((load + contigs[i].bases.len(), rank)));
    }
    rank_of
}

/// Classifies a sequence by following the index's pointers.
pub fn classify(index: &Index, genomes: usize, bases: &[u8]) -> Verdict {
    let words: Vec<u64> = kmers(bases).map(|(_, kmer)| kmer).collect();
    let mut hits = vec![0; genomes];
    index.look_up(&words, |_, node| {
        for genome in node.genomes() {
            hits[genome.number as usize] += 1;
        }
    });
    let mut verdict = Verdict { kmers: words.len() as u64, ..Verdict::default() };
    for (genome, hits) in (0..).zip(hits) {
        verdict.count(genome, hits);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_balanced_and_complete() {
        let contig = |n| Contig { file: 0, name: String::new(), bases: vec![b'A'; n] };
        let all: Vec<Contig> = [5, 90, 10, 40, 45, 20].map(contig).into();
        let rank_of = shares(&all, 2);
        let load = |rank| (0..6).filter(|&i| rank_of[i] == rank).map(|i| all[i].bases.len()).sum::<usize>();
        assert_eq!((load(0), load(1)), (105, 105));
        assert!(shares(&[], 3).is_empty());
    }

    #[test]
    fn equal_hits_count_as_ties() {
        let mut verdict = Verdict::default();
        for (genome, hits) in [(0, 0), (1, 3), (2, 5), (3, 5), (4, 1)] {
            verdict.count(genome, hits);
        }
        assert_eq!(verdict, Verdict { kmers: 0, total: 14, best: 5, genome: 2, tied: 2 });
        assert_eq!(Verdict::from_words(&verdict.words()), verdict);
    }
}
