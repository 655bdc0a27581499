//! The cost of a call of `adopt` for a frame in a file that is registered already, against the two
//! ways without it: copying the frame, and mapping and locking it for each call.

#![allow(unsafe_code, reason = "copies frames from shared memory by raw pointers")]

use std::fs::File;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use hostbuf::register::{Access, Mlock, Registration, Span};
use hostbuf_memory::FileMapping;
use hostbuf_memory::memfd::{self, Backing};
use hostbuf_pool::adopt::{AdoptOptions, Adopter};

use crate::chain::PAGE;
use crate::fixture::{BenchResult, Idle};
use crate::sample::{note, time, timed, turns, unmeasured};

/// The size of a frame of 1920 x 1080 pixels of 4 bytes.
const FRAME: usize = 1920 * 1080 * 4;
/// The frames of the file, which together are larger than most caches.
const FRAMES: usize = 8;
/// The time after a change of a file from which on a call need not look at its pages.
const SETTLED: Duration = Duration::from_millis(50);

/// Measures `repeats` turns of `calls` calls.
pub(crate) fn compare(repeats: usize, calls: usize) -> BenchResult {
    let file = memfd::create("adopt", (FRAMES * FRAME) as u64, Backing::Shmem)?;
    let foreign = FileMapping::new(file.as_fd(), 0, (FRAMES * FRAME) as u64, PAGE)
        .map_err(|refused| format!("mapping the frames: {refused:?}"))?;
    let file = File::from(file);
    // SAFETY: the mapping is this function's, and no reference to it exists.
    unsafe { (foreign.start() as *mut u8).write_bytes(1, FRAMES * FRAME) };
    let frame = |number: usize| Span::new(foreign.start() + number % FRAMES * FRAME, FRAME);
    // The registrar does nothing: a hit does not call it.
    let adopter = Adopter::new(Arc::new(Idle::default()), AdoptOptions::new())?;
    drop(adopter.adopt(frame(0)?, Access::READ)?);
    let mut target = vec![0u8; FRAME];
    let mut copy = |number: usize| -> BenchResult {
        let from = frame(number)?.start() as *const u8;
        // SAFETY: both have the length of a frame, and nobody writes to the source now.
        unsafe { from.copy_to_nonoverlapping(target.as_mut_ptr(), FRAME) };
        black_box(&mut target);
        Ok(())
    };
    let mlock = Arc::new(Mlock::new());
    let map = |number: usize| -> BenchResult {
        let offset = (number % FRAMES * FRAME) as u64;
        let mapping = FileMapping::new(file.as_fd(), offset, FRAME as u64, PAGE)
            .map_err(|refused| format!("mapping a frame: {refused:?}"))?;
        drop(Registration::new(&mlock, Span::new(mapping.start(), FRAME)?, Access::READ)?);
        Ok(())
    };
    let maps = map(0);
    std::thread::sleep(SETTLED);
    for repeat in 0..repeats {
        for side in turns(repeat) {
            if side == 0 {
                let (elapsed, result) = timed(|| -> BenchResult {
                    for call in 0..calls {
                        black_box(&adopter.adopt(frame(call)?, Access::READ)?);
                    }
                    Ok(())
                });
                result?;
                for key in ["adopt-copy", "adopt-map"] {
                    time(key, "ours", elapsed / calls as u32);
                }
            } else {
                let (elapsed, result) = timed(|| (0..FRAMES).try_for_each(&mut copy));
                result?;
                for key in ["adopt-copy", "adopt-changed"] {
                    time(key, "theirs", elapsed / FRAMES as u32);
                }
                if maps.is_ok() {
                    let (elapsed, result) = timed(|| (0..FRAMES).try_for_each(map));
                    result?;
                    time("adopt-map", "theirs", elapsed / FRAMES as u32);
                }
            }
        }
    }
    for _ in 0..repeats {
        file.write_all_at(&[1], 0)?;
        let (elapsed, result) = timed(|| adopter.adopt(frame(0)?, Access::READ).map(drop));
        result?;
        time("adopt-changed", "ours", elapsed);
    }
    file.write_all_at(&[1], 0)?;
    std::thread::sleep(SETTLED);
    let (elapsed, result) = timed(|| adopter.adopt(frame(0)?, Access::READ).map(drop));
    result?;
    let mib = (FRAMES * FRAME) >> 20;
    note(
        "adopt-changed",
        &format!("the first call after the last change asks for all pages, {mib} MiB: {elapsed:.0?}"),
    );
    if let Err(error) = maps {
        unmeasured("adopt-map", &error.to_string());
    }
    Ok(())
}
