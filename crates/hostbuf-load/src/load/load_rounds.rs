//! The rounds in which the ranks read windows, and the leaders exchange those of the round before.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread;

use hostbuf::Error;
use hostbuf::job::{Collective, Hosts, Reduce};

use super::exchange::{WindowExchange, windows_of};
use super::load_options::LoadOptions;
use super::open_files::OpenFiles;
use super::window_reader::WindowReader;
use crate::clock::since_boot;
use crate::error::{LoadError, all_or_none};
use crate::progress::LoadProgress;
use crate::shared::LoadedRegion;
use crate::table::TensorTable;

/// The number of windows of each host that are read before they are exchanged.
const ROUND: u64 = 64;

/// The rounds of a load.
pub(super) struct LoadRounds<'l> {
    pub(super) group: &'l dyn Collective,
    pub(super) hosts: &'l Hosts,
    pub(super) options: LoadOptions,
    pub(super) observer: &'l (dyn Fn(&LoadProgress) + Sync),
}

impl LoadRounds<'_> {
    /// Reads and exchanges windows, round by round, and checks the files. Collective.
    ///
    /// # Errors
    /// [`LoadError::File`], [`LoadError::Damaged`] and [`LoadError::Job`], on all ranks.
    pub(super) fn run(
        &self,
        table: &TensorTable,
        region: &LoadedRegion,
        progress: &LoadProgress,
    ) -> Result<(), LoadError> {
        let (hosts, board) = (self.hosts, progress.board());
        let windows = region.root().windows();
        let own = windows_of(hosts.index, hosts.count, windows);
        let files = OpenFiles::new(table, self.options.backend, hosts.index.0 == 0);
        let workers = self.options.workers_of(hosts.local.size());
        board.counters().readers.fetch_add(workers as u64, Ordering::Relaxed);
        let reader = WindowReader {
            table,
            region,
            board,
            files: &files,
            windows: own.clone(),
            piece_bytes: self.options.piece_bytes,
            progress,
            observer: self.observer,
        };
        // A rank that reads no window also gets the progress.
        (self.observer)(progress);
        let mut exchange = WindowExchange { hosts, region, board, digest: 0 };
        let mut before: Option<Range<u64>> = None;
        for round in rounds(hosts.count, windows) {
            let limit = round.end.min(own.end - own.start);
            let result = self.read_round(&reader, workers, limit, before.map(|last| (&mut exchange, last)));
            all_or_none(self.group, result)?;
            before = Some(round);
        }
        let rest = match before {
            Some(last) if hosts.count > 1 && hosts.leads() => {
                exchange.run(last).and_then(|()| exchange.compare())
            }
            _ => Ok(()),
        };
        all_or_none(self.group, rest.and_then(|()| files.check().map_err(LoadError::from)))?;
        let is_complete = (0..windows).all(|window| board.is_ready(window));
        all_or_none(self.group, if is_complete { Ok(()) } else { Err(LoadError::Damaged) })
    }

    /// Completes the counters. Collective.
    pub(super) fn end(&self, progress: &LoadProgress) -> Result<(), LoadError> {
        let counters = progress.board().counters();
        let own = if self.hosts.leads() { counters.bytes_read.load(Ordering::Relaxed) } else { 0 };
        let mut bytes = [own];
        self.group.all_reduce(&mut bytes, Reduce::Sum)?;
        if self.hosts.leads() {
            counters.job_bytes_read.store(bytes[0], Ordering::Relaxed);
            counters.ended.store(since_boot().as_nanos() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Reads windows up to `limit` by several threads. The leader exchanges those of the round
    /// before meanwhile.
    fn read_round(
        &self,
        reader: &WindowReader<'_>,
        workers: usize,
        limit: u64,
        exchange: Option<(&mut WindowExchange<'_>, Range<u64>)>,
    ) -> Result<(), LoadError> {
        thread::scope(|scope| {
            let spawn = |_| {
                let named = thread::Builder::new().name("hostbuf-load".into());
                named.spawn_scoped(scope, || reader.read(limit))
            };
            // This thread exchanges, or reads.
            let exchanges = exchange.is_some() && self.hosts.leads() && self.hosts.count > 1;
            let threads: Vec<_> = (usize::from(!exchanges)..workers).map(spawn).collect();
            let mut result = match exchange {
                Some((exchange, last)) if exchanges => exchange.run(last),
                _ => reader.read(limit),
            };
            if result.is_err() {
                reader.board.stop();
            }
            for thread in threads {
                let ended = match thread {
                    Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                    Err(error) => {
                        reader.board.stop();
                        Err(Error::os("starting a thread that reads (raise ulimit -u)")(error).into())
                    }
                };
                result = result.and(ended);
            }
            result
        })
    }
}

/// Returns the rounds: ranges of the numbers of windows among those of each host. A single host has
/// nothing to exchange, and reads all in one round.
fn rounds(hosts: usize, windows: u64) -> Vec<Range<u64>> {
    let most = windows.div_ceil(hosts as u64);
    let round = if hosts == 1 { most.max(1) } else { ROUND };
    (0..most.div_ceil(round)).map(|number| number * round..((number + 1) * round).min(most)).collect()
}
