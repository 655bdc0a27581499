//! The control page: what a process needs to know about a job's buffers on its host, and what changes while they
//! are used.
//!
//! It is memory that other processes may write, well or badly. So no reference to its mutable part is ever made
//! but to atomics, the identity is copied out and its checksum compared once, and every mutable word carries its
//! own check: a byte that somebody flipped is an error, never a wrong offset.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::segment::layout::CONTROL_LENGTH;
use crate::segment::ledger::Row;
use crate::segment::options::NAME_MAX;
use hostbuf_memory::Pages;
use hostbuf_protocol::wire::MAX_BUFFERS;

const MAGIC: u64 = 0x6675_6274_736f_6801;
const VERSION: u32 = 1;

/// The part that never changes after the ranks have gone on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Identity {
    magic: u64,
    version: u32,
    /// The bytes of [`Identity`], of a [`Row`] and of a [`State`]: two builds that lay them out differently refuse each other.
    layout: u32,
    /// The job's random number.
    pub job: [u64; 2],
    /// Where the first buffer begins: the same on every host.
    pub address: u64,
    /// The bytes reserved there.
    pub length: u64,
    /// Which host of the job this is.
    pub host: u32,
    /// How many hosts the job has, 0 when they have not been compared yet (`hostbuf exec`).
    pub hosts: u32,
    /// How many buffers.
    pub count: u32,
    /// How many ballots and searches the agreement took.
    pub rounds: u32,
    /// Microseconds of each phase, as [`Phase`] counts them.
    pub phases: [u64; Phase::COUNT],
    /// The buffers.
    pub buffers: [BufferIdentity; MAX_BUFFERS],
    checksum: u64,
}

/// One buffer's part of the identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BufferIdentity {
    name: [u8; NAME_MAX + 1],
    /// From the agreed address, bytes.
    pub offset: u64,
    /// What the user asked for, bytes.
    pub size: u64,
    /// What is mapped, bytes.
    pub length: u64,
    /// The inode of the memory file.
    pub inode: u64,
    pages: u64,
    /// How many of its bytes stand on huge pages.
    pub huge: u64,
    /// Whether the pages are taken at the first touch.
    pub lazy: u64,
    /// Whether the contents go into core files.
    pub dump: u64,
}

/// What takes time before `main`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Starting MPI in the agent.
    Engine = 0,
    /// Checking for space and making the memory files.
    Create = 1,
    /// Taking the pages.
    Populate = 2,
    /// Waiting for the ranks of all hosts to be there.
    Gather = 3,
    /// Agreeing on the address.
    Agree = 4,
    /// Mapping in all ranks.
    Map = 5,
}

impl Phase {
    /// How many phases there are.
    pub const COUNT: usize = 6;
    /// All of them, in order.
    pub const ALL: [Phase; Phase::COUNT] =
        [Phase::Engine, Phase::Create, Phase::Populate, Phase::Gather, Phase::Agree, Phase::Map];

    /// For people and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["engine", "create", "populate", "gather", "agree", "map"][self as usize]
    }
}

impl BufferIdentity {
    /// A buffer named `name` (cut at [`NAME_MAX`] bytes) on `pages`.
    #[must_use]
    pub fn new(name: &str, pages: Pages) -> BufferIdentity {
        let mut identity = BufferIdentity { pages: pages.code(), ..BufferIdentity::default() };
        let length = name.len().min(NAME_MAX);
        identity.name[..length].copy_from_slice(&name.as_bytes()[..length]);
        identity
    }

    /// The same on other pages.
    #[must_use]
    pub fn with_pages(self, pages: Pages) -> BufferIdentity {
        BufferIdentity { pages: pages.code(), ..self }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        let length = self.name.iter().position(|&b| b == 0).unwrap_or(NAME_MAX);
        String::from_utf8_lossy(&self.name[..length]).into_owned()
    }

    /// The pages that were obtained.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages::from_code(self.pages).unwrap_or(Pages::Small)
    }
}

