//! Programs of tests/fixtures.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::root;

/// Compiles tests/fixtures/`source` by `compiler` with `flags`, once for each different text and
/// flags.
///
/// # Errors
/// The message of the compiler.
///
/// # Panics
/// If the source is missing or target/ is not writable.
pub fn fixture(compiler: &str, source: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let path = root().join("tests/fixtures").join(source);
    let text = fs::read(&path).expect("the fixture's source is there");
    let mut key = format!("{compiler} {flags:?} ").into_bytes();
    key.extend(&text);
    for header in headers(&String::from_utf8_lossy(&text)) {
        key.extend(fs::read(root().join("tests/fixtures").join(header)).unwrap_or_default());
    }
    let digest =
        key.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let dir = root().join("target/fixtures");
    fs::create_dir_all(&dir).expect("target/ is writable");
    let stem = path.file_stem().expect("a file").to_string_lossy().into_owned();
    let program = dir.join(format!("{stem}-{digest:016x}"));
    if program.exists() {
        return Ok(program);
    }
    static BUILDS: AtomicU64 = AtomicU64::new(0);
    let number = BUILDS.fetch_add(1, Ordering::Relaxed);
    let fresh = dir.join(format!(".{stem}-{digest:016x}-{}-{number}", std::process::id()));
    // Flags that begin with -l must follow the source file.
    let built = Command::new(compiler).args(["-O1", "-g", "-o"]).arg(&fresh).arg(&path).args(flags).output();
    let built = built.map_err(|e| format!("{compiler}: {e}"))?;
    if !built.status.success() {
        return Err(format!("{compiler} {flags:?}: {}", String::from_utf8_lossy(&built.stderr)));
    }
    // Several tests may build the same fixture. The last rename wins, and all results are equal.
    fs::rename(&fresh, &program).expect("target/ is writable");
    Ok(program)
}

/// Returns the names of the headers beside a source file that it includes.
fn headers(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| line.strip_prefix("#include \"")?.split('"').next())
}
