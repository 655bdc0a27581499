//! Files of tensors: their headers, and loading them into a buffer.

use std::path::PathBuf;

use hostbuf::BufferOptions;
use hostbuf_load::{
    ArrayOrder, ByteOrder, FileFormat, LoadOptions, SourceFile, TensorEntry, TensorTable, Tensors,
};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::comm::RankGroup;
use crate::handle::BufferHandle;
use crate::load_error::load_raised;
use crate::pool_error::invalid;
use crate::tensor_slices::TensorSlices;

/// A file: its path, the name of its format, and the texts of its header.
type FileFields = (PathBuf, &'static str, Vec<(String, String)>);

/// A tensor: its name, its type, its shape, whether it is in Fortran order and whether it is
/// big-endian, the index of its file, its offset, and its number of bytes. The offset is that in
/// the file, or in the buffer.
type EntryFields = (String, &'static str, Py<PyTuple>, bool, bool, usize, u64, u64);

/// Returns the name of a format.
fn format_name(format: FileFormat) -> &'static str {
    match format {
        FileFormat::Safetensors => "safetensors",
        FileFormat::Npy => "npy",
        FileFormat::ArrowIpc => "arrow",
        _ => "raw",
    }
}

fn files(table: &TensorTable) -> Vec<FileFields> {
    let fields = |file: &SourceFile| (file.path.clone(), format_name(file.format), file.metadata.clone());
    table.files().iter().map(fields).collect()
}

fn entry(py: Python<'_>, entry: &TensorEntry, offset: u64) -> PyResult<EntryFields> {
    Ok((
        entry.name.clone(),
        entry.dtype.name(),
        PyTuple::new(py, &entry.shape)?.unbind(),
        entry.order == ArrayOrder::Fortran,
        entry.byte_order == ByteOrder::Big,
        entry.file,
        offset,
        entry.bytes(),
    ))
}

/// Reads the headers of files. With a format, there is one path, which is a file of that format.
#[pyfunction]
pub fn read_table(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    format: Option<&str>,
) -> PyResult<(Vec<FileFields>, Vec<EntryFields>)> {
    let read = py.detach(|| match (format, &paths[..]) {
        (Some("safetensors"), [path]) => Some(TensorTable::read_as(FileFormat::Safetensors, path)),
        (Some(_), _) => None,
        (None, paths) => Some(TensorTable::read(paths)),
    });
    let read = read.ok_or_else(|| invalid(py, "invalid format: expected safetensors, with one path"))?;
    let table = read.map_err(|error| load_raised(py, error.into()))?;
    let entries =
        table.tensors().iter().map(|one| entry(py, one, one.range.start)).collect::<PyResult<_>>()?;
    Ok((files(&table), entries))
}

/// A buffer with tensors, its files, the tensors at their offsets in it, and their slices.
type LoadedFields = (BufferHandle, Vec<FileFields>, Vec<EntryFields>, TensorSlices);

fn loaded_fields(py: Python<'_>, tensors: &Tensors) -> PyResult<LoadedFields> {
    let start = tensors.buffer().as_ptr().as_ptr() as u64;
    let entries = tensors.iter().map(|one| entry(py, one.entry, one.bytes.as_ptr() as u64 - start));
    let entries = entries.collect::<PyResult<_>>()?;
    let handle = BufferHandle::from(tensors.buffer().clone());
    Ok((handle, files(tensors.table()), entries, TensorSlices(tensors.clone())))
}

/// Returns the tensors that `hostbuf run --load` has loaded, if it has loaded any.
#[pyfunction]
pub fn loaded_files(py: Python<'_>) -> PyResult<Option<LoadedFields>> {
    let tensors = py.detach(Tensors::loaded).map_err(|error| load_raised(py, error))?;
    tensors.map(|tensors| loaded_fields(py, &tensors)).transpose()
}

/// Loads files into a new buffer. Collective.
#[pyfunction]
pub fn load_files(
    py: Python<'_>,
    comm: &Bound<'_, PyAny>,
    paths: Vec<PathBuf>,
    name: &str,
    backend: &str,
) -> PyResult<LoadedFields> {
    let group = RankGroup::of(comm)?;
    let backend = backend.parse().map_err(|why: String| invalid(py, why))?;
    let options = LoadOptions::new().backend(backend);
    let buffer = BufferOptions::new(0).name(name);
    let loaded = py.detach(|| options.allocate_and_load(group.ranks(), buffer, &paths));
    if let Some(interrupt) = group.interrupted() {
        return Err(interrupt);
    }
    let tensors: Tensors = loaded.map_err(|error| load_raised(py, error))?;
    loaded_fields(py, &tensors)
}
