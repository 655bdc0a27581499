//! Several copies of the library in one process: this program has one, libhostbuf another, the
//! Python module one more, and with `--register` the registering object.
//!
//!   copies SCENARIO LIBHOSTBUF [PYTHON]

#![allow(unsafe_code, reason = "foreign functions and fork")]

mod library;
mod python;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostbuf::job::Solo;
use hostbuf::register::{Access, Budget, Error, Mlock, MonitorMode, Probe, RegistrationCache};
use hostbuf::{HostBuffer, Proof};
use hostbuf_programs::memory::{GuardedMapping, PAGE, map_over};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use library::{DEFAULT, FILL, FREEZE, LoadedCopy, READ, STRICT, UNSUPPORTED, WRITE};
use python::Python;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let library = words.get(2).expect("libhostbuf");
    let interpreter = || Python::start(words.get(3).expect("the library of an interpreter"));
    match words[1].as_str() {
        "freeze" => freeze(&LoadedCopy::load(library), &interpreter()),
        "monitor" => monitor(&LoadedCopy::load(library), &interpreter()),
        "own" => own(&LoadedCopy::load(library)),
        "fill" => fill(&LoadedCopy::load(library)),
        "fork" => forks(&LoadedCopy::load(library)),
        "unload" => unload(library),
        "race" => race(library),
        "skew" => skew(&words[2]),
        other => panic!("{other}"),
    }
    println!("well {}", words[1]);
}

fn cache(mode: MonitorMode) -> Result<RegistrationCache<Mlock>, Error> {
    RegistrationCache::new(Arc::new(Mlock::new()), Budget::new(16).bytes(1 << 24), mode)
}

/// Returns the launcher's buffer, filled.
fn filled() -> HostBuffer {
    let buffer = HostBuffer::attach().expect("a launcher has started this program");
    buffer.initialize(|arena| arena.place(7u64)).expect("it can be filled");
    buffer
}

fn start_of(buffer: &HostBuffer) -> usize {
    buffer.as_ptr().as_ptr() as usize
}

/// Returns the message of a freeze that fails.
fn refused(buffer: &HostBuffer) -> String {
    match buffer.freeze(&Solo) {
        Err(hostbuf::Error::Freeze { why }) => why,
        other => panic!("the freeze should fail: {other:?}"),
    }
}

/// Checks that freezing in the program's copy asks the caches of all others.
fn freeze(library: &LoadedCopy, python: &Python) {
    let buffer = filled();
    let start = start_of(&buffer);
    let own = cache(MonitorMode::Explicit).expect("a cache");
    drop(own.get(start as *const u8, PAGE, Access::WRITE).expect("a lease"));
    let (handle, device) = (library.attach(), library.device());
    let cache = library.cache(&device, DEFAULT).expect("a cache");
    cache.get_and_put(start, PAGE, WRITE);
    assert!(cache.hits(start, PAGE, WRITE));
    python.run("buffer = hostbuf.attach()\ncache = hostbuf.Cache('mlock')");
    python.run(
        "with memoryview(buffer) as view:\n  with cache.get(view, 'write') as lease: pass\ndel view, lease",
    );

    let lease = cache.get(start + 4 * PAGE, PAGE, WRITE).expect("a lease");
    let why = refused(&buffer);
    assert!(why.contains("a lease lets mlock write") && why.contains("libhostbuf.so"), "{why}");
    cache.put(lease);
    let registration = handle.register(&device, WRITE).expect("a registration");
    let why = refused(&buffer);
    assert!(why.contains("has registered") && why.contains("libhostbuf.so"), "{why}");
    // A freeze that has failed allows writing again, in all copies.
    drop(own.get(start as *const u8, PAGE, Access::WRITE).expect("a lease"));
    cache.get_and_put(start, PAGE, WRITE);
    handle.deregister(registration);
    python.run("view = memoryview(buffer)\nlease = cache.get(view, 'write')");
    let why = refused(&buffer);
    assert!(why.contains("a lease") && why.contains("_hostbuf"), "{why}");
    python.run("lease.release() if hasattr(lease, 'release') else lease.__exit__(None, None, None)\nview.release()\ndel view, lease");

    let frozen = buffer.freeze(&Solo).expect("nothing prevents it any more");
    assert_eq!(*frozen.proof(), Proof::Sealed);
    assert!(!cache.hits(start, PAGE, WRITE));
    for status in [cache.get(start, PAGE, WRITE).map(drop), handle.register(&device, WRITE).map(drop)] {
        assert_eq!(status, Err(FREEZE), "{}", library.message());
    }
    cache.get_and_put(start, PAGE, READ);
    python.run(
        "view = memoryview(buffer)\ntry: cache.get(view, 'write')\nexcept (hostbuf.Error, BufferError, ValueError, TypeError): pass\n\
         else: raise AssertionError('a frozen buffer was registered for writing')\n\
         with cache.get(view, 'read') as lease: pass\n\
         assert cache.stats()['registrations'] == 1, cache.stats()",
    );
    // The registering object has registered the buffer again, for reading.
    println!("registered {:?}", registered());
}

