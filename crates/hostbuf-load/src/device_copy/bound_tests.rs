//! Loads to a simulated device that is slow.

use std::sync::Arc;
use std::time::Duration;

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, HostBuffer};
use hostbuf_staging::{DeviceTarget, Fault, SimulatedDevice, SimulatedMemory};

use crate::counters::{LoadBound, LoadCounters};
use crate::load::LoadOptions;
use crate::slice_target::SliceTarget;
use crate::tensors::Tensors;
use crate::test_folder::TestFolder;

/// The length of the file, of which each window is one copy.
const BYTES: usize = 1 << 20;
const WINDOW: usize = 64 << 10;
const WINDOWS: u32 = (BYTES / WINDOW) as u32;
/// The time that a slow copy takes. All of the reads together take less.
const SLOW: Duration = Duration::from_millis(20);

/// Loads a file to a device. Returns the counters of the load, and those in the buffer.
fn load(name: &str, device: &SimulatedDevice, workers: usize) -> (LoadCounters, LoadCounters) {
    let folder = TestFolder::new(name);
    let path = folder.write("a.bin", &[7; BYTES]);
    let target = DeviceTarget::new(Arc::new(SimulatedMemory::new(BYTES)));
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(8 << 20)).expect("there is memory");
    let options = LoadOptions::new().window_bytes(WINDOW as u64).workers(workers);
    let targets = |_: &_| Ok(vec![SliceTarget::new("a.bin", target.clone())]);
    let loaded = options.load_to_device(&Solo, &buffer, &[&path], device, &targets);
    let counters = loaded.expect("nothing fails").counters();
    println!("{counters:?}");
    assert_eq!((counters.bytes_read, counters.bytes_copied), (BYTES as u64, BYTES as u64));
    assert!(counters.waiting_for_device <= counters.copying && counters.copying <= counters.duration());
    (counters, Tensors::open(&buffer).expect("it is loaded").counters())
}

#[test]
fn a_slow_device_is_named() {
    for workers in [1, 3] {
        let device = SimulatedDevice::new();
        (1..=u64::from(WINDOWS)).for_each(|number| device.fault(number, Fault::Delay(SLOW)));
        let (counters, in_buffer) = load(&format!("slow-{workers}"), &device, workers);
        assert_eq!(counters.bound(), Some(LoadBound::Gpu));
        assert!(counters.duration() >= SLOW * WINDOWS && counters.copying >= SLOW * (WINDOWS - 1));
        // Another program of the job does not know about the device of this one.
        assert_eq!((in_buffer.copying, in_buffer.bytes_copied), (Duration::ZERO, 0));
        assert_ne!(in_buffer.bound(), Some(LoadBound::Gpu));
    }
}

#[test]
fn one_slow_copy_of_many_counts_by_its_time() {
    let device = SimulatedDevice::new();
    device.fault(u64::from(WINDOWS), Fault::Delay(10 * SLOW));
    let (counters, _) = load("last", &device, 1);
    assert!(counters.waiting_for_device > 9 * SLOW && counters.bound() == Some(LoadBound::Gpu));
}
