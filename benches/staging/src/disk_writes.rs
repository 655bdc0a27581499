//! Memory of a device through rings to a file on a disk, beside fio.

use std::error::Error;
use std::io;

use hostbuf_staging::{Backend, FileOptions};

use crate::disk_ring::{DiskRing, shapes};
use crate::fio;
use crate::source_memory::SourceMemory;
use crate::transfer_sample::{TransferSample, median, print_round};
use crate::written_file::WrittenFile;

/// The smallest median ratio of the rate of a ring to that of fio.
const BAR: f64 = 0.97;

/// A row of the table: a ring, and fio with operations of the same length and as many in flight.
struct WriteRow<M: SourceMemory> {
    ring: DiskRing<M::Device>,
    by_ring: Vec<TransferSample>,
    by_fio: Vec<TransferSample>,
}

/// Measures all backends and shapes in turns, each beside fio if it is installed, and prints a line
/// for each round, and a table. All write the same blocks of the disk, and the time of each
/// includes an `fsync(2)` at the end. After each write of a ring the file is compared with the
/// memory.
///
/// # Errors
/// Those of the file, of the device, of a ring, and of fio.
pub(crate) fn measure<M: SourceMemory>(
    path: &str,
    source: &mut M,
    backends: &[Backend],
    rounds: usize,
) -> Result<(), Box<dyn Error>> {
    let has_fio = fio::is_installed()?;
    if !has_fio {
        println!("fio is not installed, so the disk's own rate is not known");
    }
    let mut rows = Vec::new();
    let mut file = WrittenFile::create(path, source.bytes())?;
    for &backend in backends {
        let options = FileOptions::new().backend(backend).write(true);
        for shape in shapes() {
            let ring = DiskRing::open(source.ring(shape)?, options, path)?;
            rows.push(WriteRow { ring, by_ring: Vec::new(), by_fio: Vec::new() });
        }
    }
    // The first round does not count.
    let count = rows.len();
    for round in 0..=rounds {
        let mut results = vec![String::new(); count];
        for number in 0..count {
            let number = (number + round * count / (rounds + 1)) % count;
            let row: &mut WriteRow<M> = &mut rows[number];
            let (mut ours, mut theirs) = (None, None);
            // Each side is the first one in every other round.
            for turn in [round % 2, 1 - round % 2] {
                if turn == 0 {
                    file.renew(source)?;
                    ours = Some(row.write(source)?);
                    file.compare(source)?;
                } else if has_fio {
                    theirs = Some(row.ring.fio_options().write(path, source.bytes() as u64)?);
                }
            }
            let rate = |sample: TransferSample| format!("{:.2}", sample.rate());
            results[number] = [ours, theirs].into_iter().flatten().map(rate).collect::<Vec<_>>().join(":");
            if round > 0 {
                row.by_ring.extend(ours);
                row.by_fio.extend(theirs);
            }
        }
        print_round(round, rounds, &results);
    }
    print(path, source.bytes(), &rows);
    println!("all bytes equal after each of the {} writes", count * (rounds + 1));
    Ok(())
}

impl<M: SourceMemory> WriteRow<M> {
    /// Writes the memory to the file by the ring, and waits until the bytes are on the disk.
    fn write(&self, source: &M) -> io::Result<TransferSample> {
        let DiskRing { ring, file } = &self.ring;
        TransferSample::of(source.bytes() as u64, || {
            file.pwrite(ring, source.target(), 0).wait().map_err(io::Error::other)?;
            file.sync()
        })
    }
}

fn print<M: SourceMemory>(path: &str, bytes: usize, rows: &[WriteRow<M>]) {
    println!(
        "| {path}, {bytes} bytes | GB/s | fio, GB/s | ratio | bar {BAR} | CPU s a GiB | fio, CPU s a GiB | fio's operations |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for WriteRow { ring, by_ring, by_fio } in rows {
        let rate = median(by_ring.iter().map(TransferSample::rate));
        let cpu = median(by_ring.iter().map(TransferSample::cpu_per_gib));
        if by_fio.is_empty() {
            println!("| {ring} | {rate:.2} | - | - | - | {cpu:.3} | - | - |");
            continue;
        }
        let of_fio = median(by_fio.iter().map(TransferSample::rate));
        let cpu_of_fio = median(by_fio.iter().map(TransferSample::cpu_per_gib));
        let ratio = median(by_ring.iter().zip(by_fio).map(|(ours, theirs)| ours.rate() / theirs.rate()));
        let met = if ratio >= BAR { "met" } else { "MISSED" };
        let fio = ring.fio_options();
        println!(
            "| {ring} | {rate:.2} | {of_fio:.2} | {ratio:.3} | {met} | {cpu:.3} | {cpu_of_fio:.3} | {} of {} KiB |",
            fio.depth, fio.block_kib
        );
    }
    for WriteRow { ring, .. } in rows.iter().step_by(shapes().len()) {
        println!("{}", ring.file.backend());
    }
}
