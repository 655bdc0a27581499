//! The ledger of registrations: a table on the control page, read by `hostbuf stat`.
//!
//! ```text
//! | number of unlisted registrations | row | row | ...                        end of the page
//!          row: holder | buffer, access | offset | length | name of the device (3 words) | seal
//! ```
//!
//! The table is for display only. A registration belongs to a device and to one process. A row may
//! be missing, if the table is full, but a row is never wrong: the process number and the start
//! time reveal a process that ended without clearing its row, and the seal reveals a row that was
//! overwritten.

#![allow(unsafe_code, reason = "rows on the control page are accessed by address")]

use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::segment::checked::Checked;
use crate::segment::control::Control;
use crate::segment::control_layout::ROW_LENGTH;
use hostbuf_os::process;
use hostbuf_protocol::limits::MAX_BUFFERS;
use hostbuf_register::Access;

/// The maximum number of bytes of a device's name in a row.
const DEVICE_MAX: usize = 23;
const NAME_WORDS: usize = (DEVICE_MAX + 1) / 8;

/// One registration.
#[repr(C, align(64))]
pub(super) struct Row {
    /// The process that holds the row, and a flag that the rest is complete. 0: the row is free.
    holder: AtomicU64,
    /// The buffer's index, and the access in the bits above it.
    index_and_access: AtomicU64,
    offset: AtomicU64,
    length: AtomicU64,
    /// The device's name, terminated by NUL.
    name: [AtomicU64; NAME_WORDS],
    /// A digest of all fields above.
    seal: AtomicU64,
}

const _: () = assert!(size_of::<Row>() == ROW_LENGTH && offset_of!(Row, seal) == 56);
const _: () = assert!(size_of::<Head>() == ROW_LENGTH);
// A row has 8 bits for the index of its buffer.
const _: () = assert!(MAX_BUFFERS <= 1 << 8);

/// The count in front of the first row.
#[repr(C, align(64))]
struct Head {
    unlisted: AtomicU64,
}

/// The holder of a row: a process number of 22 bits (the kernel's limit), the low 24 bits of its
/// start time, and a flag that the row is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder(u64);

const PID_BITS: u32 = 22;
const START_BITS: u32 = 24;
const COMPLETE: u64 = 1 << (PID_BITS + START_BITS);

impl Holder {
    pub(super) fn new(pid: u32, start: u64) -> Holder {
        let low = |value: u64, bits: u32| value & ((1 << bits) - 1);
        Holder(low(u64::from(pid), PID_BITS) | low(start, START_BITS) << PID_BITS)
    }

    fn pid(self) -> u32 {
        (self.0 & ((1 << PID_BITS) - 1)) as u32
    }

    fn is_complete(self) -> bool {
        self.0 & COMPLETE != 0
    }

    pub(super) fn completed(self) -> Holder {
        Holder(self.0 | COMPLETE)
    }

    fn is(self, pid: u32, start: u64) -> bool {
        self.completed() == Holder::new(pid, start).completed()
    }

    fn word(self) -> u64 {
        Checked::encode(self.0)
    }

    fn read(word: u64) -> Result<Holder> {
        Checked::decode("the holder of a registration", word).map(Holder)
    }
}

/// The content of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    holder: Holder,
    /// The process that made the registration, by its number in its own PID namespace.
    pub pid: u32,
    /// The index of the buffer.
    pub index: usize,
    /// The offset of the registered part in the buffer, in bytes.
    pub offset: u64,
    /// The length of the registered part in bytes.
    pub length: u64,
    /// The access that the device has.
    pub access: Access,
    /// The device: `cuda 0`, `mlx5_0`, `mlock`.
    pub device: String,
}

impl Registered {
    /// Returns whether the process with this number and this start time (clock ticks after boot)
    /// made the registration. Its number may belong to another process since.
    #[must_use]
    pub fn is_of(&self, pid: u32, start: u64) -> bool {
        self.holder.is(pid, start)
    }
}

/// The table of a control page. Copies refer to the same table.
#[derive(Clone, Copy, Debug)]
pub struct Ledger<'p> {
    control: Control<'p>,
}

