//! Finds the file under an address range, and registers it once.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use hostbuf_os::fork_guard::ForkGuard;
use hostbuf_os::mapping_query::ProcessMaps;
use hostbuf_os::poison::IgnorePoison;
use hostbuf_register::{Access, Registrar, Span};

use super::adopted::Adopted;
use super::error::AdoptError;
use super::file_range::FileRange;
use super::memory_file::{MemoryFile, name_of};
use super::options::AdoptOptions;
use super::second_mapping::SecondMapping;
use super::segment::{AdoptedSegment, BudgetShare, SegmentUsage, check_size};
use super::segment_table::SegmentTable;

/// The means to adopt memory that other libraries have mapped, for one device. See the
/// [module](crate::adopt).
///
/// It registers each file once, whole, for reading unless writing was requested, and keeps the
/// registration for later arrays in the same file. If the byte budget needs room, it ends the
/// registrations that are not held, the least recently used one first.
///
/// Several threads may use one adopter. A process needs one for each device:
/// [`process_adopter`](super::process_adopter) returns it.
pub struct Adopter<R: Registrar> {
    registrar: Arc<R>,
    options: AdoptOptions,
    maps: ProcessMaps,
    fork_guard: ForkGuard,
    table: Mutex<SegmentTable<R>>,
    /// The lock of a thread that registers. Threads with a registered file do not wait for it.
    registering: Mutex<()>,
    usage: Arc<Mutex<SegmentUsage>>,
}

impl<R: Registrar> Adopter<R> {
    /// Makes an adopter that registers with `registrar`.
    ///
    /// # Errors
    /// [`AdoptError::Os`] if `/proc` is not mounted: without it nothing can be proven.
    pub fn new(registrar: Arc<R>, options: AdoptOptions) -> Result<Adopter<R>, AdoptError> {
        let maps = ProcessMaps::open().map_err(hostbuf_os::Error::of("opening /proc/self/maps"))?;
        Ok(Adopter {
            registrar,
            options,
            maps,
            fork_guard: ForkGuard::current(),
            table: Mutex::new(SegmentTable::new()),
            registering: Mutex::new(()),
            usage: Arc::default(),
        })
    }

    /// Returns the registrar of the device.
    #[must_use]
    pub fn registrar(&self) -> &Arc<R> {
        &self.registrar
    }

    /// Returns the number of registered bytes, including those of files that are only held.
    #[must_use]
    pub fn registered_bytes(&self) -> usize {
        self.usage.lock().ignore_poison().bytes
    }

    /// Returns the number of registrations, including those of files that are only held.
    #[must_use]
    pub fn registered_files(&self) -> usize {
        self.usage.lock().ignore_poison().segments
    }

    /// Ends all registrations that are not held.
    pub fn evict_all(&self) {
        if self.fork_guard.is_current() {
            self.evict_while(|| true);
        }
    }

    /// Finds the memory file that `span` shows now, registers it for at least `access` unless it is
    /// registered, and holds the registration.
    ///
    /// The caller keeps the array at `span` alive as long as the device uses the bytes: until the
    /// hold is dropped, or ended by [`release_after`](Adopted::release_after).
    ///
    /// # Errors
    /// An [`AdoptError`] for memory that cannot be adopted; nothing has changed, and the caller
    /// copies the bytes instead. [`AdoptError::Budget`] if the files that are held leave no room
    /// for this one.
    pub fn adopt(&self, span: Span, access: Access) -> Result<Adopted<R>, AdoptError> {
        if !self.fork_guard.is_current() {
            return Err(AdoptError::Forked);
        }
        loop {
            let range = FileRange::of(&self.maps, span)?;
            if access.writes() && !range.writable {
                let (name, why) = (name_of(&range), "this process has mapped it for reading".to_owned());
                return Err(AdoptError::ReadOnly { span, name, why });
            }
            if let Some(adopted) = self.find(&range, access)? {
                return Ok(adopted);
            }
            let registering = self.registering.lock().ignore_poison();
            // Another thread may have registered the file meanwhile.
            let adopted = match self.find(&range, access)? {
                Some(adopted) => adopted,
                None => self.register(&range, access)?,
            };
            drop(registering);
            // This has taken some time, so the proof is repeated.
            let now = FileRange::of(&self.maps, span)?;
            if (now.file, now.offset) == (range.file, range.offset) {
                return Ok(adopted);
            }
        }
    }

