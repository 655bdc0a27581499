//! Adoption with a registrar that counts, and with page-locking.

#![allow(unsafe_code, reason = "the tests map files at chosen addresses, read shared memory, and fork")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use hostbuf_register::testing::fake::Fake;
use hostbuf_register::{Access, Mlock, Overlap, Registrar, RegistrarProperties, Span};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::*;

const PAGE: usize = 4096;
const READ: Access = Access::READ;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn adopter(bytes: usize) -> (Arc<Fake>, Adopter<Fake>) {
    let properties = RegistrarProperties::new(Overlap::Refused).granularity(PAGE);
    let fake = Arc::new(Fake::with_properties(properties));
    (fake.clone(), Adopter::new(fake, AdoptOptions::new().bytes(bytes)).unwrap())
}

/// Makes a memfd of `pages` pages, each of which begins with its stamp.
fn memfd(number: u64, pages: usize) -> File {
    let file =
        File::from(memfd_create(c"adopt", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap());
    stamp(&file, number, pages);
    file
}

fn stamp(file: &File, number: u64, pages: usize) {
    file.set_len((pages * PAGE) as u64).unwrap();
    for page in 0..pages {
        let stamp = (number << 32) | page as u64;
        std::os::unix::fs::FileExt::write_all_at(file, &stamp.to_le_bytes(), (page * PAGE) as u64).unwrap();
    }
}

/// A file in `/dev/shm`, whose name is removed at the end.
struct NamedFile(String, File);

impl NamedFile {
    fn new(number: u64, pages: usize) -> NamedFile {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = format!("/dev/shm/hostbuf-adopt-{}-{next}", std::process::id());
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        stamp(&file, number, pages);
        NamedFile(path, file)
    }
}

impl Drop for NamedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A mapping as another library would have it.
struct Foreign(Span);

impl Foreign {
    fn at(address: usize, file: &File, pages: usize, offset: usize, protection: i32, flags: i32) -> Foreign {
        let fixed = if address == 0 { 0 } else { libc::MAP_FIXED };
        // SAFETY: a new mapping, or one over a mapping of the same test.
        let at = unsafe {
            let (fd, offset) = (file.as_raw_fd(), (offset * PAGE) as libc::off_t);
            libc::mmap(address as *mut _, pages * PAGE, protection, flags | fixed, fd, offset)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        Foreign(Span::new(at as usize, pages * PAGE).unwrap())
    }

    fn shared(file: &File, pages: usize) -> Foreign {
        Foreign::at(0, file, pages, 0, BOTH, libc::MAP_SHARED)
    }

    fn part(&self, from: usize, length: usize) -> Span {
        Span::new(self.0.start() + from, length).unwrap()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: mapped above.
        unsafe { libc::munmap(self.0.start() as *mut _, self.0.len()) };
    }
}

/// Returns the stamp at the start of the array's bytes, by hostbuf's mapping.
fn seen<R: Registrar>(adopted: &Adopted<R>) -> u64 {
    // SAFETY: the hold keeps the mapping, and stamps begin pages.
    unsafe { (adopted.host_span().start() as *const u64).read_volatile() }
}

fn kind<T>(result: Result<T, AdoptError>) -> &'static str {
    match result {
        Ok(_) => "adopted",
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n') && !text.contains("  "), "{text}");
            error.kind()
        }
    }
}

/// Maps one of many files at one address, again and again, and expects the bytes of that file.
fn remap(adopter: &Adopter<Fake>, files: &[File], pages: usize, seed: u64) {
    let address = Foreign::shared(&files[0], pages);
    let mut random = seed;
    for round in 0..1000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (number, first) = ((random >> 33) as usize % files.len(), (random >> 50) as usize % pages);
        let length = pages - first;
        let over = Foreign::at(address.0.start(), &files[number], length, first, BOTH, libc::MAP_SHARED);
        let at = (random >> 40) as usize % length;
        let adopted = adopter.adopt(over.part(at * PAGE, PAGE), READ).unwrap();
        let expected = ((number as u64) << 32) | (first + at) as u64;
        assert_eq!(seen(&adopted), expected, "round {round}");
        // It stays mapped, for the next file to replace.
        std::mem::forget(over);
    }
}

