//! An object of a server to memory of the host, each time that a line comes in.

use std::error::Error;
use std::io::{self, Write};
use std::sync::Arc;

use hostbuf_staging::{
    BorrowedMemory, DeviceTarget, HostDevice, HostMemory, RemoteFile, RemoteOptions, RequestMode, Ring,
    RingOptions, TransferError,
};

use crate::object_checksum::{ObjectChecksum, Zeros};
use crate::transfer_sample::TransferSample;

/// The command line of `remote`.
#[derive(Debug)]
pub(crate) struct RemoteCommand {
    url: String,
    mode: RequestMode,
    certificates: Option<String>,
    options: RingOptions,
}

impl RemoteCommand {
    /// Parses the arguments after `remote`.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<RemoteCommand, String> {
        let (mut mode, mut certificates, mut options) = (RequestMode::Easy, None, RingOptions::new());
        let mut operands = Vec::new();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--reactors" => {
                    let text = value()?;
                    let (threads, requests) =
                        text.split_once('x').ok_or("--reactors: expected THREADSxREQUESTS")?;
                    mode = RequestMode::reactors(number(threads)?, number(requests)?);
                }
                "--workers" => options = options.workers(number(&value()?)?),
                "--piece" => {
                    let piece = number(&value()?)? << 20;
                    // A slot with several pieces, so that the workers do not wait for each other.
                    options = options.piece_bytes(piece).slot_bytes(options.slot_bytes.max(4 * piece));
                }
                "--certificates" => certificates = Some(value()?),
                option if option.starts_with('-') => return Err(format!("unexpected option {option}")),
                _ => operands.push(argument),
            }
        }
        match <[String; 1]>::try_from(operands) {
            Ok([url]) => Ok(RemoteCommand { url, mode, certificates, options }),
            Err(_) => Err("expected an address".to_owned()),
        }
    }

    /// Reads the object once for each line of the standard input, and writes a line of JSON: the
    /// seconds and the CPU seconds. For the line `check` it writes the checksum of the bytes.
    ///
    /// # Errors
    /// Those of the object and of the ring.
    pub(crate) fn run(self) -> Result<(), Box<dyn Error>> {
        let mut client = RemoteOptions::new().mode(self.mode);
        if let Some(path) = &self.certificates {
            client = client.certificates(std::fs::read(path)?);
        }
        let file = client.client()?.open(&self.url)?;
        let ring = Ring::for_host(self.options)?;
        let object = ReadObject::new(file, ring);
        answer("ready")?;
        for line in io::stdin().lines() {
            match line?.as_str() {
                "check" => answer(&object.checksum()?.to_string())?,
                _ => {
                    let TransferSample { seconds, cpu_seconds, .. } = object.read()?;
                    answer(&format!("[{seconds}, {cpu_seconds}]"))?;
                }
            }
        }
        Ok(())
    }
}

/// An object, and the memory that it is read into.
struct ReadObject {
    file: RemoteFile,
    ring: Ring<HostDevice>,
    target: DeviceTarget,
}

impl ReadObject {
    fn new(file: RemoteFile, ring: Ring<HostDevice>) -> ReadObject {
        let memory = HostMemory::new(file.bytes() as usize);
        ReadObject { file, ring, target: DeviceTarget::new(Arc::new(BorrowedMemory::from(memory))) }
    }

    fn read(&self) -> Result<TransferSample, TransferError> {
        let read = || self.file.pread(&self.ring, self.target.clone(), 0).wait().map(drop);
        TransferSample::of(self.file.bytes(), read)
    }

    /// Reads the object into cleared memory, and returns the checksum of the memory.
    fn checksum(&self) -> Result<u64, TransferError> {
        let checksum = Arc::new(ObjectChecksum::default());
        self.ring.read(Arc::new(Zeros), 0, self.target.clone()).wait()?;
        self.read()?;
        self.ring.write(self.target.clone(), checksum.clone(), 0).wait()?;
        Ok(checksum.get())
    }
}

fn number(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("invalid number {text}: expected 1 or more")),
    }
}

/// Writes a line at once.
fn answer(line: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "rivals: {line}")?;
    output.flush()
}
