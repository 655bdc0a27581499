//! Loads of one rank. `tests/jobs/loading.rs` has those of several ranks and hosts.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use hostbuf::job::Solo;
use hostbuf::{BufferOptions, FillState, HostBuffer};
use hostbuf_staging::{Backend, FileOptions};

use super::LoadOptions;
use crate::error::{FileProblem, LoadError, LoadErrorKind};
use crate::progress::LoadProgress;
use crate::table::TensorTable;
use crate::tensors::Tensors;
use crate::test_folder::TestFolder;

/// Returns bytes that differ from place to place.
fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + at / 4096 + seed) % 251) as u8).collect()
}

/// Makes files of several formats and lengths. The header of the second has an odd length.
fn files(folder: &TestFolder) -> Vec<PathBuf> {
    let safetensors = |name: &str, elements: usize, padding: usize| {
        let (half, end) = (elements / 2, elements * 4);
        let text = format!(
            r#"{{"{name}.a":{{"dtype":"F32","shape":[{half}],"data_offsets":[0,{}]}},"{name}.b":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{end}]}}}}"#,
            half * 4,
            elements - half,
            half * 4
        );
        let length = text.len().next_multiple_of(8) + padding;
        let mut bytes = (length as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(8 + length, b' ');
        bytes.extend(pattern(end, elements));
        folder.write(&format!("{name}.safetensors"), &bytes)
    };
    vec![
        safetensors("x", 50_001, 0),
        safetensors("odd", 3000, 3),
        folder.write("empty.bin", b""),
        folder.write("table.bin", &pattern(70_000, 5)),
    ]
}

const SMALL: LoadOptions =
    LoadOptions { backend: Backend::Posix, window_bytes: 16 << 10, piece_bytes: 4096, workers: 3 };

fn buffer_for(options: LoadOptions, files: &[PathBuf]) -> HostBuffer {
    let table = TensorTable::read(files).expect("the files are valid");
    let bytes = options.buffer_bytes(&table).expect("the options are valid");
    HostBuffer::allocate(&Solo, BufferOptions::new(bytes)).expect("there is memory")
}

/// Checks that a buffer has the bytes of all files.
fn is_loaded(tensors: &Tensors, files: &[PathBuf]) {
    for (number, path) in files.iter().enumerate() {
        let content = fs::read(path).expect("the file is there");
        assert!(tensors.file_bytes(number) == Some(&content[..]), "{}", path.display());
        for tensor in tensors.iter().filter(|tensor| tensor.entry.file == number) {
            let range = tensor.entry.range.start as usize..tensor.entry.range.end as usize;
            assert!(tensor.bytes == &content[range], "{}", tensor.entry.name);
        }
    }
}

#[test]
fn all_bytes_arrive_by_every_backend() {
    let folder = TestFolder::new("backends");
    let files = files(&folder);
    for &backend in Backend::ALL {
        if let Err(error) = FileOptions::new().backend(backend).open(&files[0]) {
            assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
            eprintln!("skipped: loading by {backend}: {error}");
            continue;
        }
        for options in [SMALL.backend(backend), LoadOptions::new().backend(backend)] {
            let buffer = buffer_for(options, &files);
            let tensors = options.load(&Solo, &buffer, &files).expect("the files are valid");
            is_loaded(&tensors, &files);
            let counters = tensors.counters();
            let bytes: u64 = files.iter().map(|path| fs::metadata(path).expect("it is there").len()).sum();
            assert_eq!((counters.file_bytes, counters.bytes_read), (bytes, bytes));
            assert_eq!((counters.job_bytes_read, counters.bytes_received), (bytes, 0));
            assert!(counters.waiting <= counters.reading && !counters.elapsed.is_zero());
            assert_eq!(buffer.fill_state().expect("it is valid"), FillState::Filled);
        }
    }
}

#[test]
fn elements_are_aligned_even_after_a_header_of_odd_length() {
    let folder = TestFolder::new("aligned");
    let files = files(&folder);
    let tensors = SMALL.allocate_and_load(&Solo, BufferOptions::new(0), &files).expect("the files are valid");
    is_loaded(&tensors, &files);
    for tensor in tensors.iter() {
        assert!((tensor.bytes.as_ptr() as usize).is_multiple_of(4), "{}", tensor.entry.name);
    }
}

#[test]
fn another_handle_finds_the_tensors_also_after_freezing() {
    let folder = TestFolder::new("opened");
    let files = files(&folder);
    let buffer = buffer_for(SMALL, &files);
    assert!(matches!(Tensors::open(&buffer), Err(LoadError::NotLoaded { .. })));
    SMALL.load(&Solo, &buffer, &files).expect("the files are valid");
    let opened = Tensors::open(&buffer).expect("the files were loaded");
    buffer.freeze(&Solo).expect("nothing else has the buffer");
    is_loaded(&opened, &files);
    assert_eq!(opened.counters().bytes_read, opened.table().file_bytes());
    let missing = opened.get("z").expect_err("no file has it").to_string();
    assert!(missing.contains("no tensor \"z\" among the 6"), "{missing}");
    let error = opened.slice("x.a", 1, 0, 2).expect_err("it has one dimension");
    assert_eq!((error.kind(), error.to_string().contains("x.a")), (LoadErrorKind::Argument, true));
}

#[cfg(feature = "cuda")]
#[test]
fn a_copy_to_a_gpu_checks_the_options_first() {
    let folder = TestFolder::new("gpu-options");
    let files = files(&folder);
    let buffer = buffer_for(SMALL, &files);
    let table = TensorTable::read(&files).expect("the files are valid");
    // A host without a GPU has the same error.
    let options = SMALL.window_bytes(0);
    let error = crate::GpuCopy::new(0, &buffer, &table, &options).expect_err("no window has 0 bytes");
    assert!(matches!(error, LoadError::Option { .. }), "{error}");
}

#[test]
fn windows_become_ready_one_by_one() {
    let folder = TestFolder::new("windows");
    let files = files(&folder);
    let buffer = buffer_for(SMALL, &files);
    let table = TensorTable::read(&files).expect("the files are valid");
    let seen: Mutex<Vec<(u64, bool)>> = Mutex::default();
    let observer = |progress: &LoadProgress| {
        let first = table.get("x.a").expect("it is there");
        let start = table.region_offset(first);
        let found = progress.bytes(start..start + first.bytes());
        if let Some(bytes) = found {
            assert!(bytes == &pattern(100_000, 50_001)[..]);
        }
        seen.lock().expect("no thread panics").push((progress.counters().bytes_read, found.is_some()));
        assert_eq!(found.is_some(), progress.has_tensor(&table, first));
        let end = table.region_bytes();
        assert_eq!(progress.bytes(end + 1..end + 1), Some(&[][..]));
        assert_eq!(progress.bytes(end..end + 1), None);
    };
    SMALL.workers(1).load_with(&Solo, &buffer, &files, &observer).expect("the files are valid");
    let seen = seen.into_inner().expect("no thread panics");
    assert_eq!(seen.len() as u64, 1 + table.region_bytes().div_ceil(SMALL.window_bytes));
    assert!(seen.is_sorted() && seen[0].0 == 0 && !seen[0].1 && seen[seen.len() - 1].1, "{seen:?}");
}

/// Loads files of which one is changed by `change` after the first window was read.
fn changed(name: &str, change: impl Fn(&PathBuf) + Sync) -> LoadError {
    let folder = TestFolder::new(name);
    let files = files(&folder);
    let buffer = buffer_for(SMALL, &files);
    let is_changed = Mutex::new(false);
    let observer = |progress: &LoadProgress| {
        let has_read = progress.counters().bytes_read > 0;
        if has_read && !std::mem::replace(&mut *is_changed.lock().expect("no thread panics"), true) {
            change(&files[0]);
        }
    };
    let loaded = SMALL.workers(1).load_with(&Solo, &buffer, &files, &observer);
    assert_eq!(buffer.fill_state().expect("it is valid"), FillState::Empty);
    let error = loaded.expect_err("the file has changed");
    assert_eq!(error.kind(), LoadErrorKind::Changed, "{error}");
    // This process keeps the memory of the failed load.
    let again = SMALL.load(&Solo, &buffer, &files[1..]).expect_err("the buffer has no more memory");
    assert!(again.to_string().contains("or use a new one if a load into it has failed"), "{again}");
    assert!(error.to_string().contains(&files[0].display().to_string()), "{error}");
    error
}

#[test]
fn a_file_that_changes_while_it_is_loaded_is_an_error() {
    let open = |path: &PathBuf| File::options().write(true).open(path).expect("it is there");
    let later = SystemTime::now() + Duration::from_secs(60);
    let touched = changed("touched", |path| open(path).set_modified(later).expect("it is writable"));
    assert!(
        matches!(&touched, LoadError::File(error) if matches!(error.problem, FileProblem::Changed { .. }))
    );
    let cut = changed("cut", |path| open(path).set_len(20_000).expect("it is writable"));
    assert!(cut.to_string().contains("after: 20000 bytes"), "{cut}");
    changed("replaced", |path| {
        let other = path.with_extension("new");
        fs::copy(path, &other).expect("the folder is writable");
        fs::rename(other, path).expect("the folder is writable");
    });
}

#[test]
fn a_file_that_is_not_the_one_of_the_table_is_an_error() {
    let folder = TestFolder::new("other");
    let files = files(&folder);
    let buffer = buffer_for(SMALL, &files);
    let loading = super::collective_load::CollectiveLoad::new(&Solo, &buffer, SMALL, &|_| {});
    let read = || {
        let table = TensorTable::read(&files);
        fs::write(&files[3], pattern(70_000, 6)).expect("the folder is writable");
        let later = SystemTime::now() + Duration::from_secs(60);
        let file = File::options().write(true).open(&files[3]).expect("it is there");
        file.set_modified(later).expect("it is writable");
        table
    };
    let error = loading.expect("the buffer is empty").run(&read).expect_err("the file has changed");
    assert!(
        matches!(&error, LoadError::File(error) if matches!(error.problem, FileProblem::OtherVersion { .. }))
    );
    assert!(error.to_string().contains("cp --preserve") && !error.to_string().contains("rank"), "{error}");
}

#[test]
fn a_buffer_that_is_too_small_or_filled_is_an_error() {
    let folder = TestFolder::new("room");
    let files = files(&folder);
    let small = HostBuffer::allocate(&Solo, BufferOptions::new(64 << 10)).expect("there is memory");
    let error = SMALL.load(&Solo, &small, &files).expect_err("the files are larger");
    assert!(matches!(error, LoadError::NoRoom { needed, left, .. } if needed > 270_000 && left == 64 << 10));
    assert!(error.to_string().contains("make it larger"), "{error}");
    let used = buffer_for(SMALL, &files);
    used.initialize(|arena| arena.place(7u64)).expect("it is empty");
    let error = SMALL.load(&Solo, &used, &files).expect_err("it is filled");
    assert!(matches!(error, LoadError::Filled { .. }), "{error}");
    let error = Tensors::open(&used).expect_err("another object fills it");
    assert_eq!(error.kind(), LoadErrorKind::Job, "{error}");
}

#[test]
fn a_damaged_table_in_the_buffer_is_an_error() {
    #![allow(unsafe_code, reason = "writes where another process would")]
    let folder = TestFolder::new("overwritten");
    let files = files(&folder);
    let tensors = SMALL.allocate_and_load(&Solo, BufferOptions::new(0), &files).expect("the files are valid");
    let buffer = tensors.buffer();
    let table = tensors.region().root().table as usize;
    // SAFETY: within the buffer, and no reference to the table exists.
    unsafe { buffer.as_ptr().add(table + 40).write(0xff) };
    assert!(matches!(Tensors::open(buffer), Err(LoadError::Table(_))));
}

#[test]
fn invalid_options_are_errors() {
    for (options, why) in [
        (SMALL.window_bytes(5000), "invalid window of 5000 bytes: expected a power of two"),
        (SMALL.window_bytes(2048), "of at least 4096"),
        (SMALL.piece_bytes(0), "invalid piece of 0 bytes: expected a multiple of 4096"),
        (SMALL.workers(2000), "expected at most 1024"),
    ] {
        let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(4096)).expect("there is memory");
        let error = options.load(&Solo, &buffer, &["/dev/null"]).expect_err("the options are invalid");
        assert!(error.to_string().contains(why), "{error}");
        assert!(options.buffer_bytes(&TensorTable::default()).is_err());
    }
}

#[test]
fn an_empty_file_is_loaded() {
    let folder = TestFolder::new("none");
    let files = [folder.write("empty.bin", b"")];
    let tensors = SMALL.allocate_and_load(&Solo, BufferOptions::new(0), &files).expect("the file is valid");
    assert_eq!((tensors.table().files().len(), tensors.counters().bytes_read), (1, 0));
    assert!(tensors.iter().all(|tensor| tensor.bytes.is_empty()));
}

#[test]
fn a_load_of_no_files_is_an_error() {
    let buffer = HostBuffer::allocate(&Solo, BufferOptions::new(1 << 20)).expect("there is memory");
    let none: [PathBuf; 0] = [];
    for loaded in
        [SMALL.load(&Solo, &buffer, &none), SMALL.allocate_and_load(&Solo, BufferOptions::new(0), &none)]
    {
        let error = loaded.expect_err("no file is named");
        assert_eq!(error.kind(), LoadErrorKind::Argument, "{error}");
    }
}
