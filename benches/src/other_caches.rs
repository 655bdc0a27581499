//! Other registration caches, measured in the same run and in turns by separate programs.

#![allow(unsafe_code, reason = "looks for libraries by the dynamic linker")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::chain::{PAGES, SEED, STRIDE};

/// A program that walks the same chain through another cache.
pub(crate) struct CacheProgram {
    child: Child,
    turns: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl CacheProgram {
    /// Starts the program with this number of entries, without waiting for it.
    pub(crate) fn start(program: &str, base: usize, entries: usize) -> std::io::Result<CacheProgram> {
        let mut child = Command::new(program)
            .args([base, entries, PAGES, STRIDE].map(|n| n.to_string()))
            .arg(SEED.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let turns = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it is piped"));
        Ok(CacheProgram { child, turns, answers })
    }

    /// Returns the name and version of the library that the program calls.
    pub(crate) fn version(program: &str) -> std::io::Result<String> {
        let output = Command::new(program).arg("--version").output()?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Returns the seconds of one hit.
    pub(crate) fn turn(&mut self, hits: usize) -> Result<f64, Box<dyn std::error::Error>> {
        self.turn_of(hits, 1)
    }

    /// Returns the seconds between two hits when `threads` threads make `hits` hits each.
    pub(crate) fn turn_of(&mut self, hits: usize, threads: usize) -> Result<f64, Box<dyn std::error::Error>> {
        writeln!(self.turns.as_mut().expect("it is open until the end"), "{hits} {threads}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let nanoseconds: f64 = line.trim().parse().map_err(|_| format!("the peer answered \"{line}\""))?;
        Ok(nanoseconds * 1e-9)
    }

    /// Ends the program, whose measurements count only if it succeeds.
    pub(crate) fn finish(mut self) -> Result<(), Box<dyn std::error::Error>> {
        drop(self.turns.take());
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the peer ended with {status}").into()) }
    }
}

/// Returns the reason that libfabric's cache cannot be measured here: it is reachable only through
/// the memory registration of a provider that uses it, and all of those need a device.
pub(crate) fn libfabric() -> String {
    let name = c"libfabric.so.1";
    // SAFETY: the library is loaded once and stays; the constructors of libfabric are harmless.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        return "there is no libfabric.so.1".into();
    }
    let has = |symbol: &std::ffi::CStr| {
        // SAFETY: the library is loaded, and nothing is called.
        !unsafe { libc::dlsym(library, symbol.as_ptr()) }.is_null()
    };
    let exported = [c"ofi_mr_cache_init", c"ofi_mr_cache_search"].into_iter().all(has);
    let devices = std::fs::read_dir("/sys/class/infiniband").map_or(0, Iterator::count);
    match (exported, devices) {
        (true, _) => "it exports its cache, which this program does not know how to call yet".into(),
        (false, 0) => {
            "libfabric.so.1 exports no ofi_mr_cache_*, and the providers that use it need a device: there is \
                       none in /sys/class/infiniband"
                .into()
        }
        (false, n) => format!("libfabric.so.1 exports no ofi_mr_cache_*; the {n} devices here are not asked"),
    }
}