impl Identity {
    /// An identity without buffers.
    #[must_use]
    pub fn new(job: u128) -> Identity {
        Identity {
            magic: MAGIC,
            version: VERSION,
            layout: LAYOUT,
            job: [job as u64, (job >> 64) as u64],
            address: 0,
            length: 0,
            host: 0,
            hosts: 0,
            count: 0,
            rounds: 0,
            phases: [0; Phase::COUNT],
            buffers: [BufferIdentity::default(); MAX_BUFFERS],
            checksum: 0,
        }
    }

    /// The buffers.
    #[must_use]
    pub fn buffers(&self) -> &[BufferIdentity] {
        &self.buffers[..(self.count as usize).min(MAX_BUFFERS)]
    }

    fn digest(&self) -> u64 {
        // SAFETY: repr(C) of integers without padding between them (checked below), checksum last.
        let bytes = unsafe {
            let start = std::ptr::from_ref(self).cast::<u8>();
            std::slice::from_raw_parts(start, size_of::<Identity>() - size_of::<u64>())
        };
        xxhash_rust::xxh3::xxh3_64(bytes)
    }

    /// # Errors
    /// [`Error::Attach`] for another version or layout; [`Error::Corrupt`] for anything else that does not fit.
    fn check(&self) -> Result<()> {
        if self.magic != MAGIC {
            return Err(Error::Corrupt { word: "the magic number", found: self.magic });
        }
        if self.digest() != self.checksum {
            return Err(Error::Corrupt { word: "the identity's checksum", found: self.checksum });
        }
        if (self.version, self.layout) != (VERSION, LAYOUT) {
            let why = format!(
                "it was made by another version of hostbuf (layout {}.{}, this is {VERSION}.{LAYOUT}): use one version for launcher and program",
                self.version, self.layout
            );
            return Err(Error::Attach { why });
        }
        Ok(())
    }
}

const LAYOUT: u32 = (size_of::<Identity>() << 16 | size_of::<Row>() << 8 | size_of::<State>()) as u32;
const _: () =
    assert!(size_of::<Identity>() < 1 << 16 && size_of::<Row>() < 1 << 8 && size_of::<State>() < 1 << 8);
const _: () = assert!(size_of::<BufferIdentity>() == 32 + 8 * 8);
const _: () = assert!(
    size_of::<Identity>()
        == 8 + 8 + 16 + 16 + 16 + 8 * Phase::COUNT + MAX_BUFFERS * size_of::<BufferIdentity>() + 8
);

/// Where the mutable part begins: on a cache line of its own, behind the identity.
const STATES: usize = 4096;
const _: () = assert!(size_of::<Identity>() <= STATES);
/// Where the table of registrations begins, behind the states; it goes on to the end of the page.
pub(super) const LEDGER: usize = STATES + MAX_BUFFERS * size_of::<State>();
const _: () = assert!(LEDGER < CONTROL_LENGTH as usize);

/// How far the filling of a buffer is. The numbers are words that no flipped byte turns into one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fill {
    /// Nobody has begun.
    Empty = 0x5054_4d45,
    /// Somebody fills, or died while filling.
    Filling = 0x4c4c_4946,
    /// It is filled.
    Full = 0x444e_4f44,
    /// It is filled, and nobody can write any more.
    Frozen = 0x5a4f_5246,
}

impl Fill {
    /// For people and for JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fill::Empty => "empty",
            Fill::Filling => "filling",
            Fill::Full => "full",
            Fill::Frozen => "frozen",
        }
    }
}

/// The part of a buffer's control that changes.
#[repr(C, align(64))]
pub struct State {
    fill: AtomicU32,
    _unused: AtomicU32,
    generation: Checked,
    high_water: Checked,
    root: Checked,
    root_type: AtomicU64,
    /// Below this mark lies what fills that failed were given in processes that may live.
    kept: Checked,
}

/// A number of up to 48 bits that carries 16 bits of check.
#[repr(transparent)]
pub struct Checked(AtomicU64);

const BITS: u32 = 48;

impl Checked {
    pub(super) fn encode(value: u64) -> u64 {
        debug_assert!(value >> BITS == 0);
        value | (xxhash_rust::xxh3::xxh3_64(&value.to_ne_bytes()) >> BITS) << BITS
    }

