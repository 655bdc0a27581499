//! The index: a chained hash table full of raw pointers, built once and read at the same address
//! everywhere.
//!
//! ```text
//! Index ---> table of buckets ---> Node ---> Node ---> null
//!   |                              |  |
//!   |                              |  +--> a base in a Record's text
//!   |                              +-----> Owners ---> Owners ---> null
//!   |                                         |           |
//!   +-----------> Genome ---> Genome ---> .. <+-----------+
//!                   +---> Record ---> Record ---> null
//! ```
//!
//! There is one node for each different k-mer. It points to the k-mer's first occurrence and to the
//! list of the genomes that have it, latest first. Nodes with the same genomes share the list.
//!
//! [`build`] makes all objects, in the buffer. They are never freed, and not written after it.
//! Their pointers are null or point to each other: the safety comments below rest on this.

#![allow(unsafe_code, reason = "the tables in the buffer are built and read by raw pointers")]

use std::alloc::Layout;
use std::collections::HashMap;
use std::{iter, ptr, slice, str};

use hostbuf::{Arena, Placed, Portable, Result};

use crate::fasta::{FastaRecord, Source};
use crate::kmer::{K, kmers, spread};

/// The root object.
#[repr(C)]
pub struct Index {
    table: *const Bucket,
    buckets: u64,
    genomes: *const Genome,
    /// The number of different k-mers.
    pub kmers: u64,
    /// The number of k-mers of all genomes, each counted as often as it occurs.
    pub occurrences: u64,
    /// The number of different lists of genomes.
    pub lists: u64,
}

type Bucket = *const Node;

/// A k-mer. Half a cache line.
#[repr(C, align(32))]
pub struct Node {
    kmer: u64,
    next: *const Node,
    owners: *const Owners,
    base: *const u8,
}

/// A list of the genomes that have a k-mer: the first one, and the rest of the list.
#[repr(C)]
struct Owners {
    genome: *const Genome,
    rest: *const Owners,
}

/// A genome.
#[repr(C)]
pub struct Genome {
    name: Text,
    records: *const Record,
    next: *const Genome,
    /// Its position among the genomes, from 0.
    pub number: u64,
}

/// A sequence of a genome: a chromosome, a plasmid.
#[repr(C)]
struct Record {
    name: Text,
    bases: Text,
    next: *const Record,
}

/// A range of bytes in the buffer.
#[derive(Clone, Copy)]
#[repr(C)]
struct Text {
    start: *const u8,
    length: u64,
}

// SAFETY: the type consists of pointers to objects in the buffer (see the head of this file) and
// numbers.
unsafe impl Portable for Index {
    const PLAIN: bool = true;
}
// SAFETY: as above.
unsafe impl Portable for Genome {
    const PLAIN: bool = true;
}
// SAFETY: as above.
unsafe impl Portable for Record {
    const PLAIN: bool = true;
}
// SAFETY: as above.
unsafe impl Portable for Owners {
    const PLAIN: bool = true;
}
// SAFETY: the index is not written after it was built.
unsafe impl Sync for Index {}

/// The first position of a k-mer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site<'a> {
    pub genome: &'a str,
    pub record: &'a str,
    /// The position, counted from 1 as biologists do.
    pub position: u64,
    /// The 31 letters at the position: the k-mer or its reverse complement.
    pub text: &'a str,
}

impl Index {
    /// Returns all genomes, in the order of the command line.
    pub fn genomes(&self) -> impl Iterator<Item = &Genome> {
        follow(self.genomes, |genome| genome.next)
    }

    /// Looks `kmers` up and calls `found` with each node and the position of its k-mer in `kmers`.
    /// It looks several up at a time, so that the processor fetches the next nodes while it waits
    /// for the first.
    #[inline]
    pub fn look_up<'a>(&'a self, kmers: &[u64], mut found: impl FnMut(usize, &'a Node)) {
        let mut buckets = [ptr::null(); BATCH];
        for (part, kmers) in kmers.chunks(BATCH).enumerate() {
            for (bucket, &kmer) in buckets.iter_mut().zip(kmers) {
                // SAFETY: bucket_of() is less than the number of buckets.
                *bucket = unsafe { self.table.add(bucket_of(kmer, self.buckets)) };
                prefetch(*bucket);
            }
            for &bucket in &buckets[..kmers.len()] {
                // SAFETY: the pointer was just made from the table.
                prefetch(unsafe { *bucket });
            }
            for (i, (&bucket, &kmer)) in buckets.iter().zip(kmers).enumerate() {
                // SAFETY: as above.
                let first = unsafe { *bucket };
                if let Some(node) = follow(first, |node| node.next).find(|node| node.kmer == kmer) {
                    found(part * BATCH + i, node);
                }
            }
        }
    }

