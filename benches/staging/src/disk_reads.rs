//! A file from a cold disk into the slots of rings, beside fio.

use std::error::Error;
use std::fs;
use std::sync::Arc;

use hostbuf_staging::{
    Backend, DeviceTarget, File, FileOptions, HostMemory, Ring, RingOptions, drop_cached_pages,
};

use crate::discarding_device::{DiscardedBytes, DiscardingDevice};
use crate::fio::{self, FioOptions};
use crate::read_sample::{ReadSample, median};

/// A row of the table.
struct DiskRow {
    reader: DiskReader,
    samples: Vec<ReadSample>,
}

/// A way to read the file once.
enum DiskReader {
    Ring { file: Arc<File>, ring: Ring<DiscardingDevice> },
    Fio(FioOptions),
}

/// The file, its length, and the addresses to which rings read it.
struct ColdFile<'p> {
    path: &'p str,
    plain: fs::File,
    bytes: u64,
    target: DeviceTarget,
}

/// Measures all backends and shapes in turns, with fio if it is installed, and prints a table. The
/// page cache is dropped before each read. Each round begins with another row, since the rate of a
/// disk may depend on what was read before.
///
/// # Errors
/// Those of the file, of a ring, and of fio.
pub(crate) fn measure(path: &str, backends: &[Backend], rounds: usize) -> Result<(), Box<dyn Error>> {
    let plain = fs::File::open(path)?;
    let bytes = plain.metadata()?.len();
    let device = DiscardingDevice::new(plain.try_clone()?);
    let target = DeviceTarget::new(Arc::new(DiscardedBytes(bytes)));
    let cold = ColdFile { path, plain, bytes, target };
    let mut rows = Vec::new();
    for &backend in backends {
        for options in shapes() {
            drop_cached_pages(&cold.plain)?;
            let file = Arc::new(FileOptions::new().backend(backend).open(path)?);
            let ring = Ring::new(device.clone(), options, HostMemory::new(options.bytes()?))?;
            rows.push(DiskRow { reader: DiskReader::Ring { file, ring }, samples: Vec::new() });
        }
    }
    if fio::is_installed()? {
        let reader = |options| DiskRow { reader: DiskReader::Fio(options), samples: Vec::new() };
        rows.extend(FioOptions::sweep().into_iter().map(reader));
    } else {
        println!("fio is not installed, so the disk's own rate is not known");
    }
    // The first round does not count.
    let count = rows.len();
    for round in 0..=rounds {
        for number in 0..count {
            let DiskRow { reader, samples } = &mut rows[(number + round * count / (rounds + 1)) % count];
            let sample = cold.read(reader)?;
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    print(&cold, &rows);
    device.compare();
    for DiskRow { reader, .. } in &rows {
        if let DiskReader::Ring { .. } = reader {
            cold.read(reader)?;
        }
    }
    println!("all bytes equal");
    Ok(())
}

impl ColdFile<'_> {
    /// Drops the page cache and reads the file once.
    fn read(&self, reader: &DiskReader) -> Result<ReadSample, Box<dyn Error>> {
        drop_cached_pages(&self.plain)?;
        match reader {
            DiskReader::Ring { file, ring } => {
                let read = || ring.read(file.clone(), 0, self.target.clone()).wait().map(drop);
                Ok(ReadSample::of(self.bytes, read)?)
            }
            DiskReader::Fio(options) => Ok(options.read(self.path)?),
        }
    }
}

fn print(cold: &ColdFile<'_>, rows: &[DiskRow]) {
    let rate = |row: &DiskRow| median(row.samples.iter().map(ReadSample::rate));
    let of_fio = rows.iter().filter(|row| matches!(row.reader, DiskReader::Fio(_)));
    let best = of_fio.map(rate).fold(f64::NAN, f64::max);
    println!("| {}, {} bytes | GB/s | of fio's best | CPU s a GiB |", cold.path, cold.bytes);
    println!("| --- | --- | --- | --- |");
    for row in rows {
        let name = match &row.reader {
            DiskReader::Ring { file, ring } => {
                let RingOptions { slots, slot_bytes, workers, .. } = ring.options();
                let backend = file.backend().backend;
                format!("{backend}, {workers} threads, {slots} slots of {} MiB", slot_bytes >> 20)
            }
            DiskReader::Fio(options) => options.to_string(),
        };
        let cpu = median(row.samples.iter().map(ReadSample::cpu_per_gib));
        let ratio = if best.is_nan() { "-".to_owned() } else { format!("{:.2}", rate(row) / best) };
        println!("| {name} | {:.2} | {ratio} | {cpu:.3} |", rate(row));
    }
    for DiskRow { reader, .. } in rows.iter().step_by(shapes().len()) {
        if let DiskReader::Ring { file, .. } = reader {
            println!("{}", file.backend());
        }
    }
}

/// Returns the shapes of the rings.
fn shapes() -> Vec<RingOptions> {
    let shape = |(workers, slots)| RingOptions::new().workers(workers).slots(slots);
    [(2, 4), (4, 4), (8, 4), (8, 8)].map(shape).to_vec()
}
