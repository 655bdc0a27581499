//! A rank of a job with the GPU section "table": checks it, and prints a line for each check.
//!
//!   gpu_sections CHECK... [then CHECK...]
//!   gpu_sections put WORD | get
//!
//! After `then` the process becomes this program again. `put` writes a word to the section, and
//! `get` prints it, without the other ranks.
//!
//! All access to the section is by copies of the driver, so it runs on a GPU and on the fake
//! driver.

#![allow(unsafe_code, reason = "copies between memory of the host and of the GPU")]

use std::os::unix::process::CommandExt;
use std::process::Command;

use hostbuf::job::{Collective, Local};
use hostbuf::{GpuSection, HostBuffer, Proof};
use hostbuf_cuda::{CudaContext, CudaStream, DeviceSpan, Driver};
use hostbuf_programs::checks::{LocalCheck, Outcome, run_local, text};

const CHECKS: [LocalCheck; 7] = [
    ("shared", shared),
    ("frozen", frozen),
    ("is-frozen", is_frozen),
    ("errors", errors),
    ("absent", absent),
    ("wait", wait),
    ("stat", stat),
];

fn main() {
    let well = run().unwrap_or_else(|why| {
        println!("FAILED setup {why}");
        false
    });
    std::process::exit(i32::from(!well))
}

/// Runs the checks. Returns whether all passed on all ranks.
fn run() -> Result<bool, String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["put", word] => {
            let table = SharedTable::find()?;
            table.write(table.section.address(), word.parse().map_err(text)?)?;
            return Ok(true);
        }
        ["get"] => {
            let table = SharedTable::find()?;
            println!("got {}", table.read(table.section.address())?);
            return Ok(true);
        }
        _ => {}
    }
    let group = Local::from_env().map_err(text)?;
    let (own, rest) = words.split_at(words.iter().position(|word| word == "then").unwrap_or(words.len()));
    let all_pass = run_local(&group, own, &CHECKS)?;
    drop(group);
    if let ([_, rest @ ..], true) = (rest, all_pass) {
        let again = std::env::current_exe().map_err(text)?;
        return Err(Command::new(again).args(rest).exec().to_string());
    }
    Ok(all_pass)
}

/// The section, and a stream of the first GPU that this process sees.
struct SharedTable {
    section: GpuSection,
    stream: CudaStream,
}

impl SharedTable {
    fn find() -> Result<SharedTable, String> {
        let section = HostBuffer::attach().and_then(|buffer| buffer.gpu_section("table")).map_err(text)?;
        let gpu = Driver::find().and_then(|driver| driver.gpu(0)).map_err(text)?;
        let context = CudaContext::retain(&gpu).map_err(text)?;
        Ok(SharedTable { section, stream: CudaStream::new(&context).map_err(text)? })
    }

    fn write(&self, at: u64, word: u64) -> Result<(), String> {
        let bytes = word.to_ne_bytes();
        // SAFETY: the bytes live until the copy has ended.
        unsafe { self.stream.copy_to_device(&raw const bytes[..], at) }.map_err(text)?;
        self.stream.synchronize().map_err(text)
    }

