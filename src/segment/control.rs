//! The control page: the state of a job's buffers on its host.
//!
//! It is memory to which other processes may write, correctly or not. References to it are
//! therefore made to atomics only, and every word has a check of its own: a flipped byte causes an
//! error, never a wrong offset. The addresses and sizes, which never change, are in the
//! [identity](crate::segment::Identity).

#![allow(unsafe_code, reason = "the control page is accessed by raw pointers while other processes write it")]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::segment::checked::Checked;
use crate::segment::control_layout::{ControlLayout, ROW_LENGTH};
use crate::segment::fill_state::FillState;
use crate::segment::phase::Phase;

/// The part of a buffer's control data that changes.
#[repr(C, align(64))]
struct ControlState {
    fill: AtomicU32,
    _unused: AtomicU32,
    generation: Checked,
    high_water: Checked,
    root: Checked,
    root_type: AtomicU64,
    /// The end of the memory that failed fills allocated in processes that may be alive.
    retained: Checked,
    /// The address of the range of all GPU sections of the job, 0 without one.
    gpu_range: Checked,
    /// The GPU sections of the buffer that are frozen, as bits in their order.
    gpu_frozen: Checked,
}

const _: () = assert!(size_of::<ControlState>() == ROW_LENGTH);

/// The durations of the phases in microseconds, indexed by [`Phase`].
#[repr(C, align(64))]
struct Phases([Checked; Phase::COUNT]);

const _: () = assert!(size_of::<Phases>() == ROW_LENGTH);

/// A mapped control page, which stays mapped for `'p`. Copies of this handle refer to one page.
#[derive(Clone, Copy, Debug)]
pub struct Control<'p> {
    page: *const u8,
    layout: ControlLayout,
    mapping: PhantomData<&'p AtomicU64>,
}

// SAFETY: the page is shared memory that is only read and written as atomics.
unsafe impl Send for Control<'_> {}
// SAFETY: as above.
unsafe impl Sync for Control<'_> {}

