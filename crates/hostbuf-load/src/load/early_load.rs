//! A load into the buffers of a job by the agents of its hosts, before the ranks have them.

#![allow(
    unsafe_code,
    reason = "writes the root into memory that no other process has, and declares it filled"
)]

use std::path::Path;

use hostbuf::Error;
use hostbuf::job::{Collective, Hosts};
use hostbuf::segment::ControlPage;
use hostbuf_memory::FileMapping;
use hostbuf_os::process;
use hostbuf_staging::ThreadRange;

use super::load_options::LoadOptions;
use super::load_rounds::LoadRounds;
use super::sent_table::send_table;
use crate::counters::LoadCounters;
use crate::error::{LoadError, all_or_none};
use crate::progress::LoadProgress;
use crate::shared::{LoadBoard, LoadMemory, LoadRoot, LoadedRegion};
use crate::table::TensorTable;

/// Files in the memory of a buffer that no rank has yet. The memory stays mapped as long as this
/// exists.
#[derive(Debug)]
pub struct EarlyLoad {
    table: TensorTable,
    progress: LoadProgress,
    root_offset: u64,
}

impl LoadOptions {
    /// Loads files into the memory of an empty buffer that no rank has yet, by one process of each
    /// host: the hosts share the reading, and exchange what they have read. `memory` is the whole
    /// buffer, of at least [`buffer_bytes`](LoadOptions::buffer_bytes), and `paths` are those of
    /// [`TensorTable::read`]; those of the first process count. `observer` is called as
    /// [`load_with`](LoadOptions::load_with) does. Collective.
    ///
    /// # Errors
    /// As [`load`](LoadOptions::load), on all processes. [`LoadError::NoRoom`] means that a file
    /// has grown since the size of the buffer was calculated.
    pub fn load_early(
        self,
        group: &dyn Collective,
        memory: FileMapping,
        buffer: &str,
        paths: &[impl AsRef<Path>],
        observer: &(dyn Fn(&LoadProgress) + Sync),
    ) -> Result<EarlyLoad, LoadError> {
        let _range = ThreadRange::named(|| format!("load {buffer}"));
        all_or_none(group, self.check())?;
        let hosts = Hosts::new(group)?;
        all_or_none(group, is_one_of_each_host(group, &hosts))?;
        let read =
            if group.rank() == 0 { TensorTable::read(paths).map(|t| t.encode()) } else { Ok(Vec::new()) };
        let encoded = send_table(&*hosts.leaders, all_or_none(group, read.map_err(LoadError::from))?);
        let memory = LoadMemory::of_mapping(memory);
        let place = |encoded: Vec<u8>| self.place(&memory, buffer, &encoded);
        let (table, region, root_offset) = all_or_none(group, encoded.and_then(place))?;
        let progress = LoadProgress::new(&region, &table);
        let rounds = LoadRounds { group, hosts: &hosts, options: self, observer };
        rounds.run(&table, &region, &progress)?;
        rounds.end(&progress)?;
        Ok(EarlyLoad { table, progress, root_offset })
    }

    /// Writes the table, the board and the root. Returns the offset of the root.
    fn place(
        &self,
        memory: &LoadMemory,
        buffer: &str,
        encoded: &[u8],
    ) -> Result<(TensorTable, LoadedRegion, u64), LoadError> {
        let table = TensorTable::decode(encoded)?;
        // The block begins where the buffer does, which is at a page of any size.
        let root = LoadRoot::new(&table, encoded.len() as u64, self.window_bytes);
        let (offset, left) = (root.block_bytes(), memory.bytes());
        if offset.checked_add(size_of::<LoadRoot>() as u64).is_none_or(|needed| needed > left) {
            return Err(LoadError::NoRoom { buffer: buffer.to_owned(), needed: offset, left });
        }
        let region = LoadedRegion::new(memory.clone(), root.check(left)?);
        region.write_table(encoded);
        LoadBoard::at(memory, root.board, root.windows()).begin();
        // SAFETY: within the memory, after the block, which ends with a whole page. No other
        // process has the memory.
        unsafe { memory.as_ptr().add(offset as usize).cast::<LoadRoot>().write(root) };
        Ok((table, region, offset))
    }
}

/// Checks that each process of a group is on a host of its own.
fn is_one_of_each_host(group: &dyn Collective, hosts: &Hosts) -> Result<(), LoadError> {
    if hosts.count == group.size() {
        return Ok(());
    }
    let why = format!("{} processes load files on {} hosts: start one on each", group.size(), hosts.count);
    Err(Error::Disagreed { host: process::host_name(), rank: group.rank(), why }.into())
}

impl EarlyLoad {
    /// Returns the table of the loaded files.
    #[must_use]
    pub fn table(&self) -> &TensorTable {
        &self.table
    }

    /// Returns the counters of the load on this host.
    #[must_use]
    pub fn counters(&self) -> LoadCounters {
        self.progress.counters()
    }

    /// Declares the buffer with this index of a control page as filled, so that
    /// [`Tensors::open`](crate::Tensors::open) finds the tensors in each rank, and unmaps the
    /// memory.
    ///
    /// # Safety
    /// The memory is that of this buffer, and no rank has the buffer yet.
    pub unsafe fn publish(self, page: &ControlPage, index: usize) {
        let high_water = self.root_offset + size_of::<LoadRoot>() as u64;
        // SAFETY: the root was written there; the caller guarantees the rest.
        unsafe { page.set_filled::<LoadRoot>(index, self.root_offset, high_water) };
    }
}
