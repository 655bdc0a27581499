//! The check whether this host can have GPU sections: what the driver does with addresses.

#![allow(unsafe_code, reason = "unmaps ranges that it has mapped")]

use std::os::fd::AsFd;
use std::time::Duration;

use hostbuf::segment::GPU_ADDRESS_ALIGNMENT;
use hostbuf_cuda::{CudaError, CudaGpu, Driver, GpuAccess, PhysicalMemory, VirtualRange};
use hostbuf_protocol::candidates::TOP;
use hostbuf_raw::maps;
use hostbuf_raw::syscall as raw;

use crate::doctor::child;
use crate::finding::Finding;

/// The size of a range that is tried, in bytes.
const RANGE: usize = 2 << 20;
/// The distance of the ranges: the driver remembers whole blocks of this size.
const BLOCK: usize = GPU_ADDRESS_ALIGNMENT as usize;
/// The address from which on free ranges are looked for.
const FROM: usize = 0x3000_0000_0000;
/// The number of ranges that are tried.
const RANGES: usize = 3;

/// Checks, in a child process, what the driver does with addresses of choice.
pub(super) fn line() -> Finding {
    finding(child::ask(Duration::from_secs(60), || try_driver().unwrap_or_else(|why| format!("error {why}"))))
}

/// Tries the driver. Returns `ok HELD TAKEN`: whether it grants a range that was mapped when it was
/// initialised, and one for which it was asked while the range was taken.
///
/// # Errors
/// The reason why there can be no GPU sections.
fn try_driver() -> Result<String, String> {
    let [held, taken, free] = free_ranges().ok_or("no addresses are free")?;
    let holds = |at: usize| raw::hold(at, RANGE).map_err(|errno| format!("mmap returns {}", errno.0));
    // SAFETY: the range was held by this function, and nothing was mapped over it.
    let release = |at: usize| unsafe { raw::unmap(at, RANGE) };
    holds(held)?;
    let gpu = Driver::find().and_then(|driver| driver.gpu(0)).map_err(text)?;
    release(held);
    holds(taken)?;
    let _ = VirtualRange::reserve(&gpu, RANGE, Some(taken as u64));
    release(taken);
    let is_granted = |at: usize| match VirtualRange::reserve(&gpu, RANGE, Some(at as u64)) {
        Ok(_) => "granted",
        Err(_) => "refused",
    };
    let (held, taken) = (is_granted(held), is_granted(taken));
    share(&gpu, free as u64).map_err(text)?;
    Ok(format!("ok {held} {taken}"))
}

/// Creates memory, and maps a descriptor of it at an address.
fn share(gpu: &CudaGpu, at: u64) -> Result<(), CudaError> {
    let range = VirtualRange::reserve(gpu, RANGE, Some(at))?;
    let created = PhysicalMemory::create(gpu, range.bytes())?;
    let imported = PhysicalMemory::import(gpu, created.export()?.as_fd(), created.bytes())?;
    range.map(imported, &[GpuAccess::read_write(gpu)]).map(drop)
}

fn text(error: CudaError) -> String {
    error.without_host()
}

/// Returns the addresses of free ranges.
fn free_ranges() -> Option<[usize; RANGES]> {
    let mut from = FROM;
    let mut found = [0; RANGES];
    for range in &mut found {
        *range = maps::hole(from, RANGE, BLOCK, TOP).ok()??;
        from = *range + BLOCK;
    }
    Some(found)
}

fn finding(asked: Result<String, String>) -> Finding {
    const NAME: &str = "GPU sections";
    let refused = |why: String| {
        Finding::note(NAME, format!("they are not available: {why}"))
            .mend("leave out gpu= in jobs that use this host")
    };
    let answer = match asked {
        Ok(answer) => answer,
        Err(why) => return refused(format!("cannot query the driver: {why}")),
    };
    match answer.split(' ').collect::<Vec<_>>()[..] {
        ["ok", held, taken] => {
            let says = format!(
                "GPU memory can be shared at chosen addresses. The driver has {held} addresses that were mapped at cuInit, and \
                 {taken} those that were requested while occupied; hostbuf handles both"
            );
            Finding::ok(NAME, says).value("mapped_at_init", held).value("asked_while_taken", taken)
        }
        _ => refused(answer.strip_prefix("error ").unwrap_or(&answer).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Mark;

    #[test]
    fn the_answers_of_the_driver_become_a_finding() {
        let good = finding(Ok("ok refused granted".into()));
        assert!(
            good.mark == Mark::Ok && good.says.contains("has refused addresses that were mapped at cuInit"),
            "{}",
            good.says
        );
        assert!(good.says.contains("granted those that were requested while occupied"), "{}", good.says);
        for asked in [Ok("error cuMemCreate returned 801".into()), Err("it crashed (SIGSEGV)".into())] {
            let bad = finding(asked);
            assert!(
                bad.mark == Mark::Note && bad.says.starts_with("they are not available: "),
                "{}",
                bad.says
            );
            assert_eq!(bad.mends.len(), 1);
        }
    }
}
