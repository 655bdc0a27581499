//! Copies of rows at equal distances.

#![allow(unsafe_code, reason = "copies are unsafe")]

use proptest::prelude::*;

use crate::{
    CopyDevice, DeviceBuffer, DeviceCopy, DeviceError, DeviceRows, Fault, HostDevice, SimulatedDevice,
    SimulatedEvent, SimulatedMemory,
};

/// A device that copies rows one by one, as devices without copies of rows do.
struct RowByRow(SimulatedDevice);

impl CopyDevice for RowByRow {
    type Event = SimulatedEvent;

    fn name(&self) -> String {
        self.0.name()
    }

    fn new_event(&self) -> Result<SimulatedEvent, DeviceError> {
        self.0.new_event()
    }

    unsafe fn copy_to_device(&self, copies: &[DeviceCopy], done: &SimulatedEvent) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees both sides.
        unsafe { self.0.copy_to_device(copies, done) }
    }

    unsafe fn copy_to_host(&self, copies: &[DeviceCopy], done: &SimulatedEvent) -> Result<(), DeviceError> {
        // SAFETY: the caller guarantees both sides.
        unsafe { self.0.copy_to_host(copies, done) }
    }

    fn is_complete(&self, event: &SimulatedEvent) -> Result<bool, DeviceError> {
        self.0.is_complete(event)
    }

    fn wait(&self, event: &SimulatedEvent) -> Result<(), DeviceError> {
        self.0.wait(event)
    }
}

/// Rows of a test, with the bytes between two rows on each side.
#[derive(Clone, Copy, Debug)]
struct RowsCase {
    width: usize,
    height: usize,
    gaps: [usize; 2],
}

/// Copies rows, and compares the memory of the device with a copy byte by byte.
fn copied<D: CopyDevice>(device: &D, case: RowsCase) -> Result<(), DeviceError> {
    let RowsCase { width, height, gaps: [host_gap, gap] } = case;
    let (host_pitch, pitch) = (width + host_gap, width + gap);
    let mut host: Vec<u8> = (0..height * host_pitch).map(|at| (at % 251 + 1) as u8).collect();
    let memory = SimulatedMemory::new(height * pitch + 1);
    let rows =
        DeviceRows { host: host.as_mut_ptr(), host_pitch, address: memory.address(), pitch, width, height };
    assert_eq!(rows.bytes(), (width * height) as u64);
    let done = device.new_event()?;
    // SAFETY: both sides live until the copies that have started have ended.
    let started = unsafe { device.copy_rows_to_device(&[rows], &done) };
    let waited = match &started {
        Err(error) if !error.has_started() => Ok(()),
        _ => device.wait(&done),
    };
    if let Err(error) = started.and(waited) {
        if error.is_lost() {
            // The device may access both sides for ever.
            std::mem::forget((host, memory));
        }
        return Err(error);
    }
    let mut expected = vec![0; height * pitch + 1];
    for row in 0..height {
        expected[row * pitch..][..width].copy_from_slice(&host[row * host_pitch..][..width]);
    }
    assert!(memory.content() == expected, "{case:?}");
    Ok(())
}

proptest! {
    #[test]
    fn rows_are_those_of_a_naive_copy(width in 1usize..40, height in 0usize..30, gaps in [0usize..20, 0..20]) {
        let (device, case) = (SimulatedDevice::new(), RowsCase { width, height, gaps });
        copied(&device, case).expect("nothing fails");
        prop_assert_eq!(device.requested(), 1);
        let row_by_row = RowByRow(SimulatedDevice::new());
        copied(&row_by_row, case).expect("nothing fails");
        prop_assert_eq!(row_by_row.0.requested(), height as u64);
    }
}

#[test]
fn a_failure_is_that_of_all_rows() {
    let case = RowsCase { width: 8, height: 5, gaps: [3, 1] };
    for (fault, is_lost) in [(Fault::Refuse, false), (Fault::Fail, false), (Fault::Lose, true)] {
        let device = SimulatedDevice::new();
        device.fault(1, fault);
        let error = copied(&device, case).expect_err("the copy fails");
        assert_eq!(error.is_lost(), is_lost, "{fault:?}: {error}");
        assert_eq!(device.requested(), 1);
    }
    let row_by_row = RowByRow(SimulatedDevice::new());
    row_by_row.0.fault(3, Fault::Refuse);
    let error = copied(&row_by_row, case).expect_err("the third row is refused");
    assert!(error.has_started(), "{error}");
}

#[test]
fn the_host_copies_no_rows() {
    let error =
        copied(&HostDevice::new(), RowsCase { width: 8, height: 5, gaps: [0; 2] }).expect_err("it refuses");
    assert!(error.to_string().contains("the threads of a ring copy themselves"), "{error}");
}
