//! The ways to start a load.

use std::path::Path;

use hostbuf::job::{Collective, Reduce};
use hostbuf::{BufferOptions, HostBuffer};

use super::collective_load::CollectiveLoad;
use super::load_options::LoadOptions;
use crate::error::{LoadError, all_or_none};
use crate::progress::LoadProgress;
use crate::table::TensorTable;
use crate::tensors::Tensors;

impl LoadOptions {
    /// Loads files into an empty buffer, by all ranks of `group`. The paths of the first rank
    /// count; they are those of [`TensorTable::read`]. Each byte is read by one rank of the job,
    /// except that the first rank reads the headers before. Collective.
    ///
    /// A buffer into which loading has failed is empty. A process that goes on keeps the memory
    /// that the failed load has used there, as after a failed [`HostBuffer::initialize`], so load
    /// again into a new buffer.
    ///
    /// # Errors
    /// On all ranks: [`LoadError`], of the same [kind](LoadError::kind). The rank that has failed
    /// gets its own error, and the others get [`LoadError::Elsewhere`].
    pub fn load(
        self,
        group: &dyn Collective,
        buffer: &HostBuffer,
        paths: &[impl AsRef<Path>],
    ) -> Result<Tensors, LoadError> {
        self.load_with(group, buffer, paths, &|_| {})
    }

    /// Loads files as [`load`](LoadOptions::load) does. `observer` is called before the first
    /// window is read, and then after each window that this rank has read, in the thread that has
    /// read it. A clone of the progress shows the load to other threads of the rank, until the end.
    ///
    /// # Errors
    /// As [`load`](LoadOptions::load).
    pub fn load_with(
        self,
        group: &dyn Collective,
        buffer: &HostBuffer,
        paths: &[impl AsRef<Path>],
        observer: &(dyn Fn(&LoadProgress) + Sync),
    ) -> Result<Tensors, LoadError> {
        let read = || TensorTable::read(paths);
        CollectiveLoad::new(group, buffer, self, observer)?.run(&read)
    }

    /// Allocates a buffer of the size that the files need, and loads them. `buffer` has the other
    /// options of the buffer. Collective.
    ///
    /// # Errors
    /// As [`HostBuffer::allocate`] and [`load`](LoadOptions::load).
    pub fn allocate_and_load(
        self,
        group: &dyn Collective,
        mut buffer: BufferOptions,
        paths: &[impl AsRef<Path>],
    ) -> Result<Tensors, LoadError> {
        let table = if group.rank() == 0 { TensorTable::read(paths).map(Some) } else { Ok(None) };
        let table = all_or_none(group, table.map_err(LoadError::from))?;
        let bytes = table.as_ref().map_or(Ok(0), |table| self.buffer_bytes(table));
        let mut bytes = [all_or_none(group, bytes)?];
        group.all_reduce(&mut bytes, Reduce::Max)?;
        buffer.size = bytes[0];
        let buffer = HostBuffer::allocate(group, buffer)?;
        let read = || Ok(table.clone().unwrap_or_default());
        CollectiveLoad::new(group, &buffer, self, &|_| {})?.run(&read)
    }
}

/// Loads files into an empty buffer by the default options: [`LoadOptions::load`].
///
/// # Errors
/// As [`LoadOptions::load`].
pub fn load(
    group: &dyn Collective,
    buffer: &HostBuffer,
    paths: &[impl AsRef<Path>],
) -> Result<Tensors, LoadError> {
    LoadOptions::new().load(group, buffer, paths)
}
