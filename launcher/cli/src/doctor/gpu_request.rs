//! The check of a requested buffer's GPU sections.

use std::collections::BTreeSet;
use std::time::Duration;

use hostbuf::gpu::{HostGpus, MappedSections};
use hostbuf::segment::{GpuPiece, gpu_pieces};
use hostbuf::{BufferOptions, Bytes, Section};

use super::child;
use crate::finding::Finding;

/// Checks, in a child process, whether all GPUs of this process have access to small sections on
/// the GPUs of the buffer's sections. Returns `None` for a buffer without such sections.
pub(super) fn line(buffer: Option<&BufferOptions>) -> Option<Finding> {
    let sections = || buffer.into_iter().flat_map(|buffer| &buffer.sections).filter(|s| s.is_on_gpus());
    let gpus: BTreeSet<u32> = sections().flat_map(|section| section.gpus.iter().copied()).collect();
    let bytes = sections().map(|section| section.size).sum();
    let small = sections().fold(BufferOptions::new(0), |options, section| {
        let gpus = section.gpus.iter().copied().collect::<BTreeSet<_>>();
        options.section(Section::new(section.name.clone(), 1).gpus(gpus))
    });
    let pieces = gpu_pieces(&[small]);
    let map = || map(&pieces).map_or_else(|why| format!("error {why}"), |()| "ok".into());
    (!gpus.is_empty()).then(|| finding(&gpus, bytes, child::ask(Duration::from_secs(60), map)))
}

/// Maps these pieces as a job does, and unmaps them.
///
/// # Errors
/// The reason why a job with these GPUs fails, and the remedy.
fn map(pieces: &[GpuPiece]) -> Result<(), String> {
    let mapped = HostGpus::find().and_then(|host| MappedSections::create_anywhere(&host, pieces));
    mapped.map(drop).map_err(|error| error.to_string())
}

fn finding(gpus: &BTreeSet<u32>, bytes: u64, asked: Result<String, String>) -> Finding {
    const NAME: &str = "--section gpu=";
    let numbers = gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let lacks = |why: &str| Finding::lacks(NAME, why.to_owned()).needed();
    match asked.as_deref() {
        Ok("ok") => {
            let says = format!(
                "{} on GPU {numbers}: visible here, and able to share memory; the start of the job allocates it",
                Bytes(bytes)
            );
            Finding::ok(NAME, says).needed()
        }
        Ok(answer) => lacks(answer.strip_prefix("error ").unwrap_or(answer)),
        Err(why) => lacks(&format!("cannot query the driver: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Mark;

    #[test]
    fn a_gpu_that_is_not_visible_is_a_lack() {
        let gpus = BTreeSet::from([0, 3]);
        let good = finding(&gpus, 4 << 20, Ok("ok".into()));
        assert!(
            good.mark == Mark::Ok && good.needed && good.says.starts_with("4 MiB on GPU 0, 3: "),
            "{}",
            good.says
        );
        for (asked, says) in
            [(Ok("error gpu=3 is not".into()), "gpu=3 is not"), (Err("it crashed".into()), "cannot query")]
        {
            let bad = finding(&gpus, 1, asked);
            assert!(bad.mark == Mark::Lacks && bad.needed && bad.says.starts_with(says), "{}", bad.says);
        }
        assert!(line(None).is_none() && line(Some(&BufferOptions::new(1))).is_none());
    }
}
