//! The load of a host's agent into the buffer for loaded files.

#![allow(unsafe_code, reason = "declares a buffer filled that this agent has filled")]

use std::sync::{Mutex, OnceLock};

use hostbuf::job::Collective;
use hostbuf::segment::{ControlPage, Segments};
use hostbuf::{Bytes, JobError};
use hostbuf_load::{EarlyLoad, LoadOptions, LoadProgress, SourceFile, Tensors};
use hostbuf_os::process;

use super::load_failure::load_failure;
use crate::load_status::{LoadStatus, ReportedFile};
use crate::report::Report;
use crate::report_interval::ReportInterval;
use crate::spec::Spec;

/// Files of tensors in a buffer of this host, before the ranks have it.
pub(crate) struct LoadedTensors {
    load: EarlyLoad,
    /// The index of the buffer.
    index: usize,
}

impl LoadedTensors {
    /// Loads the files of a job into its buffer for them, together with the agents of the other
    /// hosts. `loads` shows the state. Returns `None` for a job without such files. Collective.
    ///
    /// # Errors
    /// On all agents: one line about the first file that cannot be loaded.
    pub(crate) fn load(
        spec: &Spec,
        group: &dyn Collective,
        segments: &Segments,
        loads: &LoadStatus,
    ) -> Result<Option<LoadedTensors>, JobError> {
        if spec.load.is_empty() || spec.as_files.is_some() {
            return Ok(None);
        }
        let index = spec.buffers.iter().position(|buffer| buffer.name == Tensors::BUFFER);
        let mapping = match index {
            Some(index) => segments.map(index).map_err(JobError::from),
            None => {
                Err(hostbuf::Error::Invalid { what: "--load without a buffer for the files".into() }.into())
            }
        };
        let mapping = JobError::all_or_first(group, mapping)?;
        let page = index.map_or(0, |index| segments.page_bytes(index));
        let begun = OnceLock::new();
        let interval = Mutex::new(ReportInterval::default());
        let observer = |progress: &LoadProgress| {
            let counters = progress.counters();
            let (done, total) = (counters.bytes().min(counters.file_bytes), counters.file_bytes);
            // The first call precedes the others.
            begun.get_or_init(|| {
                let table = progress.table().unwrap_or_default();
                let file = |file: &SourceFile| ReportedFile::new(&file.path, file.bytes(), page);
                loads.begin(spec.job, &table.files().iter().map(file).collect::<Vec<_>>());
            });
            loads.set_loaded(done);
            // Another thread reports, if the lock is taken.
            let is_due = spec.reports && interval.try_lock().is_ok_and(|mut interval| interval.is_due());
            if is_due {
                Report::Loading { host: process::host_name(), done, total }.print();
            }
        };
        let loaded = LoadOptions::new().load_early(group, mapping, Tensors::BUFFER, &spec.load, &observer);
        let load = loaded.map_err(load_failure)?;
        loads.complete(load.counters().file_bytes);
        if spec.reports {
            Report::Loaded { host: process::host_name(), message: describe(&load) }.print();
        }
        Ok(index.map(|index| LoadedTensors { load, index }))
    }

    /// Declares the buffer as filled, so that the ranks find the tensors there, and unmaps it. No
    /// rank has the buffer yet.
    pub(crate) fn publish(self, page: &ControlPage) {
        // SAFETY: the load went into the buffer of this index, and the caller has not sent it to
        // any rank.
        unsafe { self.load.publish(page, self.index) };
    }
}

/// Describes loaded files: the number of tensors and files, their size, the share that this host
/// has read, and the time and its bound.
fn describe(load: &EarlyLoad) -> String {
    let (table, counters) = (load.table(), load.counters());
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let mut text = format!(
        "{} of {}, {}, of which this host has read {}, in {:.2} s ({} a second)",
        count(table.tensors().len(), "tensor"),
        count(table.files().len(), "file"),
        Bytes(counters.file_bytes),
        Bytes(counters.bytes_read),
        counters.elapsed.as_secs_f64(),
        Bytes(counters.rate() as u64)
    );
    if let Some(bound) = counters.bound() {
        text += &format!(", bound by the {bound}");
    }
    text
}
