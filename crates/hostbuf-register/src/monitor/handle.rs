//! A cache's connection to the process's monitor.

use std::sync::Arc;

use super::change_sequence::ChangeSequences;
use super::current;
use super::descriptor_set::DescriptorSet;
use super::process_monitor::ProcessMonitor;
use super::watched::{Unwatched, Watched, Watcher};
use crate::error::Result;
use crate::span::Span;

/// A cache's connection to the process's monitor.
pub(crate) struct MonitorHandle {
    monitor: Option<Arc<ProcessMonitor>>,
    sequences: Option<Arc<ChangeSequences>>,
}

impl MonitorHandle {
    /// Connects to the process's monitor, which the first call starts. Without one, no memory is
    /// watched.
    pub(crate) fn start() -> MonitorHandle {
        match current::acquire() {
            Ok(monitor) => MonitorHandle::with(monitor),
            Err(none) => {
                let why = none.to_string();
                tracing::warn!(
                    why,
                    "the memory of this program cannot be watched, so memory that is not hostbuf's is registered anew for \
                     each lease: use memory of hostbuf (PinnedAlloc, HostBuffer), or set HOSTBUF_CACHE_MONITOR=explicit \
                     and invalidate memory before it changes"
                );
                MonitorHandle { monitor: None, sequences: None }
            }
        }
    }

    /// Connects to the process's monitor, which the first call starts.
    ///
    /// # Errors
    /// [`Error::OtherCopy`](crate::Error::OtherCopy) or
    /// [`Error::Unsupported`](crate::Error::Unsupported) if there is none.
    pub(crate) fn start_required() -> Result<MonitorHandle> {
        match current::acquire() {
            Ok(monitor) => Ok(MonitorHandle::with(monitor)),
            Err(none) => Err(none.into_error("a cache that requires the monitor")),
        }
    }

    fn with(monitor: Arc<ProcessMonitor>) -> MonitorHandle {
        MonitorHandle { sequences: Some(monitor.sequences().clone()), monitor: Some(monitor) }
    }

    /// Returns a number that each change reported by `set` advances, and that is odd while a change
    /// is applied. Read it before the entry to be validated.
    #[inline(always)]
    pub(crate) fn sequence(&self, set: DescriptorSet) -> u64 {
        self.sequences.as_ref().map_or(0, |sequences| sequences.read(set))
    }

    /// Returns whether no change that `set` reports is in progress, and none has been applied since
    /// the sequence was `before`.
    #[inline(always)]
    pub(crate) fn unchanged_since(&self, set: DescriptorSet, before: u64) -> bool {
        self.sequences.as_ref().is_some_and(|sequences| sequences.unchanged_since(set, before))
    }

    /// Waits until every change that was in progress in memory that `set` watches has been applied,
    /// so that an entry that is live afterwards was not affected. Returns false after about a
    /// millisecond if other threads change memory without a pause, or if one change takes long.
    pub(crate) fn settle(&self, set: DescriptorSet) -> bool {
        self.monitor.as_ref().is_some_and(|monitor| monitor.settle(set))
    }

    /// Returns whether one mapping of the kernel contains all of `span`.
    pub(crate) fn is_one_mapping(&self, span: Span) -> bool {
        self.monitor.as_ref().is_some_and(|monitor| monitor.is_one_mapping(span))
    }

    /// Watches the whole mappings that contain `span`.
    pub(crate) fn watch(&self, span: Span) -> std::result::Result<Watched, Unwatched> {
        self.monitor.as_ref().ok_or(Unwatched::Unproven)?.watch(span)
    }

    /// Adds a receiver of changes.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if too many caches share the monitor.
    pub(crate) fn subscribe(&self, watcher: Arc<dyn Watcher>) -> Result<()> {
        self.monitor.as_ref().map_or(Ok(()), |monitor| monitor.subscribe(watcher))
    }

    /// Removes a receiver of changes.
    pub(crate) fn unsubscribe(&self, watcher: &dyn Watcher) {
        if let Some(monitor) = &self.monitor {
            monitor.unsubscribe(watcher);
        }
    }
}

impl Drop for MonitorHandle {
    fn drop(&mut self) {
        if let Some(monitor) = self.monitor.take() {
            current::release(monitor);
        }
    }
}
