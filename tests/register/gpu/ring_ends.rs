//! The end of rings with copies in flight, on a GPU and on the fake driver: a forked child, a
//! buffer that is frozen, and the end of the process.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostbuf::job::Solo;
use hostbuf::register::CudaHost;
use hostbuf::{BufferOptions, HostBuffer, Proof};
use hostbuf_cuda::CudaContext;
use hostbuf_staging::{CudaDevice, File, ReadAt, Ring, TransferError};
use hostbuf_tests::Scratch;
use hostbuf_tests::fake_cuda::{SLOW_COPIES, with_fake_cuda_and};

use super::MIB;
use super::held_stream::HeldStream;
use super::ring_contract::{PART, SLOT, options, other_process, read_back, ring};
use super::ring_faults::wait_for_copies;
use super::rings::{content, target};
use super::streams::first_gpu;
use crate::child::{self, End};
use crate::ended_process::{IN_FLIGHT, assert_ends_well};

const BYTES: usize = 10 * SLOT + 99;

fn source_file(folder: &Scratch, bytes: usize) -> File {
    let path = folder.path("from");
    fs::write(&path, content(bytes, 21)).expect("the folder is writable");
    File::open(&path).expect("it is there")
}

/// Forks while all slots of a ring are copied. The parent goes on.
fn fork_in_flight() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let folder = Scratch::new("ring-forked");
    let (file, to) = (source_file(&folder, BYTES), target(&context, BYTES));
    let mut own = Some(ring(&gpu));
    let held = HeldStream::of(own.as_ref().expect("it was just made"));
    let mut transfer = own.as_ref().map(|ring| file.pread(ring, to.clone(), 0));
    wait_for_copies(own.as_ref().expect("it is still there"), 0);
    let end = child::does(|| {
        // The parent keeps its own ring and transfer.
        let (ring, transfer) = (own.take().expect("a ring"), transfer.take().expect("a transfer"));
        let later = file.pread(&ring, to.clone(), 0);
        transfer.cancel();
        let well = !ring.is_usable()
            && transfer.test()
            && matches!(transfer.wait(), Err(TransferError::Forked))
            && matches!(later.wait(), Err(TransferError::Forked));
        drop(transfer);
        drop(ring);
        well
    });
    assert_eq!(end, End::Well);
    let (ring, transfer) = (own.expect("it is the parent's"), transfer.expect("it is the parent's"));
    assert!(ring.is_usable() && !transfer.test());
    drop(held);
    assert_eq!(transfer.wait().expect("the child has cancelled nothing"), BYTES as u64);
    assert!(read_back(&ring, &folder, to) == content(BYTES, 21));
}

/// Freezes the buffer of a ring while all its slots are copied.
fn freeze_in_flight() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(8 << 20)).expect("8 MiB");
    buffer.initialize(|arena| arena.place(7u64)).expect("it has room");
    let registrar = Arc::new(CudaHost::new(gpu.ordinal()).expect("a context"));
    let region = buffer.exclusive_region(MIB..MIB + options().bytes().expect("valid options"));
    let region = region.and_then(|region| region.registered(&registrar)).expect("a registered region");
    let device = CudaDevice::new(&context).expect("a stream");
    let ring = Ring::new(device, options(), region).expect("a ring");
    let folder = Scratch::new("ring-frozen");
    let (file, to) = (source_file(&folder, BYTES), target(&context, BYTES));
    file.pread(&ring, to.clone(), 0).wait().expect("it is read");
    assert!(read_back(&ring, &folder, to.clone()) == content(BYTES, 21));

    let (copies, held) = (ring.counters().copies, HeldStream::of(&ring));
    let transfer = file.pread(&ring, to.clone(), 0);
    wait_for_copies(&ring, copies);
    let frozen = std::thread::scope(|scope| {
        let freezing = scope.spawn(|| buffer.freeze(&Solo));
        while ring.is_usable() {
            std::thread::yield_now();
        }
        // The GPU still reads the slots. A freeze that does not wait for it would end within this
        // time.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(100) {
            assert!(!freezing.is_finished());
            std::thread::yield_now();
        }
        drop(held);
        freezing.join().expect("no panic").expect("the ring has ended")
    });
    // The kernel seals no memory that the GPU has pinned.
    assert_eq!(*frozen.proof(), Proof::Sealed);
    assert!(matches!(transfer.wait(), Err(TransferError::Cancelled { .. })));
    let later = file.pread(&ring, to, 0).wait();
    assert!(matches!(later, Err(TransferError::Cancelled { landed: 0 })), "{later:?}");
    assert_eq!(buffer.root::<u64>().expect("it is filled"), Some(&7));
}

