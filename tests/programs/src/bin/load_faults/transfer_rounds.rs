//! Rounds of transfers that are cut, cancelled and dropped.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hostbuf_os::poison::IgnorePoison;
use hostbuf_programs::process_resources::{KeptResources, ProcessResources, all_mappings, own_folder};
use hostbuf_programs::random::RandomInstants;
use hostbuf_staging::{
    Backend, CopyDevice, DeviceTarget, Fault, File, FileOptions, HostDevice, Ring, RingOptions,
    SimulatedDevice, Transfer, TransferError,
};

use crate::counted_locks::CountedLocks;
use crate::counted_memory::CountedMemory;
use crate::round_limit::RoundLimit;
use crate::unsteady_bytes::{ByteDefect, UnsteadySink, UnsteadySource};

const SLOT: usize = 64 << 10;
const PIECE: usize = 16 << 10;
/// The largest number of bytes of a transfer.
const MOST: u64 = 20 * SLOT as u64;
/// The longest time between two actions.
const INSTANT: Duration = Duration::from_micros(500);
/// The number of parts of the rounds, of which each ends with a round in which a device is lost.
const LOSSES: u64 = 8;
/// The mappings that a ring without its device keeps: the parts of a mapping that is partly locked,
/// the page of its counters, and the memory of transfers.
const KEPT_MAPPINGS: usize = 16;
/// The rounds after which the number of all mappings no longer grows.
const WARM: u64 = 50;

/// A file that is removed on drop.
struct RoundFile(PathBuf);

impl Drop for RoundFile {
    fn drop(&mut self) {
        // It may be missing after an error.
        let _ = fs::remove_file(&self.0);
    }
}

/// The bytes of all sources: those of the file, too. And the registrar of all rings.
struct Fixture {
    content: Arc<Vec<u8>>,
    file: RoundFile,
    locks: Arc<CountedLocks>,
}

/// The device of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingDevice {
    Host,
    Unsteady,
    /// A device that is lost with a copy.
    Lost,
}

/// The other side of a transfer.
enum OtherSide {
    /// A source in memory or a file, whose content is that of the fixture from this offset on.
    Source(u64),
    Sink(Arc<UnsteadySink>),
}

/// A transfer in flight.
struct StartedTransfer {
    transfer: Transfer,
    memory: Arc<CountedMemory>,
    other: OtherSide,
    bytes: u64,
    defect: ByteDefect,
    is_cancelled: bool,
}

/// Runs the rounds.
///
/// # Errors
/// The first thing that did not hold.
pub(crate) fn run(rounds: u64, seed: u64) -> Result<String, String> {
    let mark = format!("load-faults-{}", std::process::id());
    let path = own_folder()?.join(&mark);
    let mut random = RandomInstants::new(seed);
    let content = std::iter::repeat_with(|| random.number() as u8).take(2 * MOST as usize).collect();
    let locks = Arc::new(CountedLocks::default());
    let fixture = Fixture { content: Arc::new(content), file: RoundFile(path), locks };
    // The first ring starts what a process keeps.
    drop(Ring::of_host().map_err(|error| error.to_string())?);
    let (mut before, mut warm) = (ProcessResources::count(&mark), 0);
    let mut counts = BTreeMap::<&str, u64>::new();
    for round in 0..rounds {
        // A round is repeated by its own seed.
        let mut random = RandomInstants::new(seed.wrapping_mul(1_000_003).wrapping_add(round));
        fs::write(&fixture.file.0, &*fixture.content).map_err(|error| format!("writing a file: {error}"))?;
        let part = (rounds / LOSSES).max(1);
        let device = match random.below(3) {
            _ if round % part == part - 1 => RingDevice::Lost,
            0 => RingDevice::Host,
            _ => RingDevice::Unsteady,
        };
        let limit = RoundLimit::begin(format!("round {round} of seed {seed}"));
        let result = run_round(&fixture, device, &mut random, (limit, &mark, &before), &mut counts);
        let is_kept = result.map_err(|why| format!("round {round}: {why}"))?;
        if is_kept {
            before = ProcessResources::count(&mark);
            *counts.entry("memories of rings kept").or_default() += 1;
        }
        if round == WARM {
            warm = all_mappings();
        }
    }
    let now = all_mappings();
    let most = warm + 64 + KEPT_MAPPINGS * fixture.locks.live();
    if rounds > 2 * WARM && now > most {
        return Err(format!("a leak: {warm} mappings after {WARM} rounds, and {now} after all"));
    }
    let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    Ok(format!("{}; nothing else is left", counts.join(", ")))
}

