//! The ranges that the library in the profiler's place has recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use hostbuf_tests::{Scratch, fixture};

/// The variable that names the file of the events.
pub const LOG: &str = "HOSTBUF_TEST_NVTX_LOG";

/// The ranges of a process.
pub struct RangeEvents {
    /// The number of bytes and the name of each range.
    ranges: Vec<(u64, String)>,
    /// The lines.
    lines: String,
}

/// Returns the events of this process.
pub fn events_so_far() -> String {
    let path = std::env::var_os(LOG).expect("the process was started with it");
    // The library makes the file with the first range.
    fs::read_to_string(path).unwrap_or_default()
}

impl RangeEvents {
    /// Runs the test `name` of this program in a process with the library, and returns the ranges
    /// of that process. Returns `None` there.
    pub fn of_test(name: &str) -> Option<RangeEvents> {
        if std::env::var_os(LOG).is_some() {
            return None;
        }
        let folder = Scratch::new(name);
        let library = fixture("cc", "nvtx_injection.c", &["-shared", "-fPIC"]);
        let mut command = Command::new(std::env::current_exe().expect("a test knows its path"));
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
        command.env("NVTX_INJECTION64_PATH", library.expect("a C compiler built this test's crate"));
        let output = command.env(LOG, folder.path("log")).output().expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
        let lines = fs::read_to_string(folder.path("log")).expect("there are ranges");
        let ranges = lines.lines().filter_map(|line| {
            let (_, rest) = line.split_once(' ').filter(|(kind, _)| ["start", "push"].contains(kind))?;
            let mut words = rest.splitn(3, ' ').skip(1);
            let (bytes, name) = (words.next()?.parse().ok()?, words.next()?.to_owned());
            Some((bytes, name))
        });
        Some(RangeEvents { ranges: ranges.collect(), lines })
    }

    /// Returns the number of bytes of the one range whose name has this beginning and end.
    pub fn one(&self, start: &str, end: &str) -> u64 {
        let start = format!("hostbuf: {start}");
        let found = |name: &str| name.starts_with(&start) && name.ends_with(end);
        let found: Vec<_> = self.ranges.iter().filter(|(_, name)| found(name)).collect();
        assert_eq!(found.len(), 1, "{start}...{end}: {found:?}");
        found[0].0
    }

    /// Returns the number of ranges with this name, and the sum of their bytes.
    pub fn sum(&self, name: &str) -> (usize, u64) {
        let name = format!("hostbuf: {name}");
        let found = self.ranges.iter().filter(|(_, of)| *of == name);
        found.fold((0, 0), |(count, sum), (bytes, _)| (count + 1, sum + bytes))
    }

    /// Checks that each range has ended once, those of a thread in the reverse order, and that each
    /// has a name.
    pub fn check(&self) {
        let (mut open, mut depths) = (BTreeSet::new(), BTreeMap::<&str, usize>::new());
        for line in self.lines.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["start", id, ..] => assert!(open.insert(id), "{line}"),
                ["end", id] => assert!(open.remove(id), "{line}"),
                ["push", thread, ..] => *depths.entry(thread).or_default() += 1,
                ["pop", thread] => {
                    let depth = depths.get_mut(thread).filter(|depth| **depth > 0);
                    *depth.unwrap_or_else(|| panic!("{line}: nothing is open")) -= 1;
                }
                _ => panic!("{line}"),
            }
        }
        assert!(open.is_empty() && depths.values().all(|depth| *depth == 0), "{open:?} {depths:?}");
        assert!(self.ranges.iter().all(|(_, name)| name.starts_with("hostbuf: ") && !name.ends_with(": ?")));
    }
}
