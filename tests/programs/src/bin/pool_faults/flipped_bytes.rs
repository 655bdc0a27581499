//! Tables, rows and tokens whose bytes change while a pool is in use.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hostbuf_pool::{Pool, Producer, ProducerOptions};

use crate::broken_promise::BrokenPromise;
use crate::broker_deaths::exchange;
use crate::child::eventually;
use crate::step_roles::{ReadStep, SteppingReader, SteppingWriter, WrittenFrame};
use crate::test_broker::{BrokerProcess, status};
use hostbuf_programs::random::RandomInstants;

const LIMIT: u64 = 16 << 20;
/// The number of bytes that are flipped before the writer and the reader have done another step.
const STRIDE: u64 = 32;

/// The steps of a writer and a reader beside the changes.
#[derive(Debug, Default)]
struct StepCounts {
    is_over: AtomicBool,
    has_failed: AtomicBool,
    steps: AtomicU64,
    frames: AtomicU64,
    refused: AtomicU64,
}

/// Flips each byte of the tables and rows of one segment in each round, and each byte of a token.
pub(crate) fn flip(rounds: u32, mut random: RandomInstants) -> Result<String, BrokenPromise> {
    let broker = BrokerProcess::start(LIMIT)?;
    let (camera, viewer) = (broker.connect("camera")?, broker.connect("viewer")?);
    let producer = camera.producer(&ProducerOptions::new(16 << 10, 8).retain(1));
    let producer = producer.map_err(|error| error.to_string())?;
    let mut stamp = 0;
    go_on((&producer, &viewer), &mut stamp)?;
    let (bytes, descriptors) = (status(&viewer)?["bytes"].clone(), broker.descriptors());
    let counts = StepCounts::default();
    let mut flipped = 0;
    for _ in 0..rounds {
        let others = shared_files(&broker)?;
        let mut writer = SteppingWriter::start(broker.name())?;
        let mut reader = SteppingReader::start(broker.name())?;
        writer.step_to(&mut reader)?;
        flip_token(&mut writer, &mut reader, &mut random)?;
        let mut files = shared_files(&broker)?;
        files.retain(|inode, _| !others.contains_key(inode));
        // A table, and a row for each of two readers.
        if files.len() != 3 {
            return Err(format!("{} tables and rows instead of 3", files.len()));
        }
        counts.is_over.store(false, Ordering::Relaxed);
        let changed: Result<u64, BrokenPromise> = std::thread::scope(|scope| {
            let stepping = scope.spawn(|| {
                let result = step_until_over(&mut writer, &mut reader, &counts);
                counts.has_failed.store(result.is_err(), Ordering::Relaxed);
                result
            });
            let restores = random.below(2) == 0;
            let changed = files.values().try_fold(0, |sum, file| -> Result<u64, BrokenPromise> {
                go_on((&producer, &viewer), &mut stamp)?;
                Ok(sum + flip_all(file, restores, &mut random, &counts, &viewer)?)
            });
            counts.is_over.store(true, Ordering::Relaxed);
            stepping.join().map_err(|_| "a thread has panicked")??;
            changed
        });
        flipped += changed?;
        // Neither process has crashed, and nothing is left of their segment.
        reader.0.end()?;
        writer.process.end()?;
        drop(files);
        let mut seen = String::new();
        let freed = eventually("the memory of the segment is free", || {
            status(&viewer).is_ok_and(|status| {
                seen = status.to_string();
                status["bytes"] == bytes
            })
        });
        freed.map_err(|why| format!("{why}: {seen}"))?;
        go_on((&producer, &viewer), &mut stamp)?;
    }
    eventually("the broker has as many descriptors as before", || broker.descriptors() == descriptors)?;
    let StepCounts { frames, refused, .. } = counts;
    let (frames, refused) = (frames.into_inner(), refused.into_inner());
    Ok(format!(
        "{flipped} bytes flipped; {frames} frames read meanwhile, {refused} refused; {stamp} frames of others"
    ))
}