/// Runs one round, and waits until this process has no more resources than before. Returns whether
/// a ring has lost its device while that copied: it keeps its memory, and what its slots have in
/// flight.
fn run_round(
    fixture: &Fixture,
    device: RingDevice,
    random: &mut RandomInstants,
    (limit, mark, before): (RoundLimit, &str, &ProcessResources),
    counts: &mut BTreeMap<&'static str, u64>,
) -> Result<bool, String> {
    let (token, registrations) = (Arc::new(()), fixture.locks.live());
    let options = options(random);
    let result = match device {
        RingDevice::Host => on_host(fixture, random, &token, options, counts),
        _ => on_device(fixture, random, &token, (options, device), counts),
    };
    limit.end();
    result?;
    let kept = fixture.locks.live() - registrations;
    if kept > usize::from(device == RingDevice::Lost) {
        return Err(format!("a leak: {kept} rings have kept their registration"));
    }
    // The memory of the ring, and a source and the memory of a device for each slot.
    let most = kept * (1 + 2 * options.slots);
    let until = Instant::now() + Duration::from_secs(20);
    while Arc::strong_count(&token) > 1 + most {
        if Instant::now() > until {
            let kept = Arc::strong_count(&token) - 1;
            return Err(format!("a leak: {kept} buffers or sources are kept, of at most {most}"));
        }
        std::thread::yield_now();
    }
    let locked = kept * options.slots * (SLOT >> 10);
    let (descriptors, mappings) = (kept * (1 + 2 * options.slots), kept);
    before.clone().with(KeptResources { descriptors, mappings, locked }).wait_returned(mark)?;
    if kept > 0 && ProcessResources::count(mark).locked_kib() < before.locked_kib() + locked {
        return Err(format!("a ring without its device has not kept {locked} KiB locked"));
    }
    Ok(kept > 0)
}

fn options(random: &mut RandomInstants) -> RingOptions {
    let (slots, workers) = (1 + random.below(4) as usize, 1 + random.below(4) as usize);
    RingOptions::new().slots(slots).slot_bytes(SLOT).piece_bytes(PIECE).workers(workers)
}

fn on_host(
    fixture: &Fixture,
    random: &mut RandomInstants,
    token: &Arc<()>,
    options: RingOptions,
    counts: &mut BTreeMap<&'static str, u64>,
) -> Result<(), String> {
    let memory = ring_memory(fixture, token, options, true)?;
    let ring = Ring::new(HostDevice::new(), options, memory).map_err(|error| error.to_string())?;
    act(fixture, random, token, ring, true, false, counts)
}

/// Makes the memory of a ring, which is registered until the ring ends.
fn ring_memory(
    fixture: &Fixture,
    token: &Arc<()>,
    options: RingOptions,
    is_host: bool,
) -> Result<CountedMemory, String> {
    let memory = CountedMemory::new(options.slots * SLOT, is_host, token);
    memory.registered(&fixture.locks).map_err(|error| error.to_string())
}

fn on_device(
    fixture: &Fixture,
    random: &mut RandomInstants,
    token: &Arc<()>,
    (options, kind): (RingOptions, RingDevice),
    counts: &mut BTreeMap<&'static str, u64>,
) -> Result<(), String> {
    // Copies end in the order of their requests, or in another one.
    let device = match random.below(2) {
        0 => SimulatedDevice::new(),
        _ => SimulatedDevice::reordering(random.number()),
    };
    let faults = if random.below(2) == 0 { 0 } else { 1 + random.below(4) };
    let mut can_fail = kind == RingDevice::Lost;
    for _ in 0..faults {
        let fault = match random.below(4) {
            0 => Fault::Refuse,
            1 => Fault::Fail,
            2 => Fault::Delay(random.time(INSTANT)),
            _ => Fault::Hang,
        };
        can_fail |= matches!(fault, Fault::Refuse | Fault::Fail);
        device.fault(1 + random.below(60), fault);
    }
    if kind == RingDevice::Lost {
        device.fault(1 + random.below(20), Fault::Lose);
    }
    let memory = ring_memory(fixture, token, options, false)?;
    let ring = Ring::new(device.clone(), options, memory).map_err(|error| error.to_string())?;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A device that hangs goes on after a moment.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(INSTANT / 4);
                if device.is_hanging() {
                    device.resume();
                }
            }
        });
        let result = act(fixture, random, token, ring, false, can_fail, counts);
        ended.store(true, Ordering::Relaxed);
        *counts.entry("copies out of order").or_default() += device.reordered();
        result
    })
}