#[test]
fn a_thousand_remaps_at_one_address_never_show_the_wrong_frame() {
    let files: Vec<File> = (0..16).map(|number| memfd(number, 8)).collect();
    for (budget, registrations) in [(1 << 30, 16..=16), (2 * 8 * PAGE, 100..=1000)] {
        let (fake, adopter) = adopter(budget);
        remap(&adopter, &files, 8, 7);
        assert!(registrations.contains(&fake.made()), "{} with {budget}", fake.made());
        assert!(fake.peak().1 <= budget);
    }
}

#[test]
fn four_threads_that_remap_never_see_the_wrong_frame() {
    let files: Vec<File> = (0..16).map(|number| memfd(number, 8)).collect();
    for budget in [1 << 30, 6 * 8 * PAGE] {
        let (fake, adopter) = adopter(budget);
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (adopter, files) = (&adopter, &files);
                scope.spawn(move || remap(adopter, files, 8, seed));
            }
        });
        assert!(fake.peak().1 <= budget && fake.made() >= 16);
        adopter.evict_all();
        assert_eq!((fake.live().len(), adopter.registered_bytes(), adopter.registered_files()), (0, 0, 0));
    }
}

#[test]
fn a_file_is_registered_once_and_outlives_the_other_mapping() {
    let (fake, adopter) = adopter(1 << 20);
    let file = memfd(5, 8);
    let foreign = Foreign::shared(&file, 8);
    let first = adopter.adopt(foreign.part(PAGE, 100), READ).unwrap();
    let second = adopter.adopt(foreign.part(3 * PAGE, 5 * PAGE), READ).unwrap();
    assert_eq!((fake.made(), fake.live()[0].1.len(), fake.live()[0].2), (1, 8 * PAGE, READ));
    assert_eq!((first.offset(), first.len(), first.key()), (PAGE, 100, second.key()));
    drop((foreign, file));
    assert_eq!((seen(&first), seen(&second)), ((5 << 32) | 1, (5 << 32) | 3));
    drop((first, second, adopter));
    assert!(fake.live().is_empty());
}

#[test]
fn threads_that_come_at_once_register_once() {
    let (fake, adopter) = adopter(1 << 20);
    let file = memfd(0, 2);
    let foreign = Foreign::shared(&file, 2);
    fake.close();
    std::thread::scope(|scope| {
        let adopt = || adopter.adopt(foreign.0, READ).map(|adopted| seen(&adopted));
        let threads = [scope.spawn(adopt), scope.spawn(adopt)];
        fake.expect_waiting(1);
        fake.open();
        for thread in threads {
            assert_eq!(thread.join().unwrap().unwrap(), 0);
        }
    });
    assert_eq!(fake.made(), 1);
}

/// Drops the capabilities of the calling thread.
fn drop_capabilities() {
    let (none, header) = ([0u32; 6], [0x2008_0522u32, 0]);
    // SAFETY: both are as the kernel expects them, and concern this thread alone.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }, 0);
}

#[test]
fn a_file_is_found_by_its_descriptor_or_its_name_and_otherwise_unnamed() {
    let (_, adopter) = adopter(1 << 20);
    // The kernel's links to mapped files are for capable threads only.
    let adopt = |span| {
        let ordinary = || {
            drop_capabilities();
            adopter.adopt(span, READ).map(|adopted| seen(&adopted))
        };
        std::thread::scope(|scope| scope.spawn(ordinary).join().unwrap())
    };
    let unlinked = NamedFile::new(1, 2);
    let foreign = Foreign::shared(&unlinked.1, 2);
    std::fs::remove_file(&unlinked.0).unwrap();
    assert_eq!(adopt(foreign.0).unwrap(), 1 << 32);

    let NamedFile(name, file) = &*std::mem::ManuallyDrop::new(NamedFile::new(2, 2));
    let foreign = Foreign::shared(file, 2);
    // SAFETY: the file is not used again.
    unsafe { libc::close(file.as_raw_fd()) };
    assert_eq!(adopt(foreign.0).unwrap(), 2 << 32);
    adopter.evict_all();
    // Another file has got the name.
    std::fs::remove_file(name).unwrap();
    let other = File::options().write(true).create_new(true).open(name).unwrap();
    stamp(&other, 3, 2);
    let unnamed = adopt(foreign.0).unwrap_err();
    std::fs::remove_file(name).unwrap();
    assert_eq!(unnamed.kind(), "Unnamed");
    assert!(unnamed.to_string().contains(&format!("{name} (deleted)")), "{unnamed}");

    let file = memfd(4, 2);
    let foreign = Foreign::shared(&file, 2);
    drop(file);
    let unnamed = adopt(foreign.0).unwrap_err();
    assert_eq!(unnamed.kind(), "Unnamed");
    assert!(unnamed.to_string().contains("/memfd:adopt (deleted)"), "{unnamed}");
    // A capable thread opens the kernel's link.
    let capable = adopter.adopt(foreign.0, READ);
    match nix::unistd::geteuid().is_root() {
        true => assert_eq!(seen(&capable.unwrap()), 4 << 32),
        false => drop(capable),
    }
}

