//! The figures of one backend.

use std::fmt;

use hostbuf_staging::{Backend, BackendChoice, File};

use super::bench_sample::BenchSample;

/// The state of the page cache before a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageCacheState {
    /// No byte of the files is in the page cache.
    Cold,
    /// The bytes that are read are in the page cache.
    Warm,
}

impl PageCacheState {
    pub(super) const ALL: [PageCacheState; 2] = [PageCacheState::Cold, PageCacheState::Warm];
}

impl fmt::Display for PageCacheState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageCacheState::Cold => "cold",
            PageCacheState::Warm => "warm",
        })
    }
}

/// The backends that are measured: those that read through a ring.
pub(super) const BACKENDS: [Backend; 5] =
    [Backend::Posix, Backend::Direct, Backend::Uring, Backend::Mmap, Backend::Auto];

/// The figures of one backend, in one state of the page cache, to one destination.
#[derive(Clone, Debug)]
pub(super) struct BenchRow {
    /// The name of the destination.
    pub(super) to: String,
    pub(super) cache: PageCacheState,
    /// The requested backend.
    pub(super) backend: Backend,
    /// One sample for each round.
    pub(super) samples: Vec<BenchSample>,
    /// The backends of the files in the last round, without repetitions.
    pub(super) choices: Vec<BackendChoice>,
    /// The reason why the files cannot be read by this backend.
    pub(super) refusal: Option<String>,
}

impl BenchRow {
    /// Makes a row without samples.
    pub(super) fn new(to: String, cache: PageCacheState, backend: Backend) -> BenchRow {
        let (samples, choices) = (Vec::new(), Vec::new());
        BenchRow { to, cache, backend, samples, choices, refusal: None }
    }

    /// Adds a sample. `files` are those that were read.
    pub(super) fn add(&mut self, sample: BenchSample, files: &[File]) {
        self.samples.push(sample);
        self.choices.clear();
        for choice in files.iter().map(File::backend) {
            if !self.choices.contains(&choice) {
                self.choices.push(choice);
            }
        }
    }

    /// Returns the sample that stands for the row. `None` if there is no sample.
    pub(super) fn median(&self) -> Option<BenchSample> {
        BenchSample::median(&self.samples)
    }

    /// Returns a remark: the reason for a refusal, the choice of `auto`, or a peculiarity of a
    /// requested backend.
    pub(super) fn note(&self) -> String {
        if let Some(refusal) = &self.refusal {
            return refusal.clone();
        }
        let note = |choice: &BackendChoice| match self.backend {
            Backend::Auto => choice.to_string(),
            _ => choice.why.trim_start_matches("as requested").trim_start_matches([',', ';', ' ']).to_owned(),
        };
        let notes: Vec<String> = self.choices.iter().map(note).filter(|note| !note.is_empty()).collect();
        notes.join("; ")
    }
}
