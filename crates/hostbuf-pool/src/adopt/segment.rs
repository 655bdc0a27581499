//! A memory file that is mapped and registered.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_register::{Access, Registrar, Registration, Span};

use super::error::AdoptError;
use super::file_range::FileRange;
use super::memory_file::{FileState, MemoryFile};
use super::page_presence::all_present;
use super::second_mapping::SecondMapping;

/// The time after which a change of a file gets a later time than the change before it. File
/// systems take the time from a clock that ticks at least every 10 ms.
const CLOCK_TICK: Duration = Duration::from_millis(20);

/// The registered bytes and files of an adopter, with those that are only held by their users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentUsage {
    pub(super) bytes: usize,
    pub(super) segments: usize,
}

/// The part of the budget that a segment takes until its memory is no longer registered.
#[derive(Debug)]
pub(super) struct BudgetShare {
    usage: Arc<Mutex<SegmentUsage>>,
    bytes: usize,
}

impl BudgetShare {
    /// Takes `bytes` if the sum stays within `limit`.
    ///
    /// # Errors
    /// The current usage.
    pub(super) fn take(
        usage: &Arc<Mutex<SegmentUsage>>,
        bytes: usize,
        limit: usize,
    ) -> Result<BudgetShare, SegmentUsage> {
        let mut taken = usage.lock().ignore_poison();
        match taken.bytes.checked_add(bytes) {
            Some(sum) if sum <= limit => {
                *taken = SegmentUsage { bytes: sum, segments: taken.segments + 1 };
                Ok(BudgetShare { usage: usage.clone(), bytes })
            }
            _ => Err(*taken),
        }
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        let mut taken = self.usage.lock().ignore_poison();
        taken.bytes -= self.bytes;
        taken.segments -= 1;
    }
}

/// The memory of a segment. The registration keeps it, so that it stays mapped and counted if the
/// device refuses to end the registration.
struct SegmentMemory {
    mapping: SecondMapping,
    _share: BudgetShare,
}

/// A whole file, mapped a second time and registered.
pub(super) struct AdoptedSegment<R: Registrar> {
    registration: Registration<R>,
    registrar: Arc<R>,
    memory: Arc<SegmentMemory>,
    file: MemoryFile,
    access: Access,
    /// The time of the file's last change at a moment when it had the registered pages.
    verified: Mutex<Option<(i64, i64)>>,
}

impl<R: Registrar> AdoptedSegment<R> {
    /// Registers `mapping`, which shows the whole file in the state `state` or a later one.
    pub(super) fn new(
        registrar: &Arc<R>,
        file: MemoryFile,
        state: FileState,
        mapping: SecondMapping,
        share: BudgetShare,
        access: Access,
        retry: impl FnOnce(&hostbuf_register::Error) -> bool,
    ) -> Result<AdoptedSegment<R>, AdoptError> {
        let memory = Arc::new(SegmentMemory { mapping, _share: share });
        let span = memory.mapping.span();
        let register = || Registration::with_keepalive(registrar, span, access, memory.clone());
        let registration = match register() {
            Err(error) if retry(&error) => register(),
            result => result,
        }?;
        let verified = Mutex::new(settled(state));
        Ok(AdoptedSegment { registration, registrar: registrar.clone(), memory, file, access, verified })
    }

    pub(super) fn registrar(&self) -> &R {
        &self.registrar
    }

    pub(super) fn registration(&self) -> &Registration<R> {
        &self.registration
    }

    pub(super) fn access(&self) -> Access {
        self.access
    }

    /// Returns hostbuf's own mapping of the file.
    pub(super) fn span(&self) -> Span {
        self.memory.mapping.span()
    }

    /// Returns the number of the segment's own descriptor.
    pub(super) fn descriptor(&self) -> RawFd {
        self.file.file().as_raw_fd()
    }

    /// Returns whether the file has lost its last name.
    pub(super) fn is_unlinked(&self) -> bool {
        self.file.is_unlinked()
    }

    /// Returns whether the registration has the pages that `range` shows.
    ///
    /// # Errors
    /// [`AdoptError::Truncated`] if the file ends before the range does.
    pub(super) fn serves(&self, range: &FileRange) -> Result<bool, AdoptError> {
        let state = self.file.state()?;
        check_size(range, state)?;
        if range.end() > self.span().len() as u64 {
            return Ok(false);
        }
        // A hole in a file of huge pages does not change its time.
        let is_huge = self.file.is_huge();
        if !is_huge && *self.verified.lock().ignore_poison() == Some(state.changed) {
            return Ok(true);
        }
        // The file has changed in some way. Page faults of writers change the time as well, so the
        // pages themselves are asked: those of the range while the file goes on changing, and then
        // all of them once.
        let page = self.file.page() as usize;
        let settled = settled(state).filter(|_| !is_huge);
        let asked = if settled.is_some() { self.span() } else { self.pages_of(range, page) };
        let present = all_present(asked, page).unwrap_or(false);
        if present && settled.is_some() {
            *self.verified.lock().ignore_poison() = settled;
        }
        Ok(present)
    }

    /// Returns the pages of `range` in hostbuf's mapping.
    fn pages_of(&self, range: &FileRange, page: usize) -> Span {
        let start = self.span().start() + range.offset as usize;
        // The mapping begins at a page of the file.
        Span::new(start, range.span.len()).map_or(self.span(), |shown| shown.pages(page))
    }
}

/// Checks that the file reaches to the end of the range.
pub(super) fn check_size(range: &FileRange, state: FileState) -> Result<(), AdoptError> {
    if state.size < range.end() {
        return Err(AdoptError::Truncated { span: range.span, needed: range.end(), size: state.size });
    }
    Ok(())
}

/// Returns the time of the file's change if a later change has a later time.
fn settled(state: FileState) -> Option<(i64, i64)> {
    let (seconds, nanoseconds) = state.changed;
    let changed = UNIX_EPOCH + Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
    let age = SystemTime::now().duration_since(changed).ok()?;
    (age > CLOCK_TICK).then_some(state.changed)
}