impl<'p> Ledger<'p> {
    /// Returns the table of the page of `control`.
    #[must_use]
    pub fn new(control: Control<'p>) -> Ledger<'p> {
        Ledger { control }
    }

    fn head(self) -> &'p Head {
        // SAFETY: inside the mapping by the contract of Control::at(), aligned, and an atomic only.
        unsafe { &*((self.control.address() + self.control.layout().ledger) as *const Head) }
    }

    /// Returns the number of rows.
    fn rows(self) -> usize {
        self.control.layout().registrations
    }

    fn row(self, row: usize) -> &'p Row {
        let layout = self.control.layout();
        assert!(row < layout.registrations);
        let offset = layout.ledger + (1 + row) * layout.registration_length;
        // SAFETY: as above; the number of rows does not include the head.
        unsafe { &*((self.control.address() + offset) as *const Row) }
    }

    /// Returns the complete rows, with an error for each corrupt one. The caller checks whether
    /// their processes are alive: see [`Registered::is_of`].
    #[must_use]
    pub fn registrations(self) -> Vec<Result<Registered>> {
        let read = |row: usize| read(self.row(row), self.control.layout().buffers);
        (0..self.rows()).filter_map(|row| read(row).transpose()).collect()
    }

    /// Returns the number of registrations since the start of the job that were not listed, since
    /// the table was full.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn unlisted(self) -> Result<u64> {
        match self.head().unlisted.load(Ordering::Relaxed) {
            0 => Ok(0),
            word => Checked::decode("the number of registrations that are not listed", word),
        }
    }

    /// Removes the rows that this process entered before its last exec: those registrations ended
    /// with the exec. It must be called before the process registers anything.
    pub fn forget_earlier_image(self) {
        let pid = std::process::id();
        let Some(start) = process::start_time(pid as i32) else { return };
        let own = Holder::new(pid, start);
        for row in 0..self.rows() {
            self.clear(row, own);
            self.clear(row, own.completed());
        }
    }

    /// Claims a row and fills it. Returns its index, or `None` if the table is full, which is
    /// counted.
    pub(super) fn enter(
        self,
        holder: Holder,
        index: usize,
        (offset, length): (u64, u64),
        access: Access,
        device: &str,
    ) -> Option<usize> {
        let Some(row) = self.claim(holder) else {
            let head = &self.head().unlisted;
            // A corrupt count starts again at 1.
            let more = |word| Some(Checked::encode(Checked::decode("", word).map_or(1, |n| n + 1)));
            let _ = head.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
            return None;
        };
        let at = self.row(row);
        let mut name = [0u8; DEVICE_MAX + 1];
        let mut fits = device.len().min(DEVICE_MAX);
        while !device.is_char_boundary(fits) {
            fits -= 1;
        }
        name[..fits].copy_from_slice(&device.as_bytes()[..fits]);
        let mut words = [0u64; 7];
        words[0] = holder.completed().word();
        words[1] = index as u64 | u64::from(access.bits()) << 8;
        (words[2], words[3]) = (offset, length);
        for (word, bytes) in words[4..].iter_mut().zip(name.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        }
        for (place, &word) in at.words().into_iter().zip(&words).skip(1) {
            place.store(word, Ordering::Relaxed);
        }
        at.seal.store(digest(&words), Ordering::Relaxed);
        // Release: readers read the other words only after they have seen this one.
        at.holder.store(words[0], Ordering::Release);
        Some(row)
    }

    /// Claims a row for `holder`: a free one, or otherwise one whose process has ended.
    fn claim(self, holder: Holder) -> Option<usize> {
        let take = |row: usize, found: u64| {
            let place = &self.row(row).holder;
            place.compare_exchange(found, holder.word(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let holders = || (0..self.rows()).map(|row| (row, self.row(row).holder.load(Ordering::Acquire)));
        // A row with a corrupt holder counts as free.
        let free = |word: u64| word == 0 || Holder::read(word).is_err();
        let gone = |word: u64| {
            Holder::read(word).is_ok_and(|h| {
                let pid = h.pid();
                !process::start_time(pid as i32).is_some_and(|start| h.is(pid, start))
            })
        };
        let first = holders().find(|&(row, word)| free(word) && take(row, word));
        first.or_else(|| holders().find(|&(row, word)| gone(word) && take(row, word))).map(|(row, _)| row)
    }

    /// Frees a row, if `holder` holds it.
    pub(super) fn clear(self, row: usize, holder: Holder) {
        // Another process may have taken the row, if it believed that this one had ended.
        let place = &self.row(row).holder;
        let _ = place.compare_exchange(holder.word(), 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

impl Row {
    fn words(&self) -> [&AtomicU64; 7] {
        let [first, second, third] = &self.name;
        [&self.holder, &self.index_and_access, &self.offset, &self.length, first, second, third]
    }
}

fn digest(words: &[u64; 7]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    words.iter().for_each(|word| hash.update(&word.to_ne_bytes()));
    hash.digest()
}

fn read(row: &Row, buffers: usize) -> Result<Option<Registered>> {
    let found = row.holder.load(Ordering::Acquire);
    if found == 0 {
        return Ok(None);
    }
    let holder = Holder::read(found)?;
    if !holder.is_complete() {
        return Ok(None);
    }
    let words = row.words().map(|word| word.load(Ordering::Acquire));
    let seal = row.seal.load(Ordering::Acquire);
    if row.holder.load(Ordering::Acquire) != found {
        // The row has changed meanwhile.
        return Ok(None);
    }
    let [_, index_and_access, offset, length, name @ ..] = words;
    let index = (index_and_access & 0xff) as usize;
    // Any process that can write to the page can also seal invalid values.
    if seal != digest(&words)
        || index >= buffers
        || index_and_access >> 16 != 0
        || offset.checked_add(length).is_none()
    {
        return Err(Error::Corrupt { word: "a registration", found: seal });
    }
    let name: Vec<u8> = name.into_iter().flat_map(u64::to_ne_bytes).take_while(|&byte| byte != 0).collect();
    Ok(Some(Registered {
        holder,
        pid: holder.pid(),
        index,
        offset,
        length,
        access: Access::from_bits((index_and_access >> 8) as u8),
        device: String::from_utf8_lossy(&name).into_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::control_layout::ControlLayout;

    /// The number of buffers in these tests.
    const BUFFERS: usize = 16;

    fn page() -> (Vec<u64>, Ledger<'static>) {
        let layout = ControlLayout::new(BUFFERS);
        let page = vec![0u64; layout.length() as usize / 8 + 8];
        let address = (page.as_ptr() as usize).next_multiple_of(64);
        // SAFETY: the caller keeps the page beside the handle, and accesses it only through the
        // handle.
        let control = unsafe { Control::at(address, layout) };
        (page, Ledger::new(control))
    }

    fn own() -> Holder {
        let pid = std::process::id();
        Holder::new(pid, process::start_time(pid as i32).unwrap())
    }

    /// A number that no process has: those of the kernel are less.
    const NOBODY: u32 = (1 << PID_BITS) - 1;

    fn listed(ledger: Ledger<'_>) -> Vec<Registered> {
        ledger.registrations().into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn an_entered_row_is_read_until_it_is_cleared() {
        let (_page, ledger) = page();
        assert_eq!((listed(ledger), ledger.unlisted().unwrap()), (vec![], 0));
        let row = ledger.enter(own(), 3, (4096, 1 << 40), Access::ALL, "mlx5_0").unwrap();
        let other = ledger
            .enter(own(), 15, (0, 1), Access::READ, "a device with a \u{e9}\u{e9}\u{e9}\u{e9}")
            .unwrap();
        let [first, second] = &listed(ledger)[..] else { panic!("two rows") };
        assert_eq!((first.pid, first.index), (std::process::id(), 3));
        assert_eq!((first.offset, first.length, first.access), (4096, 1 << 40, Access::ALL));
        assert_eq!(first.device, "mlx5_0");
        // The name is cut at the end of a character.
        assert_eq!((second.index, second.device.as_str()), (15, "a device with a \u{e9}\u{e9}\u{e9}"));
        let start = process::start_time(std::process::id() as i32).unwrap();
        assert!(first.is_of(std::process::id(), start));
        assert!(!first.is_of(std::process::id(), start + 1) && !first.is_of(1, start));
        ledger.clear(other, own());
        // A row stays if the holder or its state differs.
        assert_eq!(listed(ledger).len(), 2);
        ledger.clear(other, own().completed());
        ledger.clear(row, own().completed());
        assert_eq!(listed(ledger), []);
    }

    #[test]
    fn a_full_table_counts_unlisted_registrations_and_reuses_rows_of_ended_processes() {
        let (_page, ledger) = page();
        for i in 0..ledger.rows() as u64 {
            ledger.enter(own(), 0, (i, 1), Access::READ, "x").unwrap();
        }
        for n in 1..=3 {
            assert_eq!(ledger.enter(own(), 0, (0, 1), Access::READ, "x"), None);
            assert_eq!(ledger.unlisted().unwrap(), n);
        }
        // A row of a process that has ended, an incomplete row of one, and a row of a process whose
        // number belongs to another process now.
        let start = process::start_time(1).unwrap_or(0);
        for (row, holder) in [
            (7, Holder::new(NOBODY, 1).completed()),
            (70, Holder::new(NOBODY, 1)),
            (9, Holder::new(1, start + 1).completed()),
        ] {
            ledger.row(row).holder.store(holder.word(), Ordering::Relaxed);
            assert_eq!(ledger.enter(own(), 1, (5, 6), Access::WRITE, "y"), Some(row));
            let taken = read(ledger.row(row), BUFFERS).unwrap().unwrap();
            assert_eq!((taken.pid, taken.index, taken.device.as_str()), (std::process::id(), 1, "y"));
        }
        assert_eq!(ledger.enter(own(), 0, (0, 1), Access::READ, "x"), None);
        assert_eq!((listed(ledger).len(), ledger.unlisted().unwrap()), (ledger.rows(), 4));
    }

    #[test]
    fn any_flipped_byte_is_an_error_and_the_row_is_free() {
        let (_page, ledger) = page();
        ledger.enter(own(), 2, (4096, 8192), Access::WRITE, "cuda 0").unwrap();
        let good = listed(ledger);
        let words = std::ptr::from_ref(ledger.row(0)).cast::<AtomicU64>();
        // SAFETY: a row consists of atomic words.
        let flip_word = |at: usize, flip: u64| unsafe { &*words.add(at) }.fetch_xor(flip, Ordering::Relaxed);
        for at in 0..size_of::<Row>() {
            for flip in [0x01u64, 0x80, 0xff] {
                let flip = flip << (at % 8 * 8);
                flip_word(at / 8, flip);
                let read = ledger.registrations();
                assert!(matches!(read[..], [Err(Error::Corrupt { .. })]), "byte {at}: {read:?}");
                flip_word(at / 8, flip);
            }
        }
        assert_eq!(listed(ledger), good);
        flip_word(0, 1 << 50);
        // The next registration takes it.
        assert_eq!(ledger.enter(own(), 2, (4096, 8192), Access::WRITE, "cuda 0"), Some(0));
        assert_eq!(listed(ledger), good);
    }

    #[test]
    fn invalid_values_with_a_valid_seal_are_an_error() {
        let (_page, ledger) = page();
        for (index, offset, length) in [(BUFFERS, 0, 1), (0xff, 0, 1), (0, u64::MAX, 2), (0x1_0000, 0, 1)] {
            let row = ledger.enter(own(), index, (offset, length), Access::READ, "").unwrap();
            let read = ledger.registrations();
            assert!(matches!(read[..], [Err(Error::Corrupt { .. })]), "{read:?}");
            ledger.clear(row, own().completed());
        }
    }

    #[test]
    fn threads_and_processes_never_share_a_row() {
        let (_page, ledger) = page();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                scope.spawn(move || {
                    for round in 0..500 {
                        let mark = thread << 32 | round;
                        let row = ledger.enter(own(), 0, (mark, 1), Access::READ, "x").unwrap();
                        assert_eq!(read(ledger.row(row), BUFFERS).unwrap().unwrap().offset, mark);
                        ledger.clear(row, own().completed());
                    }
                });
            }
        });
        assert_eq!(listed(ledger), []);
    }
}