    /// Returns the first position of the k-mer of `node`.
    pub fn site<'a>(&'a self, node: &'a Node) -> Option<Site<'a>> {
        // Owners are listed latest first.
        let genome = node.genomes().last()?;
        let (record, at) = follow(genome.records, |record| record.next).find_map(|record| {
            let at = (node.base as usize).checked_sub(record.bases.start as usize)?;
            (at < record.bases.length as usize).then_some((record, at))
        })?;
        let text = record.bases.get().get(at..at + K)?;
        let position = at as u64 + 1;
        Some(Site { genome: genome.name(), record: record.name.get(), position, text })
    }
}

impl Node {
    /// Returns the k-mer.
    pub fn kmer(&self) -> u64 {
        self.kmer
    }

    /// Returns the genomes that have the k-mer, latest first.
    #[inline]
    pub fn genomes(&self) -> impl Iterator<Item = &Genome> {
        // SAFETY: every list names genomes of the index.
        follow(self.owners, |owners| owners.rest).map(|owners| unsafe { &*owners.genome })
    }
}

impl Genome {
    /// Returns the name of the genome.
    pub fn name(&self) -> &str {
        self.name.get()
    }
}

impl Text {
    fn get<'a>(self) -> &'a str {
        // SAFETY: copied from a str by Builder::text(), and never freed.
        unsafe { str::from_utf8_unchecked(slice::from_raw_parts(self.start, self.length as usize)) }
    }
}

/// Walks a linked list.
#[inline]
fn follow<'a, T: 'a>(first: *const T, next: impl Fn(&'a T) -> *const T) -> impl Iterator<Item = &'a T> {
    // SAFETY: the pointer is null or points to an object of the index, which does not move.
    let object = |at: *const T| unsafe { at.as_ref() };
    iter::successors(object(first), move |&here| object(next(here)))
}

/// The number of k-mers that are looked up or added at a time.
const BATCH: usize = 64;

/// Returns the bucket of a k-mer, of `buckets` in all.
#[inline]
fn bucket_of(kmer: u64, buckets: u64) -> usize {
    ((u128::from(spread(kmer)) * u128::from(buckets)) >> 64) as usize
}

#[inline]
fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint, and is allowed for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// The number of nodes that are taken from the arena at a time.
const NODES: usize = 4096;

/// Returns an upper bound of the bytes of an index.
pub fn bytes_needed(genomes: &[Source], distinct: u64) -> u64 {
    let mut bytes = size_of::<Index>() as u64 + distinct * size_of::<Bucket>() as u64;
    bytes += distinct.next_multiple_of(NODES as u64) * size_of::<Node>() as u64;
    // There is a list for each set of genomes. With many genomes there are far fewer such sets than
    // k-mers.
    let sets = 1u64.checked_shl(genomes.len() as u32).unwrap_or(u64::MAX).min(distinct / 16 + 1024);
    bytes += sets * size_of::<Owners>() as u64;
    for genome in genomes {
        bytes += (size_of::<Genome>() + genome.name.len()) as u64 + genome.bases();
        let names: usize = genome.records.iter().map(|r| r.name.len()).sum();
        bytes += (names + genome.records.len() * size_of::<Record>()) as u64;
        // The padding between texts and objects.
        bytes += 16 * (genome.records.len() as u64 + 1);
    }
    bytes + 4096
}

/// Builds the index of `genomes`, which have about `distinct` different k-mers.
///
/// # Errors
/// When the arena is full.
pub fn build<'b>(arena: Arena<'b>, genomes: &[Source], distinct: u64) -> Result<Placed<'b, Index>> {
    let buckets = distinct.max(1);
    let layout =
        Layout::array::<Bucket>(buckets as usize).expect("the arena is smaller than any address space");
    // The memory is zeroed, so all buckets are null.
    let table = arena.take(layout)?.cast::<Bucket>().as_ptr();
    let mut builder =
        Builder { arena, table, buckets, free: ptr::null_mut(), left: 0, kmers: 0, occurrences: 0, lists: 0 };
    // Lists are linked from their ends.
    let mut first: *const Genome = ptr::null();
    for (number, genome) in genomes.iter().enumerate().rev() {
        first = builder.genome(genome, number as u64, first)?;
    }
    for genome in follow(first, |genome| genome.next) {
        builder.add(genome)?;
    }
    let Builder { kmers, occurrences, lists, .. } = builder;
    arena.place(Index { table, buckets, genomes: first, kmers, occurrences, lists })
}