/// Exchanges frames of another segment, none of which is torn.
fn go_on(others: (&Producer, &Pool), stamp: &mut u64) -> Result<(), BrokenPromise> {
    exchange(others, None, Instant::now() + Duration::from_micros(200), stamp)
}

/// Opens the tables and rows of a broker for writing, as every process of its user can, and returns
/// them by their inode numbers.
fn shared_files(broker: &BrokerProcess) -> Result<BTreeMap<u64, File>, BrokenPromise> {
    let folder = format!("/proc/{}/fd", broker.process().pid());
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())?.flatten() {
        // The broker may close it meanwhile.
        let Ok(link) = std::fs::read_link(entry.path()) else { continue };
        let link = link.to_string_lossy().into_owned();
        if !link.contains("memfd:hostbuf-pool-table") && !link.contains("memfd:hostbuf-pool-row") {
            continue;
        }
        let Ok(file) = File::options().read(true).write(true).open(entry.path()) else { continue };
        let inode = file.metadata().map_err(|error| error.to_string())?.ino();
        files.insert(inode, file);
    }
    Ok(files)
}

/// Changes each byte of a token once. The reader refuses all of them, and takes the original.
fn flip_token(
    writer: &mut SteppingWriter,
    reader: &mut SteppingReader,
    random: &mut RandomInstants,
) -> Result<(), BrokenPromise> {
    let frame = writer.step()?.ok_or("a writer has no free block")?;
    for at in 0..frame.token.len() {
        let mut token = frame.token;
        token[at] ^= 1 + random.below(255) as u8;
        let step = reader.step(&token)?;
        if step != ReadStep::Refused {
            return Err(format!("a token with another byte {at} gave {step:?}"));
        }
    }
    match reader.step(&frame.token)? {
        ReadStep::Frame(stamp) if stamp == frame.stamp => Ok(()),
        step => Err(format!("a reader got {step:?} instead of frame {}", frame.stamp)),
    }
}

/// Publishes and reads until the changes are over. Every answer is as good as another, but there
/// must be one.
fn step_until_over(
    writer: &mut SteppingWriter,
    reader: &mut SteppingReader,
    counts: &StepCounts,
) -> Result<(), BrokenPromise> {
    while !counts.is_over.load(Ordering::Relaxed) {
        if let Some(WrittenFrame { token, .. }) = writer.step()? {
            let counter = match reader.step(&token)? {
                ReadStep::Frame(_) => &counts.frames,
                _ => &counts.refused,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        counts.steps.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Changes each byte of a file, and returns their number.
fn flip_all(
    file: &File,
    restores: bool,
    random: &mut RandomInstants,
    counts: &StepCounts,
    viewer: &Pool,
) -> Result<u64, BrokenPromise> {
    let text = |error: std::io::Error| error.to_string();
    let length = file.metadata().map_err(text)?.len();
    for start in (0..length).step_by(STRIDE as usize) {
        let end = length.min(start + STRIDE);
        let mut masks = Vec::new();
        for at in start..end {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).map_err(text)?;
            let mask = 1 + random.below(255) as u8;
            masks.push(mask);
            file.write_all_at(&[byte[0] ^ mask], at).map_err(text)?;
        }
        let before = counts.steps.load(Ordering::Relaxed);
        eventually("the writer and the reader go on", || {
            counts.steps.load(Ordering::Relaxed) > before || counts.has_failed.load(Ordering::Relaxed)
        })?;
        if start % (STRIDE * 32) == 0 {
            // The broker describes the segment as it is.
            status(viewer)?;
        }
        for (at, mask) in (start..end).zip(masks) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).map_err(text)?;
            if restores {
                file.write_all_at(&[byte[0] ^ mask], at).map_err(text)?;
            }
        }
    }
    Ok(length)
}
