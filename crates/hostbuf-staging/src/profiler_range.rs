//! Ranges in the timeline of a profiler.

use std::marker::PhantomData;

use crate::range_name::RangeName;

/// A range of one thread in the timeline of a profiler, until it is dropped. Ranges of a thread are
/// dropped in the reverse order.
///
/// With the feature `nvtx` it is a range of NVTX, in the domain `hostbuf`. Without the feature it
/// does nothing.
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub struct ThreadRange {
    #[cfg(feature = "nvtx")]
    _range: nvtx::domain::LocalRange<'static>,
    /// A pointer, since the range ends in the thread in which it began.
    _of_this_thread: PhantomData<*const ()>,
}

impl ThreadRange {
    /// Begins a range.
    pub fn new(name: RangeName) -> ThreadRange {
        #[cfg(not(feature = "nvtx"))]
        let _ = name;
        ThreadRange {
            #[cfg(feature = "nvtx")]
            _range: crate::nvtx_domain::thread_range(name, None),
            _of_this_thread: PhantomData,
        }
    }

    /// Begins a range that states a number of bytes.
    pub fn of_bytes(name: RangeName, bytes: usize) -> ThreadRange {
        #[cfg(not(feature = "nvtx"))]
        let _ = (name, bytes);
        ThreadRange {
            #[cfg(feature = "nvtx")]
            _range: crate::nvtx_domain::thread_range(name, Some(bytes as u64)),
            _of_this_thread: PhantomData,
        }
    }

    /// Begins a range with the name that `name` returns. Without the feature `nvtx`, `name` is not
    /// called.
    pub fn named(name: impl FnOnce() -> String) -> ThreadRange {
        #[cfg(not(feature = "nvtx"))]
        let _ = name;
        ThreadRange {
            #[cfg(feature = "nvtx")]
            _range: crate::nvtx_domain::named_thread_range(name()),
            _of_this_thread: PhantomData,
        }
    }
}

/// A range in the timeline of a profiler that any thread may end by dropping it. See
/// [`ThreadRange`].
#[derive(Debug)]
#[must_use = "the range ends when this is dropped"]
pub(crate) struct ProfilerRange {
    #[cfg(feature = "nvtx")]
    _range: nvtx::domain::Range<'static>,
}

impl ProfilerRange {
    /// Begins a range that states a number of bytes. Without the feature `nvtx`, `bytes` is not
    /// called.
    pub(crate) fn of_bytes(name: RangeName, bytes: impl FnOnce() -> u64) -> ProfilerRange {
        #[cfg(not(feature = "nvtx"))]
        let _ = (name, bytes);
        ProfilerRange {
            #[cfg(feature = "nvtx")]
            _range: crate::nvtx_domain::range(name, bytes()),
        }
    }

    /// Begins a range with the name that `name` returns. Without the feature `nvtx`, `name` is not
    /// called.
    pub(crate) fn named(name: impl FnOnce() -> String, bytes: u64) -> ProfilerRange {
        #[cfg(not(feature = "nvtx"))]
        let _ = (name, bytes);
        ProfilerRange {
            #[cfg(feature = "nvtx")]
            _range: crate::nvtx_domain::named_range(name(), bytes),
        }
    }
}
