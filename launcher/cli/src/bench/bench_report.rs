//! The measurement of files, and its report.

use hostbuf::Bytes;
use hostbuf_staging::{Backend, File};

use super::bench_bar::BenchBar;
use super::bench_error::BenchError;
use super::bench_row::{BACKENDS, BenchRow, PageCacheState};
use super::bench_sample::BenchSample;
use super::best_backend::BestBackend;
use super::measured_files::{FilePart, MeasuredFiles};
use super::ring_destination::{BenchDestination, PART_BYTES};

/// The share of the bytes in percent that a warm page cache has at least, and that a cold one lacks
/// at least.
const MOST: u64 = 95;

/// The number of bytes below which the backends are not compared. Fewer are read in about a
/// millisecond, in which the start of a transfer and other work of the machine decide.
const COMPARABLE_BYTES: u64 = 16 << 20;

/// The figures of all backends.
#[derive(Debug)]
pub(super) struct BenchReport {
    pub(super) files: MeasuredFiles,
    pub(super) rounds: usize,
    pub(super) threads: usize,
    pub(super) rows: Vec<BenchRow>,
    /// A sentence for each state that was not measured, or not as intended.
    pub(super) notes: Vec<String>,
}

impl BenchReport {
    /// Reads the files by each backend to each destination, `rounds` times. The backends take
    /// turns, so that a change of the machine's load affects all of them equally.
    ///
    /// # Errors
    /// [`BenchError`].
    pub(super) fn measure(
        files: MeasuredFiles,
        destinations: &[Box<dyn BenchDestination>],
        (rounds, threads): (usize, usize),
        quiet: bool,
    ) -> Result<BenchReport, BenchError> {
        let mut report = BenchReport { files, rounds, threads, rows: Vec::new(), notes: Vec::new() };
        let parts = report.files.parts(PART_BYTES);
        for destination in destinations {
            // The first touch of the memory, and the start of the threads.
            report.read_cached(&**destination, &parts[..parts.len().min(8)])?;
        }
        let why_not_cold = report.why_not_cold();
        let is_measured = |cache: &PageCacheState| *cache == PageCacheState::Warm || why_not_cold.is_none();
        let states: Vec<PageCacheState> = PageCacheState::ALL.into_iter().filter(is_measured).collect();
        report.notes.extend(why_not_cold.map(|why| format!("not measured with a cold page cache: {why}")));
        report.notes.extend(report.why_not_compared());
        for destination in destinations {
            for &cache in &states {
                let row = |backend| BenchRow::new(destination.name(), cache, backend);
                report.rows.extend(BACKENDS.map(row));
            }
        }
        let rows_of_destination = states.len() * BACKENDS.len();
        let bar = BenchBar::new(rounds * report.rows.len(), quiet);
        for &cache in states.iter().flat_map(|cache| std::iter::repeat_n(cache, rounds)) {
            for number in 0..report.rows.len() {
                if report.rows[number].cache == cache {
                    bar.begin(&report.rows[number]);
                    report.measure_row(number, &*destinations[number / rows_of_destination], &parts)?;
                    bar.count();
                }
            }
        }
        bar.end();
        Ok(report)
    }

    /// Returns the best backends. There are none if too little is read to compare them.
    pub(super) fn best(&self) -> Vec<BestBackend> {
        if self.is_comparable() { BestBackend::of_all(&self.rows) } else { Vec::new() }
    }

    fn is_comparable(&self) -> bool {
        self.files.read_bytes() >= COMPARABLE_BYTES
    }

    /// Returns the reason why the backends are not compared, and the remedy.
    fn why_not_compared(&self) -> Option<String> {
        if self.is_comparable() {
            return None;
        }
        let (read, needed) = (Bytes(self.files.read_bytes()), Bytes(COMPARABLE_BYTES));
        Some(format!(
            "too few bytes to compare the backends: {read} read, at least {needed} needed: name larger files (several \
             GiB), or raise --bytes"
        ))
    }

    /// Adds a sample to a row, unless the files refuse its backend.
    fn measure_row(
        &mut self,
        number: usize,
        destination: &dyn BenchDestination,
        parts: &[FilePart],
    ) -> Result<(), BenchError> {
        let BenchRow { cache, backend, refusal, .. } = &self.rows[number];
        if refusal.is_some() {
            return Ok(());
        }
        let backend = *backend;
        let are_cached = self.prepare(*cache, destination, parts)?;
        match self.files.with_backend(backend)? {
            Ok(files) => {
                let is_buffered =
                    |file: &File| matches!(file.backend().backend, Backend::Posix | Backend::Mmap);
                let from_cache = are_cached && files.iter().all(is_buffered);
                let needs_disk = !from_cache && !self.files.are_in_memory();
                let sample = BenchSample { needs_disk, ..destination.read(&files, parts)? };
                self.rows[number].add(sample, &files);
            }
            Err(refusal) => self.rows[number].refusal = Some(refusal),
        }
        Ok(())
    }

    /// Returns the reason why the files cannot be read with a cold page cache.
    fn why_not_cold(&self) -> Option<String> {
        if self.files.are_in_memory() {
            return Some("the files are in memory, so there is no disk".to_owned());
        }
        // A file system without writes, such as squashfs, has no fdatasync.
        if let Err(error) = self.files.drop_cached() {
            return Some(error.to_string());
        }
        let stays = self.files.cached_percent().filter(|&percent| percent > 100 - MOST);
        stays.map(|percent| {
            format!("{percent} % of the bytes stay in the page cache: end the processes that map the files")
        })
    }

    /// Brings the page cache into a state. Returns whether what is read is known to be in it.
    fn prepare(
        &mut self,
        cache: PageCacheState,
        destination: &dyn BenchDestination,
        parts: &[FilePart],
    ) -> Result<bool, BenchError> {
        if cache == PageCacheState::Cold {
            self.files.drop_cached()?;
            return Ok(false);
        }
        let is_warm = |percent: Option<u64>| percent.is_some_and(|percent| percent >= MOST);
        if self.files.are_in_memory() || is_warm(self.files.cached_percent()) {
            return Ok(true);
        }
        self.read_cached(destination, parts)?;
        // Some file systems count no page, overlayfs for example.
        let percent = self.files.cached_percent().filter(|&percent| percent > 0);
        let is_noted = self.notes.iter().any(|note| note.starts_with("warm: "));
        if let Some(percent) = percent.filter(|&percent| percent < MOST && !is_noted) {
            self.notes.push(format!(
                "warm: only {percent} % of the bytes stay in the page cache: read less than the free memory (--bytes)"
            ));
        }
        Ok(is_warm(percent))
    }

    /// Reads parts of the files into the page cache.
    fn read_cached(&self, destination: &dyn BenchDestination, parts: &[FilePart]) -> Result<(), BenchError> {
        if let Ok(files) = self.files.with_backend(Backend::Posix)? {
            destination.read(&files, parts)?;
        }
        Ok(())
    }
}