/// A source whose reads never end.
#[derive(Default)]
struct EndlessSource {
    is_read: AtomicBool,
}

impl ReadAt for EndlessSource {
    fn name(&self) -> String {
        "an endless source".into()
    }

    fn read_at(&self, _into: &mut [u8], _offset: u64) -> io::Result<usize> {
        self.is_read.store(true, Ordering::SeqCst);
        loop {
            std::thread::park();
        }
    }
}

/// Leaves transfers in flight: a GPU copies, and a thread of another ring reads.
fn start_in_flight() {
    let gpu = first_gpu();
    let context = CudaContext::retain(&gpu).expect("a context");
    let file = {
        let folder = Scratch::new("ring-exit");
        // The file stays open without its folder.
        source_file(&folder, 64 * SLOT)
    };
    let shared = Ring::of_gpu(&gpu).expect("a ring");
    let to = target(&context, 64 * SLOT);
    let (copying, reading) = (ring(&gpu), ring(&gpu));
    let endless = Arc::new(EndlessSource::default());
    let mut transfers = vec![reading.read(endless.clone(), 0, to.clone())];
    for ring in [&copying, &*shared] {
        transfers.extend((0..8).map(|_| file.pread(ring, to.clone(), 0)));
    }
    while copying.counters().copies < 5 || !endless.is_read.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    assert!(transfers.iter().any(|transfer| !transfer.test()));
    println!("{IN_FLIGHT}");
    // The exit handlers of the driver run while the threads of the rings go on.
    std::mem::forget((transfers, copying, reading, shared));
}

/// Lets other processes that run the test `name` end with transfers in flight.
fn end_process_in_flight(name: &str) {
    match std::env::var(PART).as_deref() {
        Ok("exit") => {
            start_in_flight();
            std::process::exit(0)
        }
        // The harness returns from main.
        Ok(_) => return start_in_flight(),
        Err(_) => {}
    }
    for part in ["exit", "return", "exit", "return"] {
        assert_ends_well(&mut other_process(name, part));
    }
}

#[test]
fn a_forked_child_has_no_ring_of_the_fake_driver() {
    let name = "gpu::ring_ends::a_forked_child_has_no_ring_of_the_fake_driver";
    if with_fake_cuda_and(name, &[SLOW_COPIES]) {
        fork_in_flight();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_forked_child_has_no_ring_of_a_gpu() {
    fork_in_flight();
}

#[test]
fn a_ring_of_the_fake_driver_ends_before_its_buffer_is_frozen() {
    let name = "gpu::ring_ends::a_ring_of_the_fake_driver_ends_before_its_buffer_is_frozen";
    if with_fake_cuda_and(name, &[SLOW_COPIES]) {
        freeze_in_flight();
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_ring_of_a_gpu_ends_before_its_buffer_is_frozen() {
    freeze_in_flight();
}

#[test]
fn a_process_ends_while_the_fake_driver_copies() {
    let name = "gpu::ring_ends::a_process_ends_while_the_fake_driver_copies";
    if with_fake_cuda_and(name, &[SLOW_COPIES]) {
        end_process_in_flight(name);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_process_ends_while_a_gpu_copies() {
    end_process_in_flight("gpu::ring_ends::a_process_ends_while_a_gpu_copies");
}