#[test]
fn other_memory_has_an_error_of_its_own() {
    let (fake, adopter) = adopter(1 << 20);
    let file = memfd(0, 4);
    let private = Foreign::at(0, &file, 2, 0, BOTH, libc::MAP_PRIVATE);
    assert_eq!(kind(adopter.adopt(private.0, READ)), "Private");
    let heap = vec![0u8; 2 * PAGE];
    assert_eq!(kind(adopter.adopt(Span::of(&heap).unwrap(), READ)), "Private");

    // A part of another file, and a hole, in the middle of the range.
    let area = Foreign::shared(&file, 4);
    let over =
        std::mem::ManuallyDrop::new(Foreign::at(area.0.start() + PAGE, &file, 1, 3, BOTH, libc::MAP_SHARED));
    match adopter.adopt(area.0, READ) {
        Err(AdoptError::Discontiguous { at, .. }) => assert_eq!(at, over.0.start()),
        other => panic!("{other:?}"),
    }
    // SAFETY: a page of the area.
    unsafe { libc::munmap(over.0.start() as *mut _, PAGE) };
    match adopter.adopt(area.0, READ) {
        Err(AdoptError::NotMapped { hole, .. }) => assert_eq!(hole, over.0.start()),
        other => panic!("{other:?}"),
    }
    // Mappings that were split show one part of the file.
    let split = Foreign::shared(&file, 4);
    // SAFETY: a page of the mapping.
    unsafe { libc::mprotect((split.0.start() + PAGE) as *mut _, PAGE, libc::PROT_READ) };
    assert_eq!(kind(adopter.adopt(split.0, READ)), "adopted");
    assert_eq!(kind(adopter.adopt(split.0, Access::WRITE)), "ReadOnly");

    // The file of this program, which is on a disk unless the whole build is in memory.
    let program = File::open("/proc/self/exe").unwrap();
    let mapped = Foreign::at(0, &program, 1, 0, libc::PROT_READ, libc::MAP_SHARED);
    if nix::sys::statfs::fstatfs(&program).unwrap().filesystem_type() == nix::sys::statfs::TMPFS_MAGIC {
        eprintln!("skipped: the test program is in tmpfs");
    } else {
        assert_eq!(kind(adopter.adopt(mapped.0, READ)), "OnDisk");
    }
    assert_eq!(fake.made(), 1);
}

#[test]
fn writing_needs_a_writable_mapping_and_file() {
    let (fake, adopter) = adopter(1 << 20);
    let file = memfd(0, 2);
    let foreign = Foreign::shared(&file, 2);
    drop(adopter.adopt(foreign.0, READ).unwrap());
    // The registration for both uses replaces the one for reading.
    let writable = adopter.adopt(foreign.0, Access::WRITE).unwrap();
    let reading = adopter.adopt(foreign.0, READ).unwrap();
    assert_eq!((fake.made(), fake.live().len(), reading.key()), (2, 1, writable.key()));
    assert!(reading.access().writes());

    let read_only = Foreign::at(0, &file, 2, 0, libc::PROT_READ, libc::MAP_SHARED);
    assert_eq!(kind(adopter.adopt(read_only.0, Access::WRITE)), "ReadOnly");
    // A pool's segment: its producer has mapped it, and nobody else can write.
    let sealed = memfd(1, 2);
    let producers = Foreign::shared(&sealed, 2);
    fcntl(&sealed, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE)).unwrap();
    assert_eq!(kind(adopter.adopt(producers.0, Access::WRITE)), "ReadOnly");
    assert_eq!(seen(&adopter.adopt(producers.0, READ).unwrap()), 1 << 32);
}