struct Builder<'b> {
    arena: Arena<'b>,
    table: *mut Bucket,
    buckets: u64,
    /// The memory for `left` nodes.
    free: *mut Node,
    left: usize,
    kmers: u64,
    occurrences: u64,
    lists: u64,
}

/// The lists that this genome has extended: each list of the earlier genomes, and the list with
/// this genome in front of it.
struct Lists {
    with: HashMap<*const Owners, *const Owners, rustc_hash::FxBuildHasher>,
    /// The latest of them: adjacent k-mers mostly have the same owners.
    latest: (*const Owners, *const Owners),
}

impl<'b> Builder<'b> {
    fn text(&self, text: &str) -> Result<Text> {
        let start = self.arena.take(Layout::for_value(text))?.as_ptr();
        // SAFETY: the arena gave out as many bytes, to no other code.
        unsafe { start.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        Ok(Text { start, length: text.len() as u64 })
    }

    fn record(&self, record: &FastaRecord, next: *const Record) -> Result<*const Record> {
        let bases = str::from_utf8(&record.bases).expect("letters of FASTA are ASCII");
        let record = Record { name: self.text(&record.name)?, bases: self.text(bases)?, next };
        Ok(self.arena.place(record)?.as_ptr().as_ptr())
    }

    fn genome(&self, genome: &Source, number: u64, next: *const Genome) -> Result<*const Genome> {
        let mut records: *const Record = ptr::null();
        for record in genome.records.iter().rev() {
            records = self.record(record, records)?;
        }
        let genome = Genome { name: self.text(&genome.name)?, records, next, number };
        Ok(self.arena.place(genome)?.as_ptr().as_ptr())
    }

    /// Adds all k-mers of a genome.
    fn add(&mut self, genome: &'b Genome) -> Result<()> {
        let mut lists = Lists { with: HashMap::default(), latest: (ptr::null(), ptr::null()) };
        let mut batch = Vec::with_capacity(BATCH);
        for record in follow(genome.records, |record| record.next) {
            let bases = record.bases.get().as_bytes();
            for (at, kmer) in kmers(bases) {
                // SAFETY: bucket_of() is less than the number of buckets.
                let bucket = unsafe { self.table.add(bucket_of(kmer, self.buckets)) };
                prefetch(bucket);
                batch.push((kmer, bases[at..].as_ptr(), bucket));
                if batch.len() == BATCH {
                    self.add_batch(&batch, genome, &mut lists)?;
                    batch.clear();
                }
            }
        }
        self.add_batch(&batch, genome, &mut lists)
    }

    fn add_batch(
        &mut self,
        batch: &[(u64, *const u8, *mut Bucket)],
        genome: &Genome,
        lists: &mut Lists,
    ) -> Result<()> {
        for &(_, _, bucket) in batch {
            // SAFETY: a bucket of the table.
            prefetch(unsafe { *bucket });
        }
        for &(kmer, base, bucket) in batch {
            // SAFETY: as above.
            let first = unsafe { *bucket };
            let mut node = first.cast_mut();
            // SAFETY: null or a node that this builder wrote; there are no references to nodes yet.
            while !node.is_null() && unsafe { (*node).kmer } != kmer {
                // SAFETY: as above, and not null.
                node = unsafe { (*node).next.cast_mut() };
            }
            if node.is_null() {
                let owners = self.with(lists, ptr::null(), genome)?;
                let new = self.node(Node { kmer, next: first, owners, base })?;
                // SAFETY: a bucket of the table, which only this builder uses.
                unsafe { *bucket = new };
            } else {
                // SAFETY: as above.
                let owners = unsafe { (*node).owners };
                // SAFETY: every node has owners.
                if !ptr::eq(unsafe { (*owners).genome }, genome) {
                    let owners = self.with(lists, owners, genome)?;
                    // SAFETY: as above.
                    unsafe { (*node).owners = owners };
                }
            }
        }
        self.occurrences += batch.len() as u64;
        Ok(())
    }

    /// Returns the list `rest` with `genome` in front of it.
    fn with(&mut self, lists: &mut Lists, rest: *const Owners, genome: &Genome) -> Result<*const Owners> {
        if !ptr::eq(rest, lists.latest.0) || lists.latest.1.is_null() {
            let list = match lists.with.get(&rest) {
                Some(&list) => list,
                None => {
                    let list = self.arena.place(Owners { genome, rest })?.as_ptr().as_ptr();
                    self.lists += 1;
                    lists.with.insert(rest, list);
                    list
                }
            };
            lists.latest = (rest, list);
        }
        Ok(lists.latest.1)
    }

    fn node(&mut self, node: Node) -> Result<*const Node> {
        if self.left == 0 {
            self.free = self.arena.take(Layout::new::<[Node; NODES]>())?.cast().as_ptr();
            self.left = NODES;
        }
        let at = self.free;
        // SAFETY: there is memory for `left` nodes, at least one.
        unsafe {
            at.write(node);
            self.free = at.add(1);
        }
        self.left -= 1;
        self.kmers += 1;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmer::letters;
    use hostbuf::{BufferOptions, HostBuffer, job::Solo};

    fn source(name: &str, sequences: &[&str]) -> Source {
        let record =
            |(i, s): (usize, &&str)| FastaRecord { name: format!("{name}.{i}"), bases: s.bytes().collect() };
        Source { name: name.into(), records: sequences.iter().enumerate().map(record).collect() }
    }

    #[test]
    fn every_kmer_is_found_with_its_genomes_and_its_site() {
        let (a, b) = ("ACGTTGCATGTCAGTACCATGACTTGACCAGTNACGGT", "GGGTTTACCCATAGGCATACTTACGGATACCATGAACT");
        let all = [source("one", &[a, b]), source("two", &["", b]), source("three", &["ACGT"])];
        let expected: std::collections::BTreeSet<u64> =
            [a, b].iter().flat_map(|s| kmers(s.as_bytes())).map(|(_, kmer)| kmer).collect();
        let size = bytes_needed(&all, expected.len() as u64);
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(size)).unwrap();
        let index = buffer.initialize(|arena| build(arena, &all, expected.len() as u64)).unwrap();
        assert!(buffer.high_water().unwrap() <= size);
        assert_eq!(index.genomes().map(Genome::name).collect::<Vec<_>>(), ["one", "two", "three"]);
        assert_eq!((index.kmers, index.occurrences), (expected.len() as u64, 2 + 8 + 8));

        let wanted: Vec<u64> = expected.iter().copied().chain([0, 1, 2]).collect();
        let mut found = vec![];
        index.look_up(&wanted, |i, node| {
            assert_eq!(node.kmer(), wanted[i]);
            let site = index.site(node).unwrap();
            assert_eq!(
                kmers(site.text.as_bytes()).next(),
                Some((0, node.kmer())),
                "{}",
                letters(node.kmer())
            );
            let owners: Vec<&str> = node.genomes().map(Genome::name).collect();
            match site.record {
                "one.0" => {
                    assert_eq!((owners, &a[site.position as usize - 1..][..K]), (vec!["one"], site.text));
                }
                "one.1" => {
                    assert_eq!(
                        (owners, &b[site.position as usize - 1..][..K]),
                        (vec!["two", "one"], site.text)
                    );
                }
                other => panic!("{other}"),
            }
            found.push(node.kmer());
        });
        assert_eq!(found, wanted[..expected.len()]);
    }
}