impl<'p> Control<'p> {
    /// Makes a handle of the page at `address`, whose tables lie where `layout` states.
    ///
    /// # Safety
    /// `address` must be aligned to 64 bytes and begin a readable and writable mapping of
    /// [`length`](ControlLayout::length) bytes, which exists for `'p`.
    #[must_use]
    pub unsafe fn at(address: usize, layout: ControlLayout) -> Control<'p> {
        Control { page: address as *const u8, layout, mapping: PhantomData }
    }

    /// Returns the address of the mapping.
    #[must_use]
    pub fn address(self) -> usize {
        self.page as usize
    }

    /// Returns the places of the tables.
    #[must_use]
    pub fn layout(self) -> ControlLayout {
        self.layout
    }

    fn phase_words(self) -> &'p Phases {
        // SAFETY: inside the mapping by the contract of at(), aligned, and atomics only: valid for
        // any bytes that other processes write.
        unsafe { &*self.page.add(self.layout.phases).cast() }
    }

    /// Returns the durations of the phases, indexed by [`Phase`]; zeros for damaged ones, since
    /// they are for display only.
    #[must_use]
    pub fn phases(self) -> [Duration; Phase::COUNT] {
        let words = &self.phase_words().0;
        Phase::ALL.map(|phase| {
            Duration::from_micros(words[phase as usize].load("the duration of a phase").unwrap_or(0))
        })
    }

    /// Sets the durations of the phases in microseconds.
    pub fn set_phases(self, phases: [u64; Phase::COUNT]) {
        for (word, micros) in self.phase_words().0.iter().zip(phases) {
            word.store(micros.min(Checked::MAX));
        }
    }

    /// Makes buffer `index` empty, with generation 0.
    pub fn reset(self, index: usize) {
        let state = self.state(index);
        let (gpu_range, gpu_frozen) = (&state.gpu_range, &state.gpu_frozen);
        for word in
            [&state.generation, &state.high_water, &state.root, &state.retained, gpu_range, gpu_frozen]
        {
            word.store(0);
        }
        state.root_type.store(0, Ordering::Relaxed);
        state.fill.store(FillState::Empty as u32, Ordering::Release);
    }

    fn state(self, index: usize) -> &'p ControlState {
        assert!(index < self.layout.buffers);
        let offset = self.layout.states + index * self.layout.state_length;
        // SAFETY: as for the phases.
        unsafe { &*self.page.add(offset).cast::<ControlState>() }
    }

    /// Returns the fill state.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn fill(self, index: usize) -> Result<FillState> {
        let found = self.state(index).fill.load(Ordering::Acquire);
        FillState::from_number(found)
            .ok_or(Error::Corrupt { word: "the fill state", found: u64::from(found) })
    }

    /// Sets the fill state, and wakes all waiting processes.
    pub fn set_fill(self, index: usize, fill: FillState) {
        let word = &self.state(index).fill;
        word.store(fill as u32, Ordering::Release);
        // SAFETY: the address of a live atomic; FUTEX_WAKE reads no memory.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    }

    /// Waits until the state is no longer `now`, for about `limit` at most.
    pub fn wait_fill(self, index: usize, now: FillState, limit: Duration) {
        let word = &self.state(index).fill;
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(limit.subsec_nanos()),
        };
        // SAFETY: both pointers are valid for the call. The caller checks the state again, whatever
        // the call returns.
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

    /// Returns the generation: the number of fills that have begun.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn generation(self, index: usize) -> Result<u64> {
        self.state(index).generation.load("the generation")
    }

    /// Sets the generation. Only the holder of the filler's lock may call it.
    pub fn set_generation(self, index: usize, generation: u64) {
        self.state(index).generation.store(generation);
    }

    /// Returns the number of bytes, from the buffer's beginning, that the arena has allocated.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn high_water(self, index: usize) -> Result<u64> {
        self.state(index).high_water.load("the high-water mark")
    }

    /// Sets the high-water mark. Only the holder of the filler's lock may call it.
    pub fn set_high_water(self, index: usize, bytes: u64) {
        self.state(index).high_water.store(bytes);
    }

    /// Returns the lowest offset at which the arena of the next fill may begin. Below it is memory
    /// that failed fills have allocated.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn retained(self, index: usize) -> Result<u64> {
        self.state(index).retained.load("the mark of failed fills")
    }

    /// Sets the offset that [`retained`](Control::retained) returns. Only the holder of the
    /// filler's lock may call it.
    pub fn set_retained(self, index: usize, bytes: u64) {
        self.state(index).retained.store(bytes);
    }

    /// Returns the address of the range of all GPU sections of the job, or `None` if it is not
    /// agreed on.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn gpu_range(self, index: usize) -> Result<Option<u64>> {
        let address = self.state(index).gpu_range.load("the address of the GPU sections")?;
        Ok((address > 0).then_some(address))
    }

    /// Sets the address of the range of all GPU sections. Only the agent may call it.
    pub fn set_gpu_range(self, index: usize, address: u64) {
        self.state(index).gpu_range.store(address);
    }

    /// Returns whether GPU section `section` of the buffer, counted from 0 in the order of the
    /// addresses, is frozen.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn is_gpu_frozen(self, index: usize, section: usize) -> Result<bool> {
        Ok(self.state(index).gpu_frozen.load("the frozen GPU sections")? & 1 << section != 0)
    }

    /// Records whether a GPU section of the buffer is frozen.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn set_gpu_frozen(self, index: usize, section: usize, frozen: bool) -> Result<()> {
        let change = |bits| Some(if frozen { bits | 1 << section } else { bits & !(1 << section) });
        self.state(index).gpu_frozen.update("the frozen GPU sections", change).map(drop)
    }

    /// Replaces the high-water mark by the result of `change`, which gets its value, unless that is
    /// `None`. Returns the value before the change, or `None` if it was not changed.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn move_high_water(
        self,
        index: usize,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<Option<u64>> {
        self.state(index).high_water.update("the high-water mark", change)
    }

    /// Returns the offset of the root object plus one (0: there is none), and the number of its
    /// type.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn root(self, index: usize) -> Result<(u64, u64)> {
        let state = self.state(index);
        Ok((state.root.load("the root")?, state.root_type.load(Ordering::Acquire)))
    }

    /// Sets the root. Only the holder of the filler's lock may call it.
    pub(crate) fn set_root(self, index: usize, root: u64, root_type: u64) {
        let state = self.state(index);
        state.root_type.store(root_type, Ordering::Release);
        state.root.store(root);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> (Vec<u64>, Control<'static>) {
        let layout = ControlLayout::new(1);
        let memory = vec![0u64; layout.length() as usize / 8 + 8];
        let address = (memory.as_ptr() as usize).next_multiple_of(64);
        // SAFETY: the caller keeps the vector beside the handle.
        let control = unsafe { Control::at(address, layout) };
        control.reset(0);
        control.set_phases([1, 2, 3, 4, 5, 6]);
        control.set_high_water(0, 12_345_678);
        control.set_root(0, 65, 0xabcd);
        control.set_gpu_range(0, 0x5500_0000_0000);
        control.set_gpu_frozen(0, 3, true).expect("it was reset");
        (memory, control)
    }

    #[test]
    fn any_flipped_byte_is_an_error_and_never_another_value() {
        let (_memory, control) = page();
        let words = |c: Control<'_>| -> Result<_> {
            let gpu = (c.gpu_range(0)?, c.is_gpu_frozen(0, 0)?, c.is_gpu_frozen(0, 3)?);
            Ok((c.fill(0)?, c.generation(0)?, c.high_water(0)?, c.root(0)?.0, c.retained(0)?, gpu))
        };
        let good = words(control).unwrap();
        let phases = control.phases();
        assert_eq!(phases.map(|p| p.as_micros()), [1, 2, 3, 4, 5, 6]);
        for at in 0..control.layout.ledger {
            for flip in [0x01u8, 0x80, 0xff] {
                // SAFETY: inside the page, which belongs to this test.
                let byte = unsafe { &mut *control.page.cast_mut().add(at) };
                *byte ^= flip;
                if let Ok(read) = words(control) {
                    assert_eq!(read, good, "byte {at} flipped by {flip:#x}");
                }
                for (read, good) in control.phases().iter().zip(&phases) {
                    assert!(read == good || read.is_zero(), "byte {at} flipped by {flip:#x}");
                }
                // SAFETY: as above.
                unsafe { *control.page.cast_mut().add(at) ^= flip };
            }
        }
        assert_eq!(words(control).unwrap(), good);
    }
}