    pub(super) fn decode(word: &'static str, found: u64) -> Result<u64> {
        let value = found & ((1 << BITS) - 1);
        if Checked::encode(value) == found { Ok(value) } else { Err(Error::Corrupt { word, found }) }
    }

    fn load(&self, word: &'static str) -> Result<u64> {
        Checked::decode(word, self.0.load(Ordering::Acquire))
    }

    fn store(&self, value: u64) {
        self.0.store(Checked::encode(value), Ordering::Release);
    }
}

/// A mapped control page. Copies of this handle all mean the same page; the mapping outlives them (the segment that
/// owns it says for how long).
#[derive(Clone, Copy, Debug)]
pub struct Control {
    page: *const u8,
}

// SAFETY: the page is shared memory that is only read as atomics, or copied and checked.
unsafe impl Send for Control {}
// SAFETY: as above.
unsafe impl Sync for Control {}

impl Control {
    /// # Safety
    /// `address` must begin a readable and writable mapping of [`CONTROL_LENGTH`] bytes that outlives every use.
    #[must_use]
    pub unsafe fn at(address: usize) -> Control {
        Control { page: address as *const u8 }
    }

    /// Where it is mapped.
    #[must_use]
    pub fn address(self) -> usize {
        self.page as usize
    }

    /// Copies the identity out and checks it.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Attach`].
    pub fn identity(self) -> Result<Identity> {
        // SAFETY: mapped by the contract of at(); Identity is plain integers, valid for any bytes. Volatile: another
        // process may write meanwhile, then the checksum tells.
        let identity = unsafe { self.page.cast::<Identity>().read_volatile() };
        identity.check()?;
        Ok(identity)
    }

    /// Writes the identity. For the one who makes the page, before anybody else sees it.
    pub fn publish(self, mut identity: Identity) {
        identity.checksum = identity.digest();
        // SAFETY: mapped writable by the contract of at(); the caller is alone with the page.
        unsafe { self.page.cast_mut().cast::<Identity>().write_volatile(identity) };
    }

    /// Makes buffer `index` empty, of generation 0.
    pub fn reset(self, index: usize) {
        let state = self.state(index);
        for word in [&state.generation, &state.high_water, &state.root, &state.kept] {
            word.store(0);
        }
        state.root_type.store(0, Ordering::Relaxed);
        state.fill.store(Fill::Empty as u32, Ordering::Release);
    }