/// Returns the number of registrations of `--register` in this process, if the object is loaded.
fn registered() -> Option<usize> {
    // SAFETY: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"hostbuf_registered".as_ptr()) };
    if found.is_null() {
        return None;
    }
    Some(hostbuf_programs::registered::registered().len())
}

/// Checks that one copy has the monitor, and that the others have no stale hits, and say why they
/// have no monitor.
fn monitor(library: &LoadedCopy, python: &Python) {
    let own = cache(MonitorMode::Required).expect("the monitor");
    let device = library.device();
    let program = std::env::current_exe().expect("a path");
    let program = program.to_str().expect("UTF-8");
    let area = GuardedMapping::new(4);
    let (start, length) = (area.at(), area.len());

    // The environment selects the mode of the other languages.
    // SAFETY: this program has one thread that reads the environment.
    unsafe { std::env::set_var("HOSTBUF_CACHE_MONITOR", "required") };
    assert_eq!(library.cache(&device, DEFAULT).err(), Some(UNSUPPORTED));
    let why = library.message();
    assert!(why.contains(program) && why.contains("hostbuf 0.") && why.contains("has the monitor"), "{why}");
    python.run(&format!("from hostbuf import _hostbuf\nworks, why = _hostbuf.monitor()\nassert not works and '{program}' in why, why"));
    python.run(
        "try: hostbuf.Cache('mlock')\nexcept hostbuf.Error as error: assert error.kind == 'OtherCopy', error.kind\n\
         else: raise AssertionError('two copies have the monitor')",
    );
    // SAFETY: as above.
    unsafe { std::env::remove_var("HOSTBUF_CACHE_MONITOR") };
    let without = library.cache(&device, STRICT).expect("a cache without the monitor");

    // Both see a change: the owner by its monitor, the other since it keeps nothing.
    for change in 0..3 {
        drop(own.get(start as *const u8, length, Access::READ).expect("a lease"));
        assert!(own.try_get(start as *const u8, length, Access::READ).is_some());
        without.get_and_put(start, length, READ);
        assert!(
            !without.hits(start, length, READ),
            "the copy without the monitor keeps memory that it cannot watch"
        );
        map_over(start, length);
        drop(own.get(start as *const u8, length, Access::READ).expect("a lease"));
        assert_eq!(own.stats().changed, change + 1);
    }

    // The monitor goes to another copy when the owner's last strict cache ends.
    drop(own);
    let with = library.cache(&device, STRICT).expect("a cache");
    with.get_and_put(start, length, READ);
    assert!(with.hits(start, length, READ));
    match cache(MonitorMode::Required) {
        Err(Error::OtherCopy { path, version, .. }) => {
            assert!(
                path.ends_with("libhostbuf.so") && version == env!("CARGO_PKG_VERSION"),
                "{path} {version}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(MonitorMode::probe(), Probe::Missing(why) if why.contains("libhostbuf.so")));
    let own = cache(MonitorMode::Strict).expect("a cache without the monitor");
    drop(own.get(start as *const u8, length, Access::READ).expect("a lease"));
    assert!(own.try_get(start as *const u8, length, Access::READ).is_none());
    assert_eq!(own.stats().unproven, 1);
    map_over(start, length);
    assert!(!with.hits(start, length, READ));
    with.get_and_put(start, length, READ);
    assert!(with.hits(start, length, READ));
}

/// Checks that memory that one copy owns is own memory for the caches of the others, which keep it
/// mapped.
fn own(library: &LoadedCopy) {
    let buffer = HostBuffer::allocate(&Solo, hostbuf::BufferOptions::new(1 << 16)).expect("a buffer");
    let (start, length) = (start_of(&buffer), buffer.len());
    let device = library.device();
    let cache = library.cache(&device, STRICT).expect("a cache");
    cache.get_and_put(start, length, READ);
    assert!(cache.hits(start, length, READ), "memory of another copy is not kept");
    drop(buffer);
    // SAFETY: only asks whether it is mapped.
    let is_mapped = || unsafe { libc::msync(start as *mut c_void, length, libc::MS_ASYNC) == 0 };
    assert!(is_mapped(), "a registration does not keep the memory of another copy");
    drop(cache);
    assert!(!is_mapped());
}

static RAN: AtomicBool = AtomicBool::new(false);

extern "C" fn filler(_: *mut c_void, _: *mut c_void) -> *mut c_void {
    RAN.store(true, Ordering::SeqCst);
    null_mut()
}

/// Checks that one copy fills a buffer at a time, although a record lock belongs to the process.
fn fill(library: &LoadedCopy) {
    let buffer = HostBuffer::attach().expect("a launcher has started this program");
    let other = library.attach();
    let root = std::thread::scope(|scope| {
        let mut thread = None;
        let root = buffer.initialize(|arena| {
            let generation = buffer.generation()?;
            assert_eq!(other.initialize(filler), FILL, "{}", library.message());
            assert!(library.message().contains("already filling"), "{}", library.message());
            assert!(!RAN.load(Ordering::SeqCst));
            let other = &other;
            thread = Some(scope.spawn(move || other.initialize(filler)));
            // The other copy's filler must not run. Without the guard it does at once.
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(300) && !RAN.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert_eq!((RAN.load(Ordering::SeqCst), buffer.generation()?), (false, generation));
            arena.place(7u64)
        });
        // It finds the buffer filled, by an object of another language.
        assert_eq!(thread.take().map(|thread| thread.join().expect("no panic")), Some(FILL));
        root.copied()
    });
    assert_eq!((root.expect("it is filled"), RAN.load(Ordering::SeqCst)), (7, false));
}

/// Checks that any copy may start a monitor in a forked child, which has none.
fn forks(library: &LoadedCopy) {
    let own = cache(MonitorMode::Required).expect("the monitor");
    let device = library.device();
    let area = GuardedMapping::new(1);
    for _ in 0..20 {
        // SAFETY: the child makes caches, and ends.
        let ForkResult::Parent { child } = (unsafe { fork() }).expect("a child") else {
            let device = library.device();
            let with = library.cache(&device, STRICT).expect("a cache");
            with.get_and_put(area.at(), area.len(), READ);
            let hits = with.hits(area.at(), area.len(), READ);
            let refused = matches!(cache(MonitorMode::Required), Err(Error::OtherCopy { .. }));
            // SAFETY: runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!(hits && refused))) }
        };
        assert!(matches!(waitpid(child, None), Ok(WaitStatus::Exited(_, 0))));
    }
    // The children have changed nothing for the parent.
    let status = library.cache(&device, STRICT).map(|other| {
        other.get_and_put(area.at(), area.len(), READ);
        other.hits(area.at(), area.len(), READ)
    });
    assert_eq!(status, Ok(false));
    drop(own);
}

/// Checks that a copy that has been used stays loaded, since others ask it, and one that has not
/// may be unloaded.
fn unload(path: &str) {
    let is_loaded = || std::fs::read_to_string("/proc/self/maps").expect("the mappings").contains(path);
    LoadedCopy::load(path).unload();
    assert!(!is_loaded());
    let buffer = filled();
    let library = LoadedCopy::load(path);
    // In a thread that ends, since the C library keeps an object loaded while a thread has values
    // of it to be dropped.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (_handle, device) = (library.attach(), library.device());
            let cache = library.cache(&device, STRICT).expect("a cache");
            cache.get_and_put(start_of(&buffer), PAGE, WRITE);
        });
    });
    library.unload();
    assert!(is_loaded());
    buffer.freeze(&Solo).expect("nothing prevents it");
}