    /// Returns a hold on the registration that has the pages of `range`, if there is one.
    fn find(&self, range: &FileRange, access: Access) -> Result<Option<Adopted<R>>, AdoptError> {
        let found = self.table.lock().ignore_poison().find(range.file);
        let Some(segment) = found else { return Ok(None) };
        if !segment.access().allows(access) {
            return Ok(None);
        }
        let serves = segment.serves(range);
        if matches!(serves, Ok(true)) {
            return Ok(Some(Adopted::new(segment, range)));
        }
        // Other arrays in the old pages keep the registration until their holds end.
        self.table.lock().ignore_poison().remove_same(range.file, &segment);
        serves.map(|_| None)
    }

    /// Registers the file of `range`. The caller has the lock `registering`.
    fn register(&self, range: &FileRange, access: Access) -> Result<Adopted<R>, AdoptError> {
        // A file that is also registered with less access is registered for both uses.
        let old = self.table.lock().ignore_poison().find(range.file);
        let access = old.as_ref().map_or(access, |old| old.access() | access);
        let file = MemoryFile::open(range, access.writes())?;
        let state = file.state()?;
        check_size(range, state)?;
        let too_long = || AdoptError::Invalid(format!("a file of {} bytes is too long", state.size));
        let length = state.size.checked_next_multiple_of(file.page()).ok_or_else(too_long)?;
        let length = usize::try_from(length).map_err(|_| too_long())?;
        drop(old);
        let abandoned = {
            let mut table = self.table.lock().ignore_poison();
            (table.remove(range.file), table.remove_abandoned())
        };
        drop(abandoned);
        let share = self.make_room(range, length)?;
        let mapping = SecondMapping::new(file.file(), length, access.writes())
            .map_err(|error| self.not_mapped(range, &file, access, length, error))?;
        let retry = |error: &hostbuf_register::Error| {
            let short = is_out_of_memory(error);
            if short {
                self.evict_while(|| true);
            }
            short
        };
        let segment = AdoptedSegment::new(&self.registrar, file, state, mapping, share, access, retry)?;
        let segment = Arc::new(segment);
        self.table.lock().ignore_poison().insert(range.file, segment.clone());
        Ok(Adopted::new(segment, range))
    }

    /// Takes the share of a file of `length` bytes in the budget, and evicts others for it.
    fn make_room(&self, range: &FileRange, length: usize) -> Result<BudgetShare, AdoptError> {
        let granularity = self.registrar.properties().granularity;
        let requested = length.checked_next_multiple_of(granularity).unwrap_or(usize::MAX);
        let budget = self.options.bytes;
        // If it fits in no case, the others stay.
        let mut share = BudgetShare::take(&self.usage, requested, budget);
        if share.is_err() && requested <= budget {
            self.evict_while(|| {
                share = BudgetShare::take(&self.usage, requested, budget);
                share.is_err()
            });
        }
        share.map_err(|usage| AdoptError::Budget {
            span: range.span,
            requested,
            budget,
            held: usage.bytes,
            segments: usage.segments,
        })
    }

    /// Evicts segments that are not held, the least recently used one first, while `more` returns
    /// true. It is called once more after the last segment.
    fn evict_while(&self, mut more: impl FnMut() -> bool) {
        while more() {
            // Dropped without the lock: ending a registration takes long.
            let evicted = self.table.lock().ignore_poison().evict();
            if evicted.is_none() {
                return;
            }
        }
    }

    /// Returns the error for a file that could not be mapped.
    fn not_mapped(
        &self,
        range: &FileRange,
        file: &MemoryFile,
        access: Access,
        length: usize,
        error: io::Error,
    ) -> AdoptError {
        let (span, name) = (range.span, name_of(range));
        match error.raw_os_error() {
            // The file has become shorter since its size was read.
            Some(libc::EFAULT) => match file.state() {
                Ok(state) => AdoptError::Truncated { span, needed: length as u64, size: state.size },
                Err(error) => error,
            },
            Some(libc::EPERM | libc::EACCES) if access.writes() => {
                let why = "the file is sealed against writing".to_owned();
                AdoptError::ReadOnly { span, name, why }
            }
            _ => {
                hostbuf_os::Error::of(format!("mapping \"{name}\" ({length} bytes) once more"))(error).into()
            }
        }
    }
}

/// Returns whether ending other registrations may help.
fn is_out_of_memory(error: &hostbuf_register::Error) -> bool {
    let hostbuf_register::Error::Registration { source: Some(source), .. } = error else { return false };
    matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::ENOSPC))
}

impl<R: Registrar> fmt::Debug for Adopter<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usage = *self.usage.lock().ignore_poison();
        f.debug_struct("Adopter")
            .field("device", &self.registrar.name())
            .field("options", &self.options)
            .field("registered", &usage)
            .finish_non_exhaustive()
    }
}