    fn state(self, index: usize) -> &'static State {
        assert!(index < MAX_BUFFERS);
        // SAFETY: inside the mapping (asserted at compile time), aligned, atomics only: valid whatever others write.
        unsafe { &*self.page.add(STATES).cast::<State>().add(index) }
    }

    /// How far the filling is.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn fill(self, index: usize) -> Result<Fill> {
        let found = self.state(index).fill.load(Ordering::Acquire);
        [Fill::Empty, Fill::Filling, Fill::Full, Fill::Frozen]
            .into_iter()
            .find(|&f| f as u32 == found)
            .ok_or(Error::Corrupt { word: "the fill state", found: u64::from(found) })
    }

    /// Says how far the filling is, and wakes all who wait for it.
    pub fn set_fill(self, index: usize, fill: Fill) {
        let word = &self.state(index).fill;
        word.store(fill as u32, Ordering::Release);
        // SAFETY: the address of a live atomic; FUTEX_WAKE reads nothing.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    }

    /// Waits until the state is no longer `now`, or about as long as `limit`.
    pub fn wait_fill(self, index: usize, now: Fill, limit: std::time::Duration) {
        let word = &self.state(index).fill;
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(limit.subsec_nanos()),
        };
        // SAFETY: both pointers are valid for the call. Any way it returns, the caller looks again.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                libc::FUTEX_WAIT,
                now as u32,
                &raw const limit,
                0,
                0,
            )
        };
    }

    /// How many times filling has begun.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn generation(self, index: usize) -> Result<u64> {
        self.state(index).generation.load("the generation")
    }

    /// Sets the generation. For the holder of the filler's lock.
    pub fn set_generation(self, index: usize, generation: u64) {
        self.state(index).generation.store(generation);
    }

    /// Bytes from the buffer's beginning that the arena has given out.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn high_water(self, index: usize) -> Result<u64> {
        self.state(index).high_water.load("the high-water mark")
    }

    /// Sets the high-water mark. For the holder of the filler's lock.
    pub fn set_high_water(self, index: usize, bytes: u64) {
        self.state(index).high_water.store(bytes);
    }

    /// Where the arena of the next fill begins at the earliest: below lies what fills that failed were given.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn kept(self, index: usize) -> Result<u64> {
        self.state(index).kept.load("the mark of failed fills")
    }

    /// Sets it. For the holder of the filler's lock.
    pub fn set_kept(self, index: usize, bytes: u64) {
        self.state(index).kept.store(bytes);
    }

    /// Moves the high-water mark by `change`, which gets its value and gives the new one, or `None` to leave it.
    /// Returns the value before.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn move_high_water(
        self,
        index: usize,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<Option<u64>> {
        let word = &self.state(index).high_water;
        let mut found = word.0.load(Ordering::Acquire);
        loop {
            let value = Checked::decode("the high-water mark", found)?;
            let Some(new) = change(value) else { return Ok(None) };
            let new = Checked::encode(new);
            match word.0.compare_exchange_weak(found, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Some(value)),
                Err(other) => found = other,
            }
        }
    }

    /// Where the root object is, from the buffer's beginning plus one (0: there is none), and its type's number.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn root(self, index: usize) -> Result<(u64, u64)> {
        let state = self.state(index);
        Ok((state.root.load("the root")?, state.root_type.load(Ordering::Acquire)))
    }

    /// Sets the root. For the holder of the filler's lock.
    pub fn set_root(self, index: usize, root: u64, root_type: u64) {
        let state = self.state(index);
        state.root_type.store(root_type, Ordering::Release);
        state.root.store(root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> (Vec<u64>, Control) {
        let memory = vec![0u64; CONTROL_LENGTH as usize / 8 + 8];
        let address = (memory.as_ptr() as usize).next_multiple_of(64);
        // SAFETY: the vector is kept by the caller beside the handle.
        let control = unsafe { Control::at(address) };
        let mut identity = Identity::new(7);
        identity.count = 1;
        identity.buffers[0] = BufferIdentity::new("index", Pages::Huge2M);
        control.publish(identity);
        control.reset(0);
        control.set_high_water(0, 12_345_678);
        control.set_root(0, 65, 0xabcd);
        (memory, control)
    }

    #[test]
    fn any_flipped_byte_is_an_error_and_never_another_value() {
        let (_memory, control) = page();
        let words = |c: Control| -> Result<_> {
            Ok((c.fill(0)?, c.generation(0)?, c.high_water(0)?, c.root(0)?.0, c.kept(0)?))
        };
        let good = words(control).unwrap();
        let identity = control.identity().unwrap();
        for at in 0..CONTROL_LENGTH as usize {
            for flip in [0x01u8, 0x80, 0xff] {
                // SAFETY: inside the page, which is this test's own.
                let byte = unsafe { &mut *control.page.cast_mut().add(at) };
                *byte ^= flip;
                if at < size_of::<Identity>() {
                    assert!(control.identity().is_err(), "byte {at} of the identity");
                } else {
                    assert_eq!(control.identity().unwrap(), identity);
                }
                if let Ok(read) = words(control) {
                    assert_eq!(read, good, "byte {at} flipped by {flip:#x}");
                }
                // SAFETY: as above.
                unsafe { *control.page.cast_mut().add(at) ^= flip };
            }
        }
        assert_eq!(words(control).unwrap(), good);
    }

    #[test]
    fn another_layout_is_refused_with_a_reason() {
        let (_memory, control) = page();
        let mut identity = control.identity().unwrap();
        identity.version += 1;
        control.publish(identity);
        let error = control.identity().unwrap_err().to_string();
        assert!(error.contains("another version"), "{error}");
    }
}