/// Checks that two copies find each other that are used for the first time at once.
fn race(path: &str) {
    let library = LoadedCopy::load(path);
    let barrier = std::sync::Barrier::new(2);
    let (own, other) = std::thread::scope(|scope| {
        let own = scope.spawn(|| {
            barrier.wait();
            cache(MonitorMode::Required)
        });
        // SAFETY: no other thread reads the environment now.
        unsafe { std::env::set_var("HOSTBUF_CACHE_MONITOR", "required") };
        let device = library.device();
        barrier.wait();
        let other = library.cache(&device, DEFAULT).map(std::mem::forget);
        (own.join().expect("no panic"), other)
    });
    assert_ne!(own.is_ok(), other == Ok(()), "{own:?} {other:?}");
}

/// Checks that a copy with a table of another version is named, since it cannot be asked: nothing
/// is frozen and no monitor starts.
fn skew(path: &str) {
    let buffer = filled();
    let newer = LoadedCopy::load(path);
    for refused in [
        buffer.freeze(&Solo).map(drop).unwrap_err(),
        cache(MonitorMode::Required).map(drop).unwrap_err().into(),
    ] {
        let hostbuf::Error::Register(Error::OtherCopy { path: found, version, why }) = refused else {
            panic!("{refused}");
        };
        assert_eq!((found.as_str(), version.as_str()), (path, "9.9.9"));
        assert!(why.contains("one version"), "{why}");
    }
    newer.unload();
    buffer.freeze(&Solo).expect("the other copy has gone");
}
