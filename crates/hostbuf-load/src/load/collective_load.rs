//! A load by all ranks of a group.
//!
//! ```text
//! rank 0            reads the headers and makes the table
//! leaders           get the table, take memory in their buffers, and write the table there
//! all ranks         read the windows of their host, round by round
//! leaders           send the windows of the round before to the other hosts meanwhile
//! all ranks         check that no file has changed
//! ```
//!
//! Each step ends with one result for all ranks. A rank that has ended is noticed there, by the
//! group: no rank waits for another one outside of a collective operation.

use std::alloc::Layout;

use hostbuf::job::{Collective, Hosts, Reduce};
use hostbuf::{Arena, Error, FillState, HostBuffer, Placed};
use hostbuf_os::process;
use hostbuf_staging::ThreadRange;
use tracing::{info, info_span};

use super::load_options::LoadOptions;
use super::load_rounds::LoadRounds;
use super::sent_table::send_table;
use crate::error::{FileError, LoadError, all_or_none};
use crate::progress::LoadProgress;
use crate::shared::{LoadBoard, LoadMemory, LoadRoot, LoadedRegion};
use crate::table::TensorTable;
use crate::tensors::Tensors;

/// A load by all ranks of a group.
pub(super) struct CollectiveLoad<'l> {
    group: &'l dyn Collective,
    hosts: Hosts,
    buffer: &'l HostBuffer,
    options: LoadOptions,
    observer: &'l (dyn Fn(&LoadProgress) + Sync),
}

