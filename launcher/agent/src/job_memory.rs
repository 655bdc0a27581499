//! The memory of a job on one host: its buffers, and the files that it loads.

use std::time::Instant;

use hostbuf::job::Collective;
use hostbuf::segment::Segments;
use hostbuf::{Bytes, JobError};
use hostbuf_memory::populate::Workers;
use hostbuf_os::cores::Cores;
use hostbuf_os::process;

use super::files::{FolderSlot, HostFiles, LoadOutcome};
use super::load_status::LoadStatus;
use super::report::Report;
use super::report_interval::ReportInterval;
use super::spec::Spec;

/// The size of a transparent huge page in bytes.
const HUGE_PAGE: u64 = 2 << 20;

/// The memory of a job on this host, which has no pages yet.
pub(super) struct JobMemory {
    segments: Segments,
    files: Option<HostFiles>,
}

impl JobMemory {
    pub(super) fn new(segments: Segments, files: Option<HostFiles>) -> JobMemory {
        JobMemory { segments, files }
    }

    /// Allocates all pages. Returns the time that it took in microseconds, too.
    ///
    /// # Errors
    /// As [`Segments::populate`] and [`HostFiles::populate`].
    pub(super) fn populate(mut self, spec: &Spec) -> Result<(JobMemory, u64), JobError> {
        let begun = Instant::now();
        let workers = Workers::Children(Cores::own());
        let eager = self.segments.eager();
        let bytes = self.files.as_ref().map_or(0, HostFiles::bytes);
        let mut allocated =
            progress(spec, eager + bytes, |host, done, total| Report::Progress { host, done, total });
        self.segments.populate(workers, &mut allocated)?;
        if let Some(files) = &mut self.files {
            files.populate(workers, &mut |done| allocated(eager + done))?;
        }
        Ok((self, begun.elapsed().as_micros() as u64))
    }

    /// Loads the files into the folder; `loads` shows the state. Returns the buffers. Collective.
    ///
    /// # Errors
    /// As [`HostFiles::load`].
    pub(super) fn load(
        self,
        spec: &Spec,
        group: &dyn Collective,
        folder: &FolderSlot,
        loads: &LoadStatus,
    ) -> Result<Segments, JobError> {
        let Some(files) = self.files else { return Ok(self.segments) };
        let bytes = files.bytes();
        let mut read = progress(spec, bytes, |host, done, total| Report::Loading { host, done, total });
        loads.begin(spec.job, &files.reported());
        let outcome = files.load(group, folder, &mut |done| {
            loads.set_loaded(done);
            read(done);
        })?;
        loads.complete(bytes);
        if spec.reports {
            Report::Loaded { host: process::host_name(), message: describe(&outcome) }.print();
        }
        Ok(self.segments)
    }
}

/// Returns a function that reports the number of bytes done, of `total`, from time to time.
fn progress(spec: &Spec, total: u64, report: impl Fn(String, u64, u64) -> Report) -> impl FnMut(u64) {
    let mut interval = ReportInterval::default();
    let reports = spec.reports;
    move |done| {
        if reports && interval.is_due() {
            report(process::host_name(), done, total).print();
        }
    }
}

/// Describes loaded files: their number and size, the way and the time in which they were read, and
/// the pages of their memory.
fn describe(outcome: &LoadOutcome) -> String {
    let LoadOutcome { files, bytes, own, huge, reading, backends, mapped_page } = outcome;
    let s = if *files == 1 { "" } else { "s" };
    let ways: Vec<String> = match backends.len() {
        1 => backends.keys().cloned().collect(),
        _ => backends.iter().map(|(name, files)| format!("{name} ({files})")).collect(),
    };
    let shared = match own < bytes {
        true => format!(", of which this host has read {}", Bytes(*own)),
        false => String::new(),
    };
    let rate = Bytes((*bytes as f64 / reading.as_secs_f64().max(1e-6)) as u64);
    let mut text = format!(
        "{files} file{s}, {}{shared}, read by {} in {:.2} s ({rate} a second), {} on huge pages",
        Bytes(*bytes),
        ways.join(", "),
        reading.as_secs_f64(),
        Bytes(*huge)
    );
    if let Some(page) = mapped_page {
        text += &format!("; the agent's mapping of the largest file has pages of {}", Bytes(*page));
        if *page < HUGE_PAGE && *huge > 0 {
            text += " (pages of 2 MiB need shmem_enabled: as root, echo advise > \
                     /sys/kernel/mm/transparent_hugepage/shmem_enabled)";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_description_states_the_pages_and_the_remedy() {
        let outcome = LoadOutcome {
            files: 2,
            bytes: 5 << 20,
            own: 5 << 20,
            huge: 4 << 20,
            reading: Duration::from_millis(500),
            backends: [("posix".to_owned(), 1), ("uring".to_owned(), 1)].into(),
            mapped_page: Some(4096),
        };
        let text = describe(&outcome);
        assert!(text.starts_with(
            "2 files, 5 MiB, read by posix (1), uring (1) in 0.50 s (10 MiB a second), 4 MiB on huge pages; \
             the agent's mapping of the largest file has pages of 4 KiB (pages of 2 MiB need shmem_enabled: "
        ), "{text}");
        let text = describe(&LoadOutcome { mapped_page: Some(2 << 20), ..outcome.clone() });
        assert!(text.ends_with("pages of 2 MiB"), "{text}");
        let shared = describe(&LoadOutcome { own: 3 << 20, ..outcome.clone() });
        assert!(
            shared.starts_with("2 files, 5 MiB, of which this host has read 3 MiB, read by "),
            "{shared}"
        );
        let one = LoadOutcome {
            files: 1,
            backends: [("uring".to_owned(), 1)].into(),
            mapped_page: None,
            ..outcome
        };
        assert!(describe(&one).starts_with("1 file, 5 MiB, read by uring in"), "{}", describe(&one));
    }
}
