//! A file from a cold disk through rings to a device, beside fio.

use std::error::Error;
use std::fs;

use hostbuf_staging::{Backend, CopyDevice, DeviceTarget, FileOptions, drop_cached_pages};

use crate::cold_destination::ColdDestination;
use crate::disk_ring::{DiskRing, shapes};
use crate::fio::{self, FioOptions};
use crate::transfer_sample::{TransferSample, median, print_round};

/// A row of the table.
struct DiskRow<D: CopyDevice> {
    reader: DiskReader<D>,
    samples: Vec<TransferSample>,
}

/// A way to read the file once.
enum DiskReader<D: CopyDevice> {
    Ring(DiskRing<D>),
    Fio(FioOptions),
}

/// The file, the length of the part that is read, and the memory to which rings read it.
struct ColdFile<'p> {
    path: &'p str,
    plain: fs::File,
    bytes: u64,
    target: DeviceTarget,
}

/// Measures reads of as many bytes as the destination has, from the beginning of the file, by all
/// backends and shapes in turns, with fio if it is installed, and prints a line for each round, and
/// a table. The page cache is dropped before each read. Each round begins with another row, since
/// the rate of a disk may depend on what was read before.
///
/// # Errors
/// Those of the file, of a ring, and of fio.
pub(crate) fn measure<T: ColdDestination>(
    path: &str,
    destination: &mut T,
    backends: &[Backend],
    rounds: usize,
) -> Result<(), Box<dyn Error>> {
    let plain = fs::File::open(path)?;
    let target = destination.target();
    let cold = ColdFile { path, plain, bytes: target.bytes(), target };
    let mut rows = Vec::new();
    for &backend in backends {
        for options in shapes() {
            drop_cached_pages(&cold.plain)?;
            let ring = DiskRing::open(destination.ring(options)?, FileOptions::new().backend(backend), path)?;
            rows.push(DiskRow { reader: DiskReader::Ring(ring), samples: Vec::new() });
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
        let mut results = vec![String::new(); count];
        for number in 0..count {
            let number = (number + round * count / (rounds + 1)) % count;
            let DiskRow { reader, samples }: &mut DiskRow<T::Device> = &mut rows[number];
            let sample = cold.read(reader)?;
            results[number] = format!("{:.2}", sample.rate());
            if round > 0 {
                samples.push(sample);
            }
        }
        print_round(round, rounds, &results);
    }
    print(&cold, &rows);
    for DiskRow { reader, .. } in &rows {
        if let DiskReader::Ring(_) = reader {
            destination.start_comparing()?;
            cold.read(reader)?;
            destination.compare(&cold.plain)?;
        }
    }
    println!("all bytes equal");
    Ok(())
}

impl ColdFile<'_> {
    /// Drops the page cache and reads the file once.
    fn read<D: CopyDevice>(&self, reader: &DiskReader<D>) -> Result<TransferSample, Box<dyn Error>> {
        drop_cached_pages(&self.plain)?;
        match reader {
            DiskReader::Ring(DiskRing { ring, file }) => {
                let read = || file.pread(ring, self.target.clone(), 0).wait().map(drop);
                Ok(TransferSample::of(self.bytes, read)?)
            }
            DiskReader::Fio(options) => Ok(options.read(self.path, self.bytes)?),
        }
    }
}

fn print<D: CopyDevice>(cold: &ColdFile<'_>, rows: &[DiskRow<D>]) {
    let rate = |row: &DiskRow<D>| median(row.samples.iter().map(TransferSample::rate));
    let of_fio = rows.iter().filter(|row| matches!(row.reader, DiskReader::Fio(_)));
    let best = of_fio.map(rate).fold(f64::NAN, f64::max);
    println!("| {}, {} bytes | GB/s | of fio's best | CPU s a GiB |", cold.path, cold.bytes);
    println!("| --- | --- | --- | --- |");
    for row in rows {
        let name = match &row.reader {
            DiskReader::Ring(ring) => ring.to_string(),
            DiskReader::Fio(options) => options.to_string(),
        };
        let cpu = median(row.samples.iter().map(TransferSample::cpu_per_gib));
        let ratio = if best.is_nan() { "-".to_owned() } else { format!("{:.2}", rate(row) / best) };
        println!("| {name} | {:.2} | {ratio} | {cpu:.3} |", rate(row));
    }
    for DiskRow { reader, .. } in rows.iter().step_by(shapes().len()) {
        if let DiskReader::Ring(ring) = reader {
            println!("{}", ring.file.backend());
        }
    }
}
