//! Libraries that are loaded and unloaded at run time.

#![allow(unsafe_code, reason = "the tests load and unload libraries")]

use std::ffi::{CStr, CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::memory::{PAGE, map_over};
use crate::stale::changed_by;
use crate::{READ, strict};

/// A loaded library; dropping it calls dlclose.
struct LoadedLibrary(*mut c_void);

/// Builds tests/fixtures/late.c as a library for one test.
fn build(name: &str) -> PathBuf {
    let built = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("liblate-{name}.so"));
    let source = hostbuf_tests::root().join("tests/fixtures/late.c");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&built).arg(source);
    assert!(command.status().expect("a C compiler is there").success());
    built
}

impl LoadedLibrary {
    fn load(path: &std::path::Path) -> LoadedLibrary {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the library has no constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        LoadedLibrary(handle)
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: it is loaded.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    /// Returns the address of whole pages in its zeroed data: anonymous memory that the loader
    /// mapped.
    fn table(&self) -> usize {
        (self.symbol(c"late_table") as usize).next_multiple_of(PAGE) + 8 * PAGE
    }
}

impl Drop for LoadedLibrary {
    fn drop(&mut self) {
        // SAFETY: it was loaded once, and nothing of it is used any more.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}

#[test]
fn a_library_loaded_later_changes_memory_and_hits_stay_correct() {
    let Some((_, cache)) = strict() else { return };
    // The monitor starts before the library is loaded.
    let library = LoadedLibrary::load(&build("changes"));
    for name in [c"late_remap", c"late_raw_remap", c"late_raw_over", c"late_raw_discard"] {
        type Change = unsafe extern "C" fn(*mut u8, usize) -> i32;
        // SAFETY: so it is declared.
        let change: Change = unsafe { std::mem::transmute(library.symbol(name)) };
        changed_by(name.to_str().unwrap(), |at, length| {
            // SAFETY: the test's own pages.
            assert_eq!(unsafe { change(at as *mut u8, length) }, 1);
        });
    }
    drop(cache);
}

#[test]
fn dlclose_ends_registrations_of_the_library_data() {
    const LENGTH: usize = 16 * PAGE;
    let Some((fake, cache)) = strict() else { return };
    let path = build("goes");
    let mut again = 0;
    for round in 0..50 {
        let library = LoadedLibrary::load(&path);
        let table = library.table();
        let get = || *cache.get(table as *const u8, LENGTH, READ).unwrap().handle();
        let mut before = get();
        // The cache keeps the registration, unless the monitor had no core in time, which is
        // counted.
        let mut busy = 0;
        while get() != before {
            assert!(cache.stats().busy > busy, "{:?}", cache.stats());
            (busy, before) = (cache.stats().busy, get());
        }
        drop(library);
        assert!(cache.try_get(table as *const u8, PAGE, READ).is_none(), "round {round}");
        // The next load often uses the same addresses.
        let library = LoadedLibrary::load(&path);
        if library.table() == table {
            again += 1;
            assert!(cache.try_get(table as *const u8, PAGE, READ).is_none(), "round {round}");
            assert_ne!(*cache.get(table as *const u8, LENGTH, READ).unwrap().handle(), before);
        }
    }
    assert!(again > 0, "the loader never used the same address again");
    assert_eq!(cache.stats().unwatchable, 0);
    drop(cache);
    assert!(fake.live().is_empty());
}

/// The loader holds its lock while it unmaps and waits for the monitor. Meanwhile other threads
/// take leases of the library's own data and of memory that changes.
#[test]
fn dlclose_does_not_deadlock_with_busy_threads() {
    const LENGTH: usize = 16 * PAGE;
    let Some((_, cache)) = strict() else { return };
    let path = build("busy");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let area = crate::memory::GuardedMapping::new(4);
                while !stop.load(Ordering::Relaxed) {
                    drop(cache.get(area.pointer(), area.len(), READ).unwrap());
                    map_over(area.at(), area.len());
                    // A thread that starts or ends calls the loader for its thread-local storage.
                    std::thread::scope(|inner| {
                        drop(inner.spawn(|| cache.try_get(area.pointer(), 1, READ).is_some()));
                    });
                }
            });
        }
        let begun = Instant::now();
        let mut rounds = 0;
        while begun.elapsed() < Duration::from_millis(700) || rounds < 20 {
            let library = LoadedLibrary::load(&path);
            let table = library.table() as *const u8;
            let lease = cache.get(table, LENGTH, READ).unwrap();
            drop(library);
            assert!(cache.try_get(table, LENGTH, READ).is_none());
            drop(lease);
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
}
