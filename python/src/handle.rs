//! Buffers: attach, allocate, replicate to other hosts, freeze.

use std::sync::Mutex;

use hostbuf::job::all_or_none;
use hostbuf::{BufferOptions, Error, FillState, HostBuffer, Pages, Proof};
use hostbuf_os::poison::IgnorePoison;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::arguments::{argument, bytes};
use crate::comm::RankGroup;
use crate::error::{outside, raised};
use crate::placement::{self, SectionFields};
use crate::writers::Writers;

/// A handle of a buffer, until it is closed.
#[pyclass(frozen, name = "Handle", module = "hostbuf._hostbuf")]
pub struct BufferHandle {
    buffer: Mutex<Option<HostBuffer>>,
}

/// The description of a buffer, in the order of the fields of the package's `Info`.
type Info = (String, usize, usize, String, u64, &'static str, u64, u64, usize, usize, Option<u32>, bool);

impl From<HostBuffer> for BufferHandle {
    fn from(buffer: HostBuffer) -> BufferHandle {
        BufferHandle { buffer: Mutex::new(Some(buffer)) }
    }
}

impl BufferHandle {
    /// Returns the buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the handle is closed.
    pub fn open(&self) -> hostbuf::Result<HostBuffer> {
        let held = self.buffer.lock().ignore_poison();
        held.clone().ok_or_else(|| Error::Invalid { what: "the buffer is closed".into() })
    }

    /// Returns the buffer.
    ///
    /// # Errors
    /// ValueError if the handle is closed.
    pub fn buffer(&self) -> PyResult<HostBuffer> {
        self.open().map_err(|error| PyValueError::new_err(error.to_string()))
    }
}

#[pymethods]
impl BufferHandle {
    fn close(&self) {
        drop(self.buffer.lock().ignore_poison().take());
    }

    #[getter]
    fn closed(&self) -> bool {
        self.buffer.lock().ignore_poison().is_none()
    }

    fn address(&self) -> PyResult<usize> {
        Ok(self.buffer()?.as_ptr().as_ptr() as usize)
    }

    fn size(&self) -> PyResult<usize> {
        Ok(self.buffer()?.len())
    }

    fn frozen(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.buffer()?.fill_state().map_err(|error| raised(py, error))?;
        Ok(state == FillState::Frozen)
    }

    /// Returns the number of writable views of the buffer in this process.
    fn writers(&self) -> PyResult<usize> {
        Ok(Writers::of(&self.buffer()?).count())
    }

    fn info(&self, py: Python<'_>) -> PyResult<Info> {
        let buffer = self.buffer()?;
        outside(py, || {
            let state = match buffer.fill_state()? {
                FillState::Empty => "empty",
                FillState::Filling => "filling",
                FillState::Filled => "filled",
                FillState::Frozen => "frozen",
                _ => "unknown",
            };
            let (host, hosts) = (buffer.host().map_or(0, |host| host.0), buffer.hosts());
            let address = buffer.as_ptr().as_ptr() as usize;
            let pages = buffer.pages().to_string();
            let (generation, used) = (buffer.generation()?, buffer.high_water()?);
            let (huge, read) = (buffer.huge_bytes(), buffer.read_node());
            Ok::<_, Error>((
                buffer.name(),
                address,
                buffer.len(),
                pages,
                huge,
                state,
                generation,
                used,
                host,
                hosts,
                read.map(|read| read.node.0),
                read.is_some_and(|read| read.is_local),
            ))
        })
    }

    fn sections(&self) -> PyResult<Vec<SectionFields>> {
        Ok(placement::described(&self.buffer()?))
    }

    /// Returns the offset and the length of a section.
    fn section(&self, py: Python<'_>, name: &str) -> PyResult<(usize, usize)> {
        let buffer = self.buffer()?;
        let span = buffer.section(name).map_err(|error| raised(py, error))?;
        Ok((span.start() - buffer.as_ptr().as_ptr() as usize, span.len()))
    }

    fn replicate(&self, py: Python<'_>, comm: &Bound<'_, PyAny>, root: &Bound<'_, PyAny>) -> PyResult<()> {
        let group = RankGroup::of(comm)?;
        let size = group.ranks().size();
        let ready = argument::<usize>("root", root).and_then(|root| match root < size {
            true => Ok((self.open().map_err(|error| raised(py, error))?, root)),
            false => Err(raised(
                py,
                Error::Invalid {
                    what: format!("invalid root {root}: expected a rank of comm, 0 to {}", size - 1),
                },
            )),
        });
        group.collective(py, ready, |ranks, (buffer, root)| buffer.replicate(ranks, root))
    }

    /// Freezes the buffer. Returns `None` if the kernel has sealed it, otherwise the reason why
    /// not.
    fn freeze(&self, py: Python<'_>, comm: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
        let group = RankGroup::of(comm)?;
        let open = self.open();
        group.outside(py, |ranks| {
            let ready = open.and_then(|buffer| match Writers::of(&buffer).block() {
                Ok(freezing) => Ok((buffer, freezing)),
                Err(count) => Err(Error::Freeze {
                    why: format!(
                        "the buffer cannot be frozen: this process has {count} writable arrays or views of buffer \"{}\", and a write \
                         through one would kill it: delete them, or use the objects that initialize and root return",
                        buffer.name()
                    ),
                }),
            });
            // No writable view is made until the freeze has ended.
            let (buffer, _freezing) = all_or_none(ranks, ready)?;
            let frozen = buffer.freeze(ranks)?;
            Ok(match frozen.proof() {
                Proof::Sealed => None,
                Proof::Weaker { why } => Some(why.clone()),
                other => Some(format!("{other:?}")),
            })
        })
    }
}

#[pyfunction]
pub fn launched() -> bool {
    HostBuffer::is_launched()
}

#[pyfunction]
pub fn attach(py: Python<'_>, name: Option<String>) -> PyResult<BufferHandle> {
    outside(py, || match &name {
        Some(name) => HostBuffer::attach_named(name),
        None => HostBuffer::attach(),
    })
    .map(BufferHandle::from)
}

/// Returns all buffers that the launcher mapped in this process, or none without a launcher.
#[pyfunction]
pub fn given(py: Python<'_>) -> PyResult<Vec<BufferHandle>> {
    let found = outside(py, || match HostBuffer::attach_all() {
        Err(Error::Attach { .. }) => Ok(Vec::new()),
        other => other,
    })?;
    Ok(found.into_iter().map(BufferHandle::from).collect())
}

#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the keywords of the package's function")]
pub fn allocate(
    py: Python<'_>,
    comm: &Bound<'_, PyAny>,
    size: &Bound<'_, PyAny>,
    name: &Bound<'_, PyAny>,
    pages: &Bound<'_, PyAny>,
    lazy: &Bound<'_, PyAny>,
    dump: &Bound<'_, PyAny>,
    numa: &Bound<'_, PyAny>,
    sections: &Bound<'_, PyAny>,
) -> PyResult<BufferHandle> {
    let group = RankGroup::of(comm)?;
    let wanted = || {
        let wanted = argument::<String>("pages", pages)?;
        let wanted: Pages = wanted.parse().map_err(|error| raised(py, error))?;
        let name = argument::<String>("name", name)?;
        let is_sum = size.is_none() && !sections.is_none();
        let size = if is_sum { 0 } else { bytes("size", size)? };
        let mut options = BufferOptions::new(size).pages(wanted).name(&name);
        (options.lazy, options.dump) = (argument::<bool>("lazy", lazy)?, argument::<bool>("dump", dump)?);
        options.numa = placement::placement("numa", numa)?;
        options.sections = placement::sections(sections)?;
        Ok(options)
    };
    group
        .collective(py, wanted(), |ranks, options| HostBuffer::allocate(ranks, options))
        .map(BufferHandle::from)
}