#[test]
fn a_truncated_file_is_refused_and_gets_a_new_registration_when_it_grows() {
    let (fake, adopter) = adopter(1 << 20);
    let file = memfd(1, 4);
    let foreign = Foreign::shared(&file, 4);
    let old = adopter.adopt(foreign.0, READ).unwrap();
    file.set_len(2 * PAGE as u64).unwrap();
    match adopter.adopt(foreign.0, READ) {
        Err(AdoptError::Truncated { needed, size, .. }) => {
            assert_eq!((needed, size), (4 * PAGE as u64, 2 * PAGE as u64));
        }
        other => panic!("{other:?}"),
    }
    file.set_len(0).unwrap();
    stamp(&file, 2, 4);
    // The device would go on using the pages of before.
    let new = adopter.adopt(foreign.part(3 * PAGE, PAGE), READ).unwrap();
    assert_eq!((fake.made(), seen(&new), new.key() != old.key()), (2, (2 << 32) | 3, true));
    assert_eq!(adopter.registered_files(), 2);
    drop(old);
    assert_eq!(adopter.registered_files(), 1);
    // Also at once, within a tick of the clock, and by a hole.
    file.set_len(0).unwrap();
    stamp(&file, 3, 4);
    assert_eq!(seen(&adopter.adopt(foreign.0, READ).unwrap()), 3 << 32);
    assert_eq!(fake.made(), 3);
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, hole, 0, PAGE as i64).unwrap();
    stamp(&file, 4, 4);
    assert_eq!(seen(&adopter.adopt(foreign.0, READ).unwrap()), 4 << 32);
    assert_eq!(fake.made(), 4);
    // New bytes in the same pages change the file, but not its pages.
    stamp(&file, 5, 4);
    assert_eq!(seen(&adopter.adopt(foreign.0, READ).unwrap()), 5 << 32);
    assert_eq!(fake.made(), 4);
    // Some calls come before the file's time is certainly over, and some afterwards.
    let begun = std::time::Instant::now();
    while begun.elapsed().as_millis() < 50 {
        assert_eq!(seen(&adopter.adopt(foreign.0, READ).unwrap()), 5 << 32);
    }
    assert_eq!(fake.made(), 4);
    file.set_len(0).unwrap();
    stamp(&file, 6, 4);
    assert_eq!(seen(&adopter.adopt(foreign.0, READ).unwrap()), 6 << 32);
    assert_eq!(fake.made(), 5);
    // A file that has grown is registered whole again for its new part.
    stamp(&file, 7, 8);
    let longer = Foreign::shared(&file, 8);
    assert_eq!(seen(&adopter.adopt(longer.part(7 * PAGE, 1), READ).unwrap()), (7 << 32) | 7);
    assert_eq!(fake.made(), 6);
}

#[test]
fn huge_pages_of_a_pool_are_adopted_and_holes_in_them_noticed() {
    let page = 2 << 20;
    let file = File::from(memfd_create(c"huge", MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB).unwrap());
    file.set_len(2 * page as u64).unwrap();
    // SAFETY: a new mapping, which stays.
    let at = unsafe { libc::mmap(null_mut(), 2 * page, BOTH, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return eprintln!("skipped: huge pages: {} (/proc/sys/vm/nr_hugepages)", io::Error::last_os_error());
    }
    let (fake, adopter) = adopter(1 << 30);
    let span = Span::new(at as usize + page + 8, 100).unwrap();
    let write = |value: u64| {
        // SAFETY: inside the mapping.
        unsafe { (span.start() as *mut u64).write_volatile(value) };
    };
    write(7);
    assert_eq!(seen(&adopter.adopt(span, READ).unwrap()), 7);
    assert_eq!((fake.live()[0].1.len(), fake.made()), (2 * page, 1));
    drop(adopter.adopt(span, READ).unwrap());
    assert_eq!(fake.made(), 1);
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, hole, page as i64, page as i64).unwrap();
    write(8);
    assert_eq!(seen(&adopter.adopt(span, READ).unwrap()), 8);
    assert_eq!(fake.made(), 2);
}