    fn read(&self, at: u64) -> Result<u64, String> {
        let mut bytes = [0; 8];
        // SAFETY: as above.
        unsafe { self.stream.copy_to_host(DeviceSpan::new(at, 8), &raw mut bytes[..]) }.map_err(text)?;
        self.stream.synchronize().map_err(text)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// Returns the addresses of a chain through all pieces: the first and the last word of each.
    fn chain(&self) -> Vec<u64> {
        let mut at = self.section.address();
        let words = |length: u64, at: u64| [at, at + length - 8];
        let pieces = self.section.pieces().iter().flat_map(|piece| {
            let found = words(piece.length, at);
            at += piece.length;
            found
        });
        pieces.collect()
    }
}

/// Links the words of all pieces by pointers in one rank, and follows them in every rank. Then the
/// last rank writes.
fn shared(group: &Local) -> Outcome {
    let table = SharedTable::find()?;
    let chain = table.chain();
    let end = 0x5eed;
    if group.rank() == 0 {
        for (i, &at) in chain.iter().enumerate() {
            table.write(at, chain.get(i + 1).copied().unwrap_or(end))?;
        }
    }
    group.barrier().map_err(text)?;
    let (mut at, mut seen) = (chain[0], Vec::new());
    while at != end && seen.len() <= chain.len() {
        seen.push(at);
        at = table.read(at)?;
    }
    group.barrier().map_err(text)?;
    if seen != chain {
        return Err(format!("the chain is {seen:x?} instead of {chain:x?}"));
    }
    if group.rank() + 1 == group.size() {
        table.write(chain[0], 7)?;
    }
    group.barrier().map_err(text)?;
    let last = table.read(chain[0])?;
    group.barrier().map_err(text)?;
    if last != 7 {
        return Err(format!("the word of the last rank is {last}"));
    }
    let pieces = table.section.pieces().iter().map(|piece| format!("{}:{}", piece.gpu, piece.length >> 20));
    let pieces: Vec<String> = pieces.collect();
    Ok(format!("at {:#x} {} MiB {}", table.section.address(), table.section.len() >> 20, pieces.join(" ")))
}

/// Freezes the section. The words stay, and the mapping has lost the right to write.
fn frozen(group: &Local) -> Outcome {
    let table = SharedTable::find()?;
    if table.section.is_frozen().map_err(text)? {
        return Err("it is frozen before the freeze".into());
    }
    group.barrier().map_err(text)?;
    let before = table.read(table.section.address())?;
    let proof = table.section.freeze(group).map_err(text)?;
    let Proof::Weaker { why } = proof else { return Err(format!("{proof:?}")) };
    if table.read(table.section.address())? != before {
        return Err("the freeze has changed a word".into());
    }
    is_frozen(group).map(|_| why)
}

/// Checks that the section is frozen, for this process too.
fn is_frozen(_: &Local) -> Outcome {
    let table = SharedTable::find()?;
    if !table.section.is_frozen().map_err(text)? {
        return Err("it is not frozen".into());
    }
    rights(table.section.address())
}

/// Returns the rights of the mapping at an address: those of the fake driver's GPUs.
fn rights(at: u64) -> Result<String, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(text)?;
    let line = maps.lines().find(|line| {
        let span = line.split(' ').next().and_then(|span| span.split_once('-'));
        let bounds =
            span.map(|(start, end)| [start, end].map(|text| u64::from_str_radix(text, 16).unwrap_or(0)));
        bounds.is_some_and(|[start, end]| start <= at && at < end)
    });
    Ok(line.and_then(|line| line.split(' ').nth(1)).unwrap_or("none").to_owned())
}

/// Names that no section has are refused.
fn errors(_: &Local) -> Outcome {
    let buffer = HostBuffer::attach().map_err(text)?;
    Ok(buffer.gpu_section("other").err().ok_or("there is a section \"other\"")?.to_string())
}

/// Prints the address of each rank, or the error of one that does not use GPUs.
fn absent(group: &Local) -> Outcome {
    let found = HostBuffer::attach().and_then(|buffer| buffer.gpu_section("table"));
    let own = match found {
        Ok(section) => format!("{:#x}", section.address()),
        Err(error) => error.to_string(),
    };
    for rank in 0..group.size() {
        if rank == group.rank() {
            println!("rank {rank}: {own}");
        }
        group.barrier().map_err(text)?;
    }
    Ok("printed".into())
}

/// Prints the report of this job: "$HOSTBUF stat".
fn stat(group: &Local) -> Outcome {
    if group.rank() == 0 {
        let hostbuf = std::env::var("HOSTBUF").map_err(text)?;
        let report = Command::new(hostbuf).arg("stat").output().map_err(text)?;
        let report = String::from_utf8_lossy(&report.stdout).into_owned();
        let job = std::env::var("HOSTBUF_JOB").map_err(text)?;
        let own = format!("job {} ", job.rsplit('/').next().unwrap_or_default());
        let lines = report.lines().skip_while(|line| !line.starts_with(&own));
        lines.take_while(|line| !line.is_empty()).for_each(|line| println!("{line}"));
    }
    group.barrier().map_err(text)?;
    Ok("printed".into())
}

/// Waits until the file exists that the variable HELD names.
fn wait(group: &Local) -> Outcome {
    SharedTable::find()?;
    group.barrier().map_err(text)?;
    if group.rank() == 0 {
        println!("ok waiting");
        let held = std::env::var("HELD").map_err(text)?;
        while !std::path::Path::new(&held).exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    group.barrier().map_err(text)?;
    Ok("ended".into())
}
