//! Readers that write to what they read, and producers that shorten it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;

use hostbuf_pool::{Pool, ProducerOptions, Token};

use crate::broken_promise::BrokenPromise;
use crate::child::{RoleProcess, eventually};
use crate::stamps;
use crate::test_broker::{BrokerProcess, connect, status};

/// Lets a reader write to its block in each round.
pub(crate) fn write(rounds: u32) -> Result<String, BrokenPromise> {
    let broker = BrokerProcess::start(1 << 20)?;
    let pool = broker.connect("producer")?;
    let producer = pool.producer(&ProducerOptions::new(64 << 10, 4).retain(1));
    let producer = producer.map_err(|error| error.to_string())?;
    // An answer of the broker: it has closed its copies of what it has sent before.
    status(&pool)?;
    let descriptors = broker.descriptors();
    refuse_changes()?;
    for round in 0..rounds {
        let stamp = u64::from(round) + 1;
        let token = stamps::publish(producer.take().map_err(|error| error.to_string())?, stamp);
        let mut reader = RoleProcess::start("trespasser", &[broker.name()])?;
        reader.wait_ready()?;
        reader.send(&token.to_bytes());
        // It has checked that descriptors give no access, and is about to use its mapping.
        reader.wait_ready()?;
        let status = reader.wait()?;
        if status.signal() != Some(libc::SIGSEGV) {
            return Err(format!("a reader that writes to its block: {status}"));
        }
        let block = pool.acquire(&token).map_err(|error| error.to_string())?;
        if stamps::check(&block)? != stamp {
            return Err("the block has changed".into());
        }
    }
    eventually("the broker has as many descriptors as before", || broker.descriptors() == descriptors)?;
    let clients = status(&pool)?["clients"].as_array().map_or(0, Vec::len);
    if clients == 1 { Ok("all ended by SIGSEGV".into()) } else { Err(format!("{clients} clients are left")) }
}

/// Checks that no descriptor of this process can change the length of a segment's file, or write to
/// its blocks.
fn refuse_changes() -> Result<(), BrokenPromise> {
    let text = |error: std::io::Error| error.to_string();
    let mut seen = 0;
    for entry in std::fs::read_dir("/proc/self/fd").map_err(text)?.flatten() {
        let Ok(link) = std::fs::read_link(entry.path()) else { continue };
        let link = link.to_string_lossy().into_owned();
        if !link.contains("memfd:hostbuf-pool-") {
            continue;
        }
        seen += 1;
        let Ok(file) = File::options().read(true).write(true).open(entry.path()) else { continue };
        let length = file.metadata().map_err(text)?.len();
        for wrong in [0, length.saturating_sub(4096), length + 4096] {
            // The file by which a broker knows its clients is empty.
            if wrong == length {
                continue;
            }
            if file.set_len(wrong).is_ok() {
                return Err(format!("{link} of {length} bytes could be made {wrong} bytes long"));
            }
        }
        let is_data = !link.contains("-table") && !link.contains("-row");
        if is_data && file.write_at(&[0], 0).is_ok() {
            return Err(format!("{link} could be written"));
        }
    }
    if seen < 3 { Err(format!("{seen} files of a segment")) } else { Ok(()) }
}

/// Acquires the block of a token, and writes to it.
pub(crate) fn trespass(broker: &str) -> Result<(), BrokenPromise> {
    use std::io::{Read, Write};
    let pool: Pool = connect(broker, "trespasser")?;
    let say = || {
        let mut output = std::io::stdout();
        output.write_all(b"r").and_then(|()| output.flush()).map_err(|error| error.to_string())
    };
    // Many core files are of no use.
    let limited = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_CORE, 0, 0);
    limited.map_err(|errno| errno.to_string())?;
    say()?;
    let mut token = [0; Token::SIZE];
    std::io::stdin().read_exact(&mut token).map_err(|error| error.to_string())?;
    let block = pool.acquire_bytes(&token).map_err(|error| error.to_string())?;
    refuse_changes()?;
    say()?;
    overwrite(block.as_slice());
    Ok(())
}

/// Writes to memory that is mapped for reading.
#[allow(unsafe_code, reason = "breaks the rule of the pool")]
fn overwrite(bytes: &[u8]) {
    // SAFETY: none. The kernel is to end this process.
    unsafe { bytes.as_ptr().cast_mut().write_volatile(!bytes[0]) };
}
