//! Rings in memory of buffers and pools.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hostbuf::job::Solo;
use hostbuf::register::testing::fake::Fake;
use hostbuf::register::{Overlap, RingMemory};
use hostbuf::{BufferOptions, Error, HostBuffer, Proof};
use hostbuf_pool::{Pool, PoolMode, PoolOptions, ProducerOptions};
use hostbuf_staging::{
    Backend, DeviceTarget, File, FileOptions, ReadAt, Ring, RingError, RingOptions, SimulatedDevice,
    SimulatedMemory, TransferError, WriteAt,
};
use hostbuf_tests::{Scratch, skip};

const SLOT: usize = 64 << 10;
const SLOTS: usize = 4;

/// The offset of the region in the buffer.
const REGION: usize = 512 << 10;

fn options() -> RingOptions {
    RingOptions::new().slots(SLOTS).slot_bytes(SLOT).piece_bytes(SLOT / 4).workers(2)
}

/// Returns the byte at an offset of a file.
fn byte_at(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A source and sink whose bytes follow from their offsets. Its reads wait while it is closed.
#[derive(Default)]
struct ComputedBytes {
    is_closed: AtomicBool,
    is_waiting: AtomicBool,
}

impl ReadAt for ComputedBytes {
    fn name(&self) -> String {
        "computed bytes".into()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        while self.is_closed.load(Ordering::SeqCst) {
            self.is_waiting.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        for (byte, offset) in into.iter_mut().zip(offset..) {
            *byte = byte_at(offset);
        }
        Ok(into.len())
    }
}

impl WriteAt for ComputedBytes {
    fn name(&self) -> String {
        "computed bytes".into()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let is_right = from.iter().zip(offset..).all(|(&byte, offset)| byte == byte_at(offset));
        if is_right { Ok(from.len()) } else { Err(io::Error::other("a wrong byte")) }
    }
}

/// Moves bytes through a ring in both directions, and checks them.
fn check_ring(ring: &Ring<SimulatedDevice>) {
    let memory = Arc::new(SimulatedMemory::new(10 * SLOT + 77));
    let (bytes, source) = (Arc::new(ComputedBytes::default()), DeviceTarget::new(memory.clone()));
    ring.read(bytes.clone(), 0, source.clone()).wait().expect("nothing fails");
    assert!(memory.content().iter().zip(0..).all(|(&byte, offset)| byte == byte_at(offset)));
    ring.write(source, bytes, 0).wait().expect("the bytes are right");
}

fn filled() -> HostBuffer {
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
    buffer.initialize(|arena| arena.place(7u64)).unwrap();
    buffer
}

#[test]
fn a_ring_uses_a_region_of_a_buffer() {
    let fake = Arc::new(Fake::new(Overlap::Refused));
    let buffer = filled();
    let region = buffer.exclusive_region(REGION..REGION + SLOTS * SLOT).unwrap();
    let region = region.registered(&fake).unwrap();
    assert_eq!(region.address().addr().get(), buffer.as_ptr().addr().get() + REGION);
    let ring = Ring::new(SimulatedDevice::reordering(1), options(), region).unwrap();
    check_ring(&ring);
    // The other bytes are untouched, and the region has none of two users.
    assert_eq!(buffer.root::<u64>().unwrap(), Some(&7));
    let taken = buffer.exclusive_region(REGION + SLOT..).unwrap_err();
    assert!(
        matches!(&taken, Error::Invalid { what } if what.contains("another part of the process")),
        "{taken}"
    );
    assert_eq!(fake.live().len(), 1);
    drop(ring);
    assert_eq!(fake.live().len(), 0);
    buffer.exclusive_region(REGION + SLOT..).unwrap();
}

#[test]
fn a_region_has_no_object_of_the_buffer() {
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).unwrap();
    let empty = buffer.exclusive_region(REGION..).unwrap_err();
    assert!(matches!(empty, Error::Fill { .. }), "{empty}");
    buffer.initialize(|arena| arena.place([1u8; 5000])).unwrap();
    let content = buffer.exclusive_region(4096..).unwrap_err();
    assert!(matches!(&content, Error::Invalid { what } if what.contains("ends at 5")), "{content}");
    buffer.exclusive_region(8192..).unwrap();
}

#[test]
fn a_ring_ends_before_its_buffer_is_frozen() {
    let fake = Arc::new(Fake::new(Overlap::Refused));
    let buffer = filled();
    let region = buffer.exclusive_region(REGION..REGION + SLOTS * SLOT).unwrap();
    let ring = Ring::new(SimulatedDevice::new(), options(), region.registered(&fake).unwrap()).unwrap();
    check_ring(&ring);
    let late = buffer.exclusive_region(REGION + SLOTS * SLOT..).unwrap();
    let bytes = Arc::new(ComputedBytes { is_closed: AtomicBool::new(true), ..ComputedBytes::default() });
    let to = DeviceTarget::new(Arc::new(SimulatedMemory::new(10 * SLOT)));
    let transfer = ring.read(bytes.clone(), 0, to.clone());
    while !bytes.is_waiting.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    let frozen = std::thread::scope(|scope| {
        let freezing = scope.spawn(|| buffer.freeze(&Solo));
        while ring.is_usable() {
            std::thread::yield_now();
        }
        // A thread of the ring is in a read, so the region is still registered, and writable.
        assert!(fake.live().len() == 1 && !freezing.is_finished());
        bytes.is_closed.store(false, Ordering::SeqCst);
        freezing.join().unwrap().unwrap()
    });
    assert_eq!(*frozen.proof(), Proof::Sealed);
    assert_eq!(fake.live().len(), 0, "the ring has given its region back");
    assert!(matches!(transfer.wait(), Err(TransferError::Cancelled { .. })));
    assert!(matches!(ring.read(bytes, 0, to).wait(), Err(TransferError::Cancelled { landed: 0 })));
    // Neither a region that was taken before nor a new one serves a ring now.
    let refused = Ring::new(SimulatedDevice::new(), options(), late).unwrap_err();
    assert!(matches!(refused, RingError::Frozen { .. }), "{refused}");
    assert!(matches!(buffer.exclusive_region(REGION..), Err(Error::Freeze { .. })));
}

/// A file that io_uring reads. Its reads wait while it is closed.
struct GatedFile {
    file: File,
    is_closed: AtomicBool,
    is_waiting: AtomicBool,
}

impl ReadAt for GatedFile {
    fn name(&self) -> String {
        ReadAt::name(&self.file)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        while self.is_closed.load(Ordering::SeqCst) {
            self.is_waiting.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
        self.file.read_at(into, offset)
    }

    fn alignment(&self) -> u64 {
        ReadAt::alignment(&self.file)
    }
}

/// Returns the number of bytes that this process has pinned.
fn pinned() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Makes a file with computed bytes that io_uring reads, unless the machine has none.
fn uring_file(folder: &Scratch) -> Option<GatedFile> {
    let path = folder.path("bytes");
    let content: Vec<u8> = (0..10 * SLOT as u64).map(byte_at).collect();
    fs::write(&path, content).unwrap();
    match FileOptions::new().backend(Backend::Uring).open(&path) {
        Ok(file) => {
            Some(GatedFile { file, is_closed: AtomicBool::new(false), is_waiting: AtomicBool::new(false) })
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {
            skip(&format!("freezing beside io_uring: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The kernel neither seals a file whose pages are pinned, nor ends the pins by itself.
#[test]
fn fixed_buffers_end_before_the_buffer_of_their_ring_is_frozen() {
    let folder = Scratch::new("ring-memory-uring");
    let Some(file) = uring_file(&folder) else { return };
    let file = Arc::new(file);
    let before = pinned();
    let to = DeviceTarget::new(Arc::new(SimulatedMemory::new(10 * SLOT)));
    // Freezing finds a thread in a read, and then no transfer at all.
    for is_in_flight in [true, false] {
        let fake = Arc::new(Fake::new(Overlap::Refused));
        let buffer = filled();
        let region = buffer.exclusive_region(REGION..REGION + SLOTS * SLOT).unwrap();
        let ring = Ring::new(SimulatedDevice::new(), options(), region.registered(&fake).unwrap()).unwrap();
        // Each thread registers the slots when it first reads.
        while pinned() < before + options().workers * SLOTS * SLOT {
            ring.read(file.clone(), 0, to.clone()).wait().unwrap();
            let choice = file.file.backend();
            assert_eq!(choice.backend, Backend::Uring);
            if choice.why.contains("not fixed buffers") {
                return skip(&format!("freezing beside fixed buffers: {choice}"));
            }
        }
        file.is_closed.store(is_in_flight, Ordering::SeqCst);
        file.is_waiting.store(false, Ordering::SeqCst);
        let transfer = is_in_flight.then(|| ring.read(file.clone(), 0, to.clone()));
        while is_in_flight && !file.is_waiting.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let frozen = std::thread::scope(|scope| {
            let freezing = scope.spawn(|| buffer.freeze(&Solo));
            while ring.is_usable() {
                std::thread::yield_now();
            }
            // io_uring writes to the region after this.
            assert!(!is_in_flight || fake.live().len() == 1 && !freezing.is_finished());
            file.is_closed.store(false, Ordering::SeqCst);
            freezing.join().unwrap().unwrap()
        });
        // F_SEAL_FUTURE_WRITE and F_SEAL_WRITE have succeeded.
        assert_eq!(*frozen.proof(), Proof::Sealed);
        assert_eq!((fake.live().len(), pinned()), (0, before));
        if let Some(transfer) = transfer {
            assert!(matches!(transfer.wait(), Err(TransferError::Cancelled { .. })));
        }
        assert_eq!(buffer.root::<u64>().unwrap(), Some(&7));
    }
}

#[test]
fn a_ring_uses_a_block_of_a_pool() {
    let options_of_pool = PoolOptions::from_environment("ring").unwrap().mode(PoolMode::Private);
    let pool = Pool::connect(options_of_pool).unwrap();
    let producer = pool.producer(&ProducerOptions::new((SLOTS * SLOT) as u64, 2)).unwrap();
    let fake = Arc::new(Fake::new(Overlap::Refused));
    let _other = producer.take().unwrap();
    for _ in 0..2 {
        let block = producer.take().unwrap();
        block.register(&fake, hostbuf::Access::WRITE).unwrap();
        let ring = Ring::new(SimulatedDevice::reordering(2), options(), block).unwrap();
        check_ring(&ring);
        assert!(producer.try_take().unwrap().is_none(), "the ring has the block");
        // The next round takes it again.
        drop(ring);
    }
    assert_eq!(fake.live().len(), 1, "the segment is registered once");
}
