//! The tensors that were loaded into a buffer.

use hostbuf::{AttachError, Error, HostBuffer};

use crate::copy_times::CopyTimes;
use crate::counters::LoadCounters;
use crate::error::LoadError;
use crate::progress::LoadProgress;
use crate::shared::{LoadMemory, LoadRoot, LoadedRegion};
use crate::slice::{FusedPart, SliceError, TensorSlice};
use crate::table::{TensorEntry, TensorTable};

/// The tensors that were loaded into a buffer. It keeps the buffer mapped. All ranks see the same
/// bytes, on all hosts at the same addresses.
#[derive(Clone, Debug)]
pub struct Tensors {
    buffer: HostBuffer,
    region: LoadedRegion,
    table: TensorTable,
    /// Those of the load that has returned this.
    copies: CopyTimes,
}

/// A tensor in a buffer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Tensor<'t> {
    /// The description.
    pub entry: &'t TensorEntry,
    /// The bytes, in the buffer.
    pub bytes: &'t [u8],
}

impl Tensors {
    /// The name of the buffer into which `hostbuf run --load` loads files.
    pub const BUFFER: &str = "loaded";

    /// Returns the tensors of a buffer into which files were loaded, by any program of the job.
    /// Local, not collective.
    ///
    /// # Errors
    /// [`LoadError::NotLoaded`] if the buffer is not filled; [`LoadError::Job`] if another object
    /// fills it; [`LoadError::Table`] or [`LoadError::Damaged`] if a process has overwritten the
    /// description of the tensors.
    pub fn open(buffer: &HostBuffer) -> Result<Tensors, LoadError> {
        let root = buffer.root::<LoadRoot>()?;
        let root = root.ok_or_else(|| LoadError::NotLoaded { buffer: buffer.name() })?;
        Tensors::at(buffer, *root)
    }

    /// Returns the tensors of the files that `hostbuf run --load` has loaded before `main`, or
    /// `None` if it has loaded none. Local, not collective.
    ///
    /// # Errors
    /// As [`HostBuffer::attach_named`] and [`open`](Tensors::open). A job without the buffer is not
    /// an error.
    pub fn loaded() -> Result<Option<Tensors>, LoadError> {
        if !HostBuffer::is_launched() {
            return Ok(None);
        }
        match HostBuffer::attach_named(Tensors::BUFFER) {
            Ok(buffer) => Tensors::open(&buffer).map(Some),
            Err(Error::Attach(AttachError::UnknownBuffer { .. })) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn at(buffer: &HostBuffer, root: LoadRoot) -> Result<Tensors, LoadError> {
        let region = LoadedRegion::new(LoadMemory::of_buffer(buffer), root.check(buffer.len() as u64)?);
        let table = TensorTable::decode(&region.table_copy())?;
        if table.region_bytes() != root.region_bytes {
            return Err(LoadError::Damaged);
        }
        Ok(Tensors { buffer: buffer.clone(), region, table, copies: CopyTimes::default() })
    }

    /// Sets the times of the copies during the load.
    pub(crate) fn with_copies(self, copies: CopyTimes) -> Tensors {
        Tensors { copies, ..self }
    }

    pub(crate) fn region(&self) -> &LoadedRegion {
        &self.region
    }

    /// Returns the buffer.
    #[must_use]
    pub fn buffer(&self) -> &HostBuffer {
        &self.buffer
    }

    /// Returns the table: all files and all tensors, sorted by name.
    #[must_use]
    pub fn table(&self) -> &TensorTable {
        &self.table
    }

    /// Returns the counters of the load on this host. Those of copies to a device are 0 unless
    /// [`LoadOptions::load_to_device`](crate::LoadOptions::load_to_device) has returned this.
    #[must_use]
    pub fn counters(&self) -> LoadCounters {
        self.copies.complete(self.progress().counters())
    }

    /// Returns the progress of the load, which has ended.
    #[must_use]
    pub fn progress(&self) -> LoadProgress {
        LoadProgress::new(&self.region, &self.table)
    }

    fn entry(&self, name: &str) -> Result<&TensorEntry, LoadError> {
        let tensors = self.table.tensors().len();
        self.table.get(name).ok_or_else(|| LoadError::NoTensor { name: name.to_owned(), tensors })
    }

    /// Returns a tensor.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`].
    pub fn get(&self, name: &str) -> Result<Tensor<'_>, LoadError> {
        self.entry(name).map(|entry| self.tensor(entry))
    }

    /// Returns all tensors, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = Tensor<'_>> {
        self.table.tensors().iter().map(|entry| self.tensor(entry))
    }

    fn tensor<'t>(&'t self, entry: &'t TensorEntry) -> Tensor<'t> {
        let start = self.table.region_offset(entry);
        Tensor { entry, bytes: self.region.bytes(start..start + entry.bytes()) }
    }

    /// Returns the bytes of a whole file with its header, by its index in
    /// [`TensorTable::files`]. `None` if there is no such file.
    #[must_use]
    pub fn file_bytes(&self, file: usize) -> Option<&[u8]> {
        let file = self.table.files().get(file)?;
        Some(self.region.bytes(file.region_offset..file.region_end()))
    }

    /// Returns the part of rank `rank` of `ranks` along dimension `dim` of a tensor, as
    /// [`TensorEntry::slice`] divides it. Its parts are offsets in [`Tensor::bytes`].
    ///
    /// # Errors
    /// [`LoadError::NoTensor`]; [`LoadError::Slice`].
    pub fn slice(&self, name: &str, dim: usize, rank: usize, ranks: usize) -> Result<TensorSlice, LoadError> {
        self.entry(name)?.slice(dim, rank, ranks).map_err(of_tensor(name))
    }

    /// Returns the shares of rank `rank` of `ranks` of the parts of a fused tensor, as
    /// [`TensorEntry::fused_slice`] divides them.
    ///
    /// # Errors
    /// [`LoadError::NoTensor`]; [`LoadError::Slice`].
    pub fn fused_slice(
        &self,
        name: &str,
        dim: usize,
        parts: &[FusedPart],
        rank: usize,
        ranks: usize,
    ) -> Result<TensorSlice, LoadError> {
        self.entry(name)?.fused_slice(dim, parts, rank, ranks).map_err(of_tensor(name))
    }
}

fn of_tensor(name: &str) -> impl FnOnce(SliceError) -> LoadError {
    let tensor = name.to_owned();
    move |source| LoadError::Slice { tensor, source }
}
