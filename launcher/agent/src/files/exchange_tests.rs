//! Loads of a file by hosts that are threads of this process.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf::job::Collective;
use hostbuf::{ErrorClass, JobError};
use nix::sys::uio::pread;

use super::file_load::FileLoad;
use super::input_file::InputFile;
use super::loaded_file::LoadedFile;
use super::window_share::{WINDOW, WindowShare};
use crate::thread_agents::{Broadcast, ThreadAgent};

const HOSTS: usize = 2;
/// The length of the file, which has three rounds of a window of each host.
const BYTES: u64 = 4 * WINDOW + 4097;

/// A file of which no window begins with a zero, and a memory file of each host.
struct ExchangedFile {
    path: PathBuf,
    content: Vec<u8>,
    memory: Vec<LoadedFile>,
}

impl ExchangedFile {
    fn new(name: &str) -> ExchangedFile {
        let path = std::env::temp_dir().join(format!("hostbuf-{name}-{}", std::process::id()));
        let content: Vec<u8> = (0..BYTES).map(|at| ((at * 31 + at / 4096) % 251) as u8 + 1).collect();
        std::fs::write(&path, &content).unwrap();
        let file = |_| LoadedFile::create(1, OsStr::new(name), BYTES).unwrap();
        ExchangedFile { path, content, memory: (0..HOSTS).map(file).collect() }
    }

    /// Loads the file on all hosts. Returns the number of bytes that each has read.
    fn load(&self, after_broadcast: Broadcast<'_>) -> Vec<std::result::Result<u64, JobError>> {
        let hosts = ["h0".to_owned(), "h1".to_owned()];
        let input = InputFile::find(&self.path).unwrap();
        ThreadAgent::run(HOSTS, after_broadcast, |group| {
            let share = WindowShare::new(group.rank(), HOSTS, 0);
            let file = &self.memory[group.rank()];
            let load = FileLoad { group, hosts: &hosts, input: &input, file, share };
            load.run(&mut |done| assert!(done <= BYTES)).map(|(_, own)| own)
        })
    }

    /// Returns `length` bytes of the memory file of a host.
    fn memory(&self, rank: usize, start: u64, length: u64) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        let read = pread(self.memory[rank].as_fd(), &mut bytes, start as i64).unwrap();
        assert_eq!(read as u64, length);
        bytes
    }
}

impl Drop for ExchangedFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn windows_are_exchanged_before_the_last_ones_are_read() {
    let file = ExchangedFile::new("exchanged");
    let first_broadcasts = AtomicUsize::new(0);
    let read = file.load(&|rank, number, _| {
        // The threads read the second of three rounds meanwhile.
        if number == 0 {
            assert_eq!(file.memory(rank, 4 * WINDOW, 1), [0]);
            first_broadcasts.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(first_broadcasts.into_inner(), HOSTS);
    let read: Vec<u64> = read.into_iter().map(|own| own.unwrap()).collect();
    assert_eq!(read, [2 * WINDOW + 4097, 2 * WINDOW]);
    for rank in 0..HOSTS {
        assert!(file.memory(rank, 0, BYTES) == file.content, "{rank}");
    }
}

#[test]
fn a_window_that_arrives_damaged_is_an_error_on_all_hosts() {
    let file = ExchangedFile::new("damaged");
    // One that each host receives, of which the second one is shorter.
    for window in [1, 4] {
        let receiver = 1 - window % HOSTS;
        let loaded = file.load(&|rank, number, bytes| {
            if (rank, number) == (receiver, window) {
                bytes[4096] ^= 0x10;
            }
        });
        for error in loaded.into_iter().map(|own| own.unwrap_err()) {
            assert_eq!(error.class, ErrorClass::Replicate, "{error}");
            let path = file.path.display();
            let words = [
                format!("cannot load {path} on "),
                format!("at offset {} have arrived from h{}", window as u64 * WINDOW, window % HOSTS),
                "Start the job again".into(),
            ];
            assert!(words.iter().all(|words| error.message.contains(words)), "{error}");
        }
    }
}
