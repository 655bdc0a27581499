//! The load of one file into its memory file, by all hosts that share the reading.

use std::ops::Range;

use hostbuf::JobError;
use hostbuf::job::Collective;
use hostbuf_memory::FileMapping;
use hostbuf_staging::{Backend, File, FileOptions};

use super::cached_windows::CachedWindows;
use super::exchange::FileExchange;
use super::input_file::{InputFile, failure, opening_failure};
use super::loaded_file::LoadedFile;
use super::read::{FileRead, ReadFailure};
use super::window_share::{WINDOW, WindowShare};

/// The result of a step, or the error of the job.
type Result<T> = std::result::Result<T, JobError>;

/// A file, the memory file that gets its bytes, and the part of it that this host reads.
pub(super) struct FileLoad<'l> {
    pub(super) group: &'l dyn Collective,
    /// The names of the hosts, in the order of their agents.
    pub(super) hosts: &'l [String],
    pub(super) input: &'l InputFile,
    pub(super) file: &'l LoadedFile,
    pub(super) share: WindowShare,
}

impl FileLoad<'_> {
    /// Reads the windows of this host, round by round, and exchanges those of the round before
    /// meanwhile. `progress` is called with the number of bytes so far. Returns the name of the way
    /// in which the file was read, and the number of bytes that this host has read. Collective.
    ///
    /// # Errors
    /// On all hosts: one line about the first host that cannot open or read the file, on which it
    /// has changed, or at which other bytes have arrived than were sent.
    pub(super) fn run(&self, progress: &mut dyn FnMut(u64)) -> Result<(String, u64)> {
        let (source, mapping) = JobError::all_or_first(self.group, self.open())?;
        let cached = CachedWindows::of(source.as_std(), self.input.bytes(), WINDOW);
        let mut own = 0;
        let loaded = match &mapping {
            Some(mapping) => {
                let read = FileRead::new(&source, mapping, &cached, self.share);
                let loaded = self.rounds(&source, Some((mapping, &read)), progress);
                own = read.done();
                loaded
            }
            None => self.rounds(&source, None, progress),
        };
        cached.drop_all_read();
        loaded?;
        Ok((source.backend().backend.to_string(), own))
    }

    /// Runs all rounds, which are collective also for a file that is empty on this host alone.
    fn rounds(
        &self,
        source: &File,
        opened: Option<(&FileMapping, &FileRead<'_>)>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut exchange = opened.filter(|_| self.share.is_shared()).map(|(mapping, _)| FileExchange {
            group: self.group,
            hosts: self.hosts,
            input: self.input,
            mapping,
            share: self.share,
            received: 0,
        });
        let mut before = None;
        for round in self.share.rounds(self.input.bytes()) {
            let result = match opened {
                Some((_, read)) => {
                    self.round(source, read, round.clone(), exchange.as_mut().zip(before), progress)
                }
                None => Ok(()),
            };
            JobError::all_or_first(self.group, result)?;
            before = Some(round);
        }
        let rest = match (exchange.as_mut().zip(before), opened) {
            (Some((exchange, last)), Some((_, read))) => {
                exchange.run(last, &mut |received| progress(read.done() + received))
            }
            _ => Ok(()),
        };
        JobError::all_or_first(self.group, rest.and_then(|()| self.input.check(source.as_std())))
    }

    /// Reads the windows of this host in `round`, and exchanges those of the round before.
    fn round(
        &self,
        source: &File,
        read: &FileRead<'_>,
        round: Range<u64>,
        exchange: Option<(&mut FileExchange<'_>, Range<u64>)>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut received = exchange.as_ref().map_or(0, |(exchange, _)| exchange.received);
        let result = match exchange {
            Some((exchange, last)) => {
                let mut run = || {
                    exchange.run(last.clone(), &mut |bytes| {
                        received = bytes;
                        progress(read.done() + bytes);
                    })
                };
                read.read(round, Some(&mut run), &mut || {})
            }
            None => read.read(round, None, &mut || progress(read.done())),
        };
        progress(read.done() + received);
        result.unwrap_or_else(|problem| match problem {
            ReadFailure::Ended => Err(self.input.ended(source.as_std())),
            ReadFailure::Refused(error) => Err(failure(self.input.path(), &error)),
        })
    }

    /// Opens the file, and maps its memory file unless it is empty. If the page cache has little of
    /// it, it is read bypassing the page cache, even where [`File`] cannot know that (before Linux
    /// 6.5).
    fn open(&self) -> Result<(File, Option<FileMapping>)> {
        let input = self.input;
        let open = |backend| FileOptions::new().backend(backend).open(input.path());
        let mut source = open(Backend::Auto).map_err(|error| opening_failure(input.path(), &error))?;
        let is_through_cache = source.backend().backend == Backend::Posix;
        if is_through_cache && CachedWindows::of(source.as_std(), input.bytes(), WINDOW).are_mostly_absent() {
            // Each thread would need an io_uring, for which these kernels count locked memory.
            source = open(Backend::Direct).unwrap_or(source);
        }
        input.check(source.as_std())?;
        let mapping = if input.bytes() > 0 { Some(self.file.map()?) } else { None };
        Ok((source, mapping))
    }
}