impl<'l> CollectiveLoad<'l> {
    /// Checks that the ranks have one buffer, which is empty. Collective.
    ///
    /// # Errors
    /// [`LoadError::Option`]; [`LoadError::Filled`]; [`LoadError::Job`].
    pub(super) fn new(
        group: &'l dyn Collective,
        buffer: &'l HostBuffer,
        options: LoadOptions,
        observer: &'l (dyn Fn(&LoadProgress) + Sync),
    ) -> Result<CollectiveLoad<'l>, LoadError> {
        all_or_none(group, options.check())?;
        let hosts = Hosts::new(group)?;
        buffer.compare(group, &hosts)?;
        let is_filled = match buffer.fill_state() {
            Ok(FillState::Filled | FillState::Frozen) => Err(filled(buffer)),
            Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        };
        all_or_none(group, is_filled)?;
        Ok(CollectiveLoad { group, hosts, buffer, options, observer })
    }

    /// Loads the files of the table that `read` returns on the first rank. Collective.
    ///
    /// # Errors
    /// As [`LoadOptions::load`].
    pub(super) fn run(
        &self,
        read: &dyn Fn() -> Result<TensorTable, FileError>,
    ) -> Result<Tensors, LoadError> {
        let _span = info_span!("load", buffer = %self.buffer.name()).entered();
        let _range = ThreadRange::named(|| format!("load {}", self.buffer.name()));
        let table = if self.group.rank() == 0 { read().map(|table| table.encode()) } else { Ok(Vec::new()) };
        let table = all_or_none(self.group, table.map_err(LoadError::from))?;
        let table = if self.hosts.leads() { send_table(&*self.hosts.leaders, table) } else { Ok(table) };
        let table = all_or_none(self.group, table)?;
        let tensors = if self.hosts.leads() { self.lead(&table)? } else { self.follow()? };
        // A rank that goes on finds the buffers of all hosts filled.
        self.group.barrier()?;
        let counters = tensors.counters();
        if self.group.rank() == 0 {
            info!(
                bytes = counters.file_bytes,
                hosts = self.hosts.count,
                elapsed = ?counters.elapsed,
                bound = counters.bound().map_or(String::new(), |bound| bound.to_string()),
                "loaded"
            );
        }
        Ok(tensors)
    }

    /// Loads as the leader of a host, which fills the buffer.
    fn lead(&self, table: &[u8]) -> Result<Tensors, LoadError> {
        let mut loaded = None;
        let initialized = self.buffer.initialize(|arena| {
            let (root, result) = self.fill(arena, table);
            loaded = Some(result);
            // The error itself is in `loaded`.
            root.ok_or_else(|| Error::invalid("loading has failed"))
        });
        match (loaded, initialized) {
            (Some(Ok(tensors)), Ok(_)) => Ok(tensors),
            (Some(Err(error)), _) => Err(error),
            (Some(Ok(_)), Err(error)) => Err(error.into()),
            // Another process has filled the buffer meanwhile, so this one takes part in the first
            // step of the others.
            (None, other) => {
                let own = other.map_or_else(LoadError::from, |_| filled(self.buffer));
                all_or_none(self.group, Err::<(), _>(own))?;
                Err(filled(self.buffer))
            }
        }
    }

    /// Takes memory, and reads into it. Returns the root if the load has succeeded on all ranks.
    fn fill<'b>(
        &self,
        arena: Arena<'b>,
        table: &[u8],
    ) -> (Option<Placed<'b, LoadRoot>>, Result<Tensors, LoadError>) {
        let taken = self.take(arena, table);
        match all_or_none(self.group, taken) {
            Ok(placed) => {
                let offset = placed.as_ptr().as_ptr() as u64 - self.buffer.as_ptr().as_ptr() as u64;
                let result = self.read(offset);
                (result.is_ok().then_some(placed), result)
            }
            Err(error) => (None, Err(error)),
        }
    }

    /// Takes memory in the buffer, and writes the table and the board there.
    fn take<'b>(&self, arena: Arena<'b>, table: &[u8]) -> Result<Placed<'b, LoadRoot>, LoadError> {
        let decoded = TensorTable::decode(table)?;
        let root = LoadRoot::new(&decoded, table.len() as u64, self.options.window_bytes);
        let no_room = |error: Error| match error {
            Error::Full { left, .. } => {
                let needed = root.block_bytes();
                LoadError::NoRoom { buffer: self.buffer.name(), needed, left }
            }
            other => other.into(),
        };
        let layout = Layout::from_size_align(root.block_bytes() as usize, root.alignment() as usize);
        let layout = layout.map_err(|_| {
            no_room(Error::Full { requested: root.block_bytes(), left: arena.left().unwrap_or(0) })
        })?;
        let block = arena.take(layout).map_err(no_room)?;
        let root = root.at(block.as_ptr() as u64 - self.buffer.as_ptr().as_ptr() as u64);
        let region =
            LoadedRegion::new(LoadMemory::of_buffer(self.buffer), root.check(self.buffer.len() as u64)?);
        region.write_table(table);
        LoadBoard::at(region.memory(), root.board, root.windows()).begin();
        arena.place(root).map_err(no_room)
    }

    /// Loads as another rank of a host.
    fn follow(&self) -> Result<Tensors, LoadError> {
        all_or_none(self.group, Ok(()))?;
        // A minimum of all ranks does not change by this.
        self.read(u64::MAX)
    }

    /// Reads all windows. `offset` is that of the root on leaders, and the largest number on
    /// others.
    fn read(&self, offset: u64) -> Result<Tensors, LoadError> {
        // The offset is the same on all hosts, so that tensors have one address in all ranks.
        let mut offsets = [offset, if self.hosts.leads() { !offset } else { u64::MAX }];
        self.group.all_reduce(&mut offsets, Reduce::Min)?;
        if offsets[0] != !offsets[1] {
            let why = format!(
                "its buffer \"{}\" has other contents than those of other hosts: load into a new buffer",
                self.buffer.name()
            );
            let (host, rank) = (process::host_name(), self.group.rank());
            return Err(Error::Disagreed { host, rank, why }.into());
        }
        let tensors = LoadRoot::read(self.buffer, offsets[0]).and_then(|root| Tensors::at(self.buffer, root));
        let tensors = all_or_none(self.group, tensors)?;
        let progress = tensors.progress();
        let rounds = LoadRounds {
            group: self.group,
            hosts: &self.hosts,
            options: self.options,
            observer: self.observer,
        };
        rounds.run(tensors.table(), tensors.region(), &progress)?;
        rounds.end(&progress)?;
        Ok(tensors)
    }
}

fn filled(buffer: &HostBuffer) -> LoadError {
    LoadError::Filled { buffer: buffer.name() }
}