#[test]
fn the_budget_evicts_what_is_not_held_and_refuses_beyond() {
    let (fake, adopter) = adopter(4 * PAGE);
    let files: Vec<File> = (0..4).map(|number| memfd(number, 2)).collect();
    let foreign: Vec<Foreign> = files.iter().map(|file| Foreign::shared(file, 2)).collect();
    let adopt = |number: usize| adopter.adopt(foreign[number].0, READ);
    drop((adopt(0).unwrap(), adopt(1).unwrap(), adopt(0).unwrap()));
    // The least recently used one is file 1.
    drop(adopt(2).unwrap());
    drop(adopt(0).unwrap());
    assert_eq!((fake.made(), fake.ended()), (3, vec![2]));
    let (held, other) = (adopt(0).unwrap(), adopt(2).unwrap());
    match adopt(3) {
        Err(AdoptError::Budget { requested, budget, held, segments, .. }) => {
            assert_eq!((requested, budget, held, segments), (2 * PAGE, 4 * PAGE, 4 * PAGE, 2));
        }
        other => panic!("{other:?}"),
    }
    drop(other);
    assert_eq!(seen(&adopt(3).unwrap()), 3 << 32);
    assert_eq!(seen(&held), 0);
    // A file that never fits evicts nothing.
    let large = memfd(9, 5);
    let large = Foreign::shared(&large, 5);
    let why = adopter.adopt(large.part(0, 1), READ).unwrap_err();
    assert!(why.to_string().contains("needs 20 KiB of a budget of 16 KiB"), "{why}");
    assert_eq!((adopter.registered_files(), adopter.registered_bytes()), (2, 4 * PAGE));
    assert!(fake.peak().1 <= 4 * PAGE);
}

#[test]
fn a_file_without_name_and_mappings_ends_with_the_next_registration() {
    let (fake, adopter) = adopter(1 << 20);
    let next = |number| {
        let file = memfd(number, 1);
        let foreign = Foreign::shared(&file, 1);
        drop(adopter.adopt(foreign.0, READ).unwrap());
    };
    let (gone, named) = (memfd(0, 1), NamedFile::new(1, 1));
    let (gone_mapping, named_mapping) = (Foreign::shared(&gone, 1), Foreign::shared(&named.1, 1));
    let held = adopter.adopt(gone_mapping.0, READ).unwrap();
    drop(adopter.adopt(named_mapping.0, READ).unwrap());
    drop((gone_mapping, named_mapping));
    next(2);
    assert_eq!(fake.live().len(), 3);
    drop(held);
    // An open descriptor allows another mapping, as a name does.
    next(3);
    assert_eq!((fake.live().len(), fake.ended().len()), (3, 1));
    drop(gone);
    next(4);
    assert_eq!((fake.live().len(), fake.ended().len()), (2, 3));
}

#[test]
fn a_registration_is_tried_twice_for_memory_and_a_failure_keeps_nothing() {
    let (fake, adopter) = adopter(1 << 20);
    let (file, other) = (memfd(1, 2), memfd(2, 2));
    let (foreign, other) = (Foreign::shared(&file, 2), Foreign::shared(&other, 2));
    drop(adopter.adopt(other.0, READ).unwrap());
    fake.fail(1, libc::ENOMEM);
    drop(adopter.adopt(foreign.0, READ).unwrap());
    // The other one has made room for the second attempt.
    assert_eq!(fake.live().len(), 1);
    adopter.evict_all();
    for (failures, errno) in [(2, libc::ENOMEM), (1, libc::EIO)] {
        fake.fail(failures, errno);
        assert_eq!(kind(adopter.adopt(foreign.0, READ)), "Registration");
        assert_eq!((adopter.registered_bytes(), fake.live().len()), (0, 0));
    }
    assert_eq!(kind(adopter.adopt(foreign.0, READ)), "adopted");
}

/// Runs a check in a child, which returns true for success.
fn in_child(check: impl FnOnce() -> bool) {
    // SAFETY: the child runs the check and ends.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => {
            assert_eq!(waitpid(child, None).unwrap(), WaitStatus::Exited(child, 0));
        }
        ForkResult::Child => {
            let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
            // SAFETY: runs no exit handler of the parent.
            unsafe { libc::_exit(i32::from(!well)) }
        }
    }
}

#[test]
fn a_child_makes_an_adopter_of_its_own() {
    let (fake, adopter) = adopter(1 << 20);
    let file = memfd(1, 2);
    let foreign = Foreign::shared(&file, 2);
    let held = adopter.adopt(foreign.0, READ).unwrap();
    let own_span = held.host_span();
    in_child(|| {
        let forked = matches!(adopter.adopt(foreign.0, READ), Err(AdoptError::Forked));
        adopter.evict_all();
        // SAFETY: the child's copy, and it ends before anybody drops it again.
        drop(unsafe { std::ptr::read(&raw const held) });
        let maps = hostbuf_os::mapping_query::ProcessMaps::open().unwrap();
        let found = maps.at_or_after(own_span.start()).unwrap();
        let unmapped = found.is_none_or(|mapping| mapping.start > own_span.start());
        let (_, own) = self::adopter(1 << 20);
        let works = own.adopt(foreign.0, READ).is_ok_and(|adopted| seen(&adopted) == 1 << 32);
        forked && works && unmapped && fake.ended().is_empty()
    });
    assert_eq!((seen(&held), fake.live().len()), (1 << 32, 1));
    let name = "mlock".parse().unwrap();
    let parents = process_adopter(&name).unwrap();
    assert!(Arc::ptr_eq(&parents, &process_adopter(&name).unwrap()));
    in_child(|| {
        let own = process_adopter(&name).unwrap();
        !Arc::ptr_eq(&parents, &own) && own.adopt(foreign.0, READ).is_ok()
    });
    assert_eq!(parents.adopt(foreign.0, READ).unwrap().device_address(), None);
}

