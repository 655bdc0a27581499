//! Frames in another library's shared memory, which the GPU reads through hostbuf's mapping.

use hostbuf_os::Bytes;
use hostbuf_pool::adopt::{AdoptOptions, Adopter, adopt};
use memmap2::{Mmap, MmapMut, MmapOptions};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;

use super::*;

/// A frame of 1920 x 1080 pixels of 4 bytes.
const FRAME: usize = 1920 * 1080 * 4;

/// Makes a memfd of `frames` frames, each filled with its number, mapped for its producer.
fn frames(frames: usize) -> (File, MmapMut) {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(c"frames", flags).expect("memory"));
    file.set_len((frames * FRAME) as u64).expect("memory");
    // SAFETY: only this test writes to it.
    let mut mapping = unsafe { MmapMut::map_mut(&file) }.expect("mapped");
    for (number, frame) in mapping.chunks_mut(FRAME).enumerate() {
        frame.fill(number as u8 + 1);
    }
    (file, mapping)
}

#[test]
#[ignore = "needs a GPU"]
fn the_gpu_reads_frames_of_a_sealed_file_of_another_process() {
    let (file, _producer) = frames(3);
    // As a pool's segment: only the producer's mapping can be written.
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE)).expect("sealed");
    // SAFETY: nothing writes to it.
    let consumer = unsafe { Mmap::map(&file) }.expect("mapped");
    let adopter = Adopter::new(gpu(), AdoptOptions::new()).expect("/proc is there");
    let device = GpuMemory::new(FRAME);
    for number in [2, 0, 1, 2] {
        let frame = Span::of(&consumer[number * FRAME..][..FRAME]).expect("a frame");
        let adopted = adopter.adopt(frame, Access::READ).expect("shared memory");
        let host = adopted.host_span();
        let address = adopted.handle().device_address(host.start()).expect("registered whole");
        device.copy_in(address as usize, FRAME);
        device.finish();
        assert_eq!(device.read(FRAME), &consumer[number * FRAME..][..FRAME]);
    }
    assert_eq!(adopter.registered_files(), 1);
}

/// The kernel gives each file in turn the same address, and the GPU reads the bytes of that file.
#[test]
#[ignore = "needs a GPU"]
fn remapped_addresses_show_the_gpu_their_own_bytes() {
    let files: Vec<_> = (0..4).map(|_| frames(1)).collect();
    let adopter = Adopter::new(gpu(), AdoptOptions::new().bytes(2 * FRAME)).expect("/proc is there");
    let device = GpuMemory::new(FRAME);
    let mut same = 0;
    let mut last = 0;
    for round in 0..100u8 {
        let (file, _) = &files[usize::from(round) * 7 % 4];
        // SAFETY: only this test writes to it, while the GPU reads nothing.
        let mut mapping = unsafe { MmapOptions::new().map_mut(file) }.expect("mapped");
        mapping.fill(round);
        let adopted =
            adopter.adopt(Span::of(&mapping[..]).expect("a frame"), Access::READ).expect("shared memory");
        let at = adopted.handle().device_address(adopted.host_span().start()).expect("registered whole");
        device.copy_in(at as usize, FRAME);
        device.finish();
        assert_eq!(device.read(FRAME), &mapping[..], "round {round}");
        same += usize::from(mapping.as_ptr() as usize == last);
        last = mapping.as_ptr() as usize;
    }
    println!("{same} of 100 rounds had the address of the round before");
}

#[test]
#[ignore = "needs a GPU"]
fn adopted_frames_are_faster_than_copies_through_pinned_memory() {
    const FRAMES: usize = 8;
    const ROUNDS: usize = 120;
    let (file, mut producer) = frames(FRAMES);
    // SAFETY: written below by the producer's mapping, while the GPU reads nothing.
    let consumer = unsafe { Mmap::map(&file) }.expect("mapped");
    let first = adopt(consumer.as_ptr(), FRAME).expect("a GPU");
    println!("all of {} is registered", Bytes((FRAMES * FRAME) as u64));
    let device = GpuMemory::new(FRAME);
    let pinned = copies::DriverHostMemory::new(FRAME);
    let mut times = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        for (way, times) in times.iter_mut().enumerate() {
            let at = (round * 3 + way) % FRAMES * FRAME;
            producer[at..][..FRAME].fill(round as u8);
            let frame = &consumer[at..][..FRAME];
            let began = Instant::now();
            match way {
                0 => device.copy_in(frame.as_ptr() as usize, FRAME),
                1 => {
                    // SAFETY: both have the length of a frame, and do not overlap.
                    unsafe { frame.as_ptr().copy_to_nonoverlapping(pinned.at() as *mut u8, FRAME) };
                    device.copy_in(pinned.at(), FRAME);
                }
                _ => {
                    let adopted = adopt(frame.as_ptr(), FRAME).expect("shared memory");
                    device.copy_in(adopted.device_address().expect("a GPU") as usize, FRAME);
                    device.finish();
                }
            }
            device.finish();
            times.push(began.elapsed().as_secs_f64());
            assert_eq!(device.read(1), [round as u8]);
        }
    }
    drop(first);
    let median = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2] * 1e6
    });
    println!("\n| a frame of 8.3 MB to the GPU | pageable | by own pinned memory | adopted |");
    println!("| --- | --- | --- | --- |");
    println!("| median of {ROUNDS} | {:.0} us | {:.0} us | {:.0} us |", median[0], median[1], median[2]);
    assert!(median[2] * 1.5 < median[1], "{median:?}");
}
