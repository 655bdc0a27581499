//! The rings of all processes of this host.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::counter_page::{DEVICE, FILE_NAME, MAGIC, PAGE_BYTES, PageWord};
use super::ring_counters::RingCounters;

/// A ring of a process of this host, as its counters describe it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RingStatus {
    /// The number of the process.
    pub process: u32,
    /// The name of the program.
    pub program: String,
    /// The description of the device, as the ring states it. It may contain any characters.
    pub device: String,
    /// The number of slots.
    pub slots: u64,
    /// The length of a slot in bytes.
    pub slot_bytes: u64,
    /// The length of a piece in bytes.
    pub piece_bytes: u64,
    /// The counts.
    pub counters: RingCounters,
}

impl RingStatus {
    /// Returns the rings of all processes that this user may see, in the order of the processes.
    /// Nothing is asked of them, so processes that are stopped are listed too.
    #[must_use]
    pub fn of_all() -> Vec<RingStatus> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers.into_iter().flat_map(of_process).collect()
    }
}

/// Returns the rings of a process. A process or a ring may end meanwhile, and is left out then.
fn of_process(process: u32) -> Vec<RingStatus> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let expected = format!("/memfd:{FILE_NAME} (deleted)");
    let is_ring =
        |path: &Path| fs::read_link(path).is_ok_and(|target| target.as_os_str() == expected.as_str());
    let pages = descriptors.map(|entry| entry.path()).filter(|path| is_ring(path));
    let program = || fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    pages.filter_map(|path| read(&path, process, program().trim_end())).collect()
}

fn read(path: &Path, process: u32, program: &str) -> Option<RingStatus> {
    let mut page = [0; PAGE_BYTES];
    File::open(path).ok()?.read_exact_at(&mut page, 0).ok()?;
    decode(&page, process, program)
}

/// Reads a page, which may contain anything.
fn decode(page: &[u8; PAGE_BYTES], process: u32, program: &str) -> Option<RingStatus> {
    let (at, room) = DEVICE;
    let words: Vec<u64> = page[..at].as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    if words[0] != MAGIC {
        return None;
    }
    let text = page[at..at + room].split(|&byte| byte == 0).next().unwrap_or_default();
    let word = |of: PageWord| words[of as usize];
    Some(RingStatus {
        process,
        program: program.to_owned(),
        device: String::from_utf8_lossy(text).into_owned(),
        slots: word(PageWord::Slots),
        slot_bytes: word(PageWord::SlotBytes),
        piece_bytes: word(PageWord::PieceBytes),
        counters: RingCounters::of(&words),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::counter_page::{ACTIVE, CounterPage, RingShape};
    use super::*;

    #[test]
    fn a_ring_of_this_process_is_found() {
        let shape = RingShape { slots: 3, slot_bytes: 1 << 20, piece_bytes: 4096, workers: 7 };
        let device = format!("a device {}", "x".repeat(300));
        let page = CounterPage::new(&device, shape).unwrap();
        page.add(PageWord::ToDevice, 5);
        page.begin(ACTIVE);
        let find = || {
            let all = RingStatus::of_all().into_iter();
            all.filter(|ring| ring.process == std::process::id() && device.starts_with(&ring.device))
                .collect::<Vec<_>>()
        };
        let found = find();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].slots, found[0].slot_bytes, found[0].counters.workers), (3, 1 << 20, 7));
        assert_eq!((found[0].counters.to_device, found[0].device.len()), (5, 256));
        let later = find();
        assert!(later[0].counters.active > found[0].counters.active, "the clock runs");
        page.end(ACTIVE);
        assert_eq!(find()[0].counters.active, find()[0].counters.active);
        drop(page);
        assert_eq!(find().len(), 0);
    }

    proptest! {
        #[test]
        fn any_page_is_read(bytes in prop::collection::vec(any::<u8>(), PAGE_BYTES), is_page: bool) {
            let mut page: [u8; PAGE_BYTES] = bytes.try_into().unwrap();
            if is_page {
                page[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            }
            let status = decode(&page, 1, "program");
            prop_assert_eq!(status.is_some(), is_page);
            if let Some(status) = status {
                let _ = (status.counters.bound(), status.counters.rate(), status.counters.since(&status.counters));
            }
        }
    }
}