struct Signalled(mpsc::Receiver<()>);

impl Completion for Signalled {
    fn is_complete(&self) -> io::Result<bool> {
        match self.0.try_recv() {
            Ok(()) => Ok(true),
            Err(mpsc::TryRecvError::Empty) => Ok(false),
            Err(mpsc::TryRecvError::Disconnected) => Err(io::Error::other("the device has failed")),
        }
    }

    fn wait(&self) -> io::Result<()> {
        self.0.recv().map_err(io::Error::other)
    }
}

/// An array that reports its drop.
struct Array(mpsc::Sender<&'static str>, &'static str);

impl Drop for Array {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

fn release_thread_runs() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks.map(|task| task.path().join("comm")).any(|path| {
        let mut name = String::new();
        File::open(path).and_then(|mut file| file.read_to_string(&mut name)).is_ok()
            && name == "hostbuf-release\n"
    })
}

#[test]
fn a_hold_ends_when_its_operation_is_complete() {
    let (fake, adopter) = adopter(2 * PAGE);
    let (file, other) = (memfd(1, 2), memfd(2, 2));
    let (foreign, other) = (Foreign::shared(&file, 2), Foreign::shared(&other, 2));
    let (dropped, drops) = mpsc::channel();
    let (first_done, first) = mpsc::channel();
    let (second_done, second) = mpsc::channel();
    let adopt = || adopter.adopt(foreign.0, READ).unwrap();
    let (one, two) = (adopt(), adopt());
    assert!(!release_thread_runs());
    one.release_after(Signalled(first), Array(dropped.clone(), "first"));
    two.release_after(Signalled(second), Array(dropped.clone(), "second"));
    assert!(release_thread_runs());
    // An operation that takes long does not delay the end of others.
    second_done.send(()).unwrap();
    assert_eq!(drops.recv(), Ok("second"));
    assert_eq!(kind(adopter.adopt(other.0, READ)), "Budget");
    in_child(|| {
        let (_, own) = self::adopter(2 * PAGE);
        let (dropped, drops) = mpsc::channel();
        let (done, operation) = mpsc::channel();
        done.send(()).unwrap();
        own.adopt(foreign.0, READ).unwrap().release_after(Signalled(operation), Array(dropped, "child"));
        drops.recv() == Ok("child")
    });
    first_done.send(()).unwrap();
    assert_eq!(drops.recv(), Ok("first"));
    // The array goes after the hold.
    assert_eq!(kind(adopter.adopt(other.0, READ)), "adopted");
    // A failed device holds nothing.
    let (failing, operation) = mpsc::channel();
    drop(failing);
    adopter.adopt(other.0, READ).unwrap().release_after(Signalled(operation), Array(dropped, "failed"));
    assert_eq!(drops.recv(), Ok("failed"));
    assert_eq!(fake.made(), 2);
}

#[test]
fn page_locking_locks_the_file_once() {
    let locked = || hostbuf_os::memlock::locked() as usize;
    let adopter = Adopter::new(Arc::new(Mlock::new()), AdoptOptions::new()).unwrap();
    let file = NamedFile::new(3, 4);
    let foreign = Foreign::shared(&file.1, 4);
    let before = locked();
    let adopted = adopter.adopt(foreign.part(2 * PAGE, 9), READ).unwrap();
    drop(adopter.adopt(foreign.0, READ).unwrap());
    assert_eq!((locked() - before, seen(&adopted)), (4 * PAGE, (3 << 32) | 2));
    adopter.evict_all();
    assert_eq!(locked() - before, 4 * PAGE);
    drop(adopted);
    adopter.evict_all();
    assert_eq!(locked(), before);
}