/// Starts transfers, and cancels, drops or awaits them, and the ring.
fn act<D: CopyDevice>(
    fixture: &Fixture,
    random: &mut RandomInstants,
    token: &Arc<()>,
    ring: Ring<D>,
    is_host: bool,
    can_fail: bool,
    counts: &mut BTreeMap<&'static str, u64>,
) -> Result<(), String> {
    let is_ring_dropped = random.below(3) == 0;
    let is_file_cut = random.below(3) == 0;
    let mut started: Vec<StartedTransfer> = Vec::new();
    for _ in 0..1 + random.below(12) {
        started.push(start(fixture, random, token, &ring, is_host)?);
        if random.below(4) == 0 {
            std::thread::sleep(random.time(INSTANT));
        }
        let one = random.below(started.len() as u64) as usize;
        match random.below(6) {
            0 => {
                started[one].transfer.cancel();
                started[one].is_cancelled = true;
            }
            // It goes on, or is cancelled, without a handle.
            1 => {
                drop(started.swap_remove(one));
                *counts.entry("dropped").or_default() += 1;
            }
            _ => {}
        }
    }
    if is_file_cut {
        let file = OpenOptions::new().write(true).open(&fixture.file.0);
        let cut = file.and_then(|file| file.set_len(random.below(2 * MOST)));
        cut.map_err(|error| format!("cutting the file: {error}"))?;
        *counts.entry("files cut").or_default() += 1;
    }
    let mut ring = Some(ring);
    if is_ring_dropped {
        std::thread::sleep(random.time(INSTANT));
        ring = None;
        *counts.entry("rings dropped").or_default() += 1;
    }
    for transfer in &started {
        let what = check(fixture, transfer, is_ring_dropped, is_file_cut, can_fail)?;
        *counts.entry(what).or_default() += 1;
    }
    drop(ring);
    Ok(())
}

fn defect(random: &mut RandomInstants, offset: u64, bytes: u64) -> ByteDefect {
    match random.below(4) {
        0 => ByteDefect::Cut(offset + random.below(bytes)),
        1 => ByteDefect::Fail(1 + random.below(30)),
        _ => ByteDefect::None,
    }
}

/// Starts one transfer of random length with a random source or sink.
fn start<D: CopyDevice>(
    fixture: &Fixture,
    random: &mut RandomInstants,
    token: &Arc<()>,
    ring: &Ring<D>,
    is_host: bool,
) -> Result<StartedTransfer, String> {
    let (offset, bytes) = (random.below(MOST), 1 + random.below(MOST));
    let memory = Arc::new(CountedMemory::new(bytes as usize, is_host, token));
    let target = DeviceTarget::new(memory.clone());
    let most = if random.below(2) == 0 { PIECE } else { 1 + random.below(PIECE as u64) as usize };
    let (operations, token) = (AtomicU64::new(0), token.clone());
    let mut defect = defect(random, offset, bytes);
    let (transfer, other) = match random.below(3) {
        0 => {
            let content = fixture.content.clone();
            let source = UnsteadySource { content, defect, most, operations, _token: token };
            (ring.read(Arc::new(source), offset, target), OtherSide::Source(offset))
        }
        1 => {
            memory.fill(&fixture.content[offset as usize..][..bytes as usize]);
            let content = Mutex::new(vec![0; (offset + bytes) as usize]);
            let sink = Arc::new(UnsteadySink { content, defect, most, operations, _token: token });
            (ring.write(target, sink.clone(), offset), OtherSide::Sink(sink))
        }
        _ => {
            defect = ByteDefect::None;
            let backends = [Backend::Posix, Backend::Direct, Backend::Uring, Backend::Auto];
            let backend = backends[random.below(4) as usize];
            let opened: Result<File, _> = FileOptions::new().backend(backend).open(&fixture.file.0);
            // Some file systems have no direct reads, and some processes no io_uring.
            let file = opened.or_else(|_| File::open(&fixture.file.0)).map_err(|error| error.to_string())?;
            (file.pread(ring, target, offset), OtherSide::Source(offset))
        }
    };
    Ok(StartedTransfer { transfer, memory, other, bytes, defect, is_cancelled: false })
}

/// Waits for a transfer, and checks its result and its bytes. Returns the kind of the result.
fn check(
    fixture: &Fixture,
    started: &StartedTransfer,
    is_ring_dropped: bool,
    is_file_cut: bool,
    can_fail: bool,
) -> Result<&'static str, String> {
    let StartedTransfer { transfer, memory, other, bytes, defect, is_cancelled } = started;
    let result = transfer.wait();
    let landed = transfer.landed();
    let (what, fits) = match &result {
        Ok(moved) => ("succeeded", moved == bytes && landed == *bytes),
        Err(TransferError::Cancelled { .. }) => ("cancelled", *is_cancelled || is_ring_dropped),
        Err(TransferError::Device { .. }) => ("failed by the device", can_fail),
        Err(TransferError::UnexpectedEnd { .. }) => {
            ("ended by a source", is_file_cut || matches!(defect, ByteDefect::Cut(_)))
        }
        Err(TransferError::Io { .. }) => ("failed by a source or sink", *defect != ByteDefect::None),
        Err(_) => ("failed otherwise", false),
    };
    if !fits || landed > *bytes {
        return Err(format!("{landed} of {bytes} bytes, {defect:?}, cancelled {is_cancelled}: {result:?}"));
    }
    let landed = landed as usize;
    let is_right = match other {
        OtherSide::Source(offset) => {
            memory.content(landed)[..] == fixture.content[*offset as usize..][..landed]
        }
        OtherSide::Sink(sink) => {
            let content = sink.content.lock().ignore_poison();
            let start = content.len() - *bytes as usize;
            content[start..][..landed] == memory.content(landed)[..]
        }
    };
    if is_right { Ok(what) } else { Err(format!("wrong bytes among the first {landed}: {result:?}")) }
}
