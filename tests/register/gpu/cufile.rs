//! Files that cuFile moves to a GPU and back, by the fake library and by NVIDIA's.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostbuf_cuda::{CudaContext, CudaStream, DeviceMemory, DeviceSpan};
use hostbuf_staging::{CuFile, CuFileBuffer, CuFileDriver, CuFileError, DeviceTarget};
use hostbuf_tests::fake_cuda::{CUFILE_FAILS, CUFILE_LOG, with_fake_cuda};
use hostbuf_tests::{Scratch, skip};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{major, minor};
use nix::unistd::geteuid;

use super::MIB;
use super::streams::first_gpu;

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes.div_ceil(8) as u64)
        .flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .take(bytes)
        .collect()
}

fn target(context: &CudaContext, bytes: usize) -> DeviceTarget {
    DeviceTarget::new(Arc::new(DeviceMemory::new(context, bytes).expect("memory of the GPU")))
}

/// Copies memory of the GPU to the host.
fn bytes_of(context: &CudaContext, target: &DeviceTarget) -> Vec<u8> {
    let mut bytes = vec![0; target.bytes() as usize];
    let stream = CudaStream::new(context).expect("a stream");
    // SAFETY: the stream has ended before `bytes` is used.
    unsafe { stream.copy_to_host(DeviceSpan::new(target.address(), bytes.len()), &raw mut bytes[..]) }
        .expect("a copy starts");
    stream.synchronize().expect("a copy ends");
    bytes
}

/// Moves files to the memory of a GPU and back.
fn move_files(folder: &str) {
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new(folder);
    let expected = content(5 * MIB + 4321);
    let (from, to) = (folder.path("from"), folder.path("to"));
    fs::write(&from, &expected).expect("the folder is writable");
    let driver = CuFileDriver::open(&context).unwrap_or_else(|error| panic!("{error}"));
    let same = CuFileDriver::open(&context).expect("it is open");
    let source = CuFile::open(&driver, &from).expect("it is there");
    let sink = CuFile::open_for_writing(&same, &to).expect("it is made");
    let memory = target(&context, expected.len() + 100);
    // Memory that is not registered, up to the end of the file.
    assert_eq!(source.read(&memory, 0).expect("it is read"), expected.len() as u64);
    let part = memory.part(0..expected.len() as u64).expect("it is within");
    assert!(bytes_of(&context, &part) == expected);
    assert_eq!(sink.write(&part, 0).expect("it is written"), expected.len() as u64);
    assert!(fs::read(&to).expect("it is there") == expected);
    // Registered memory, in parts.
    let other = target(&context, 2 * MIB);
    let buffer = CuFileBuffer::new(&driver, other.clone()).expect("it is registered");
    for (part, offset) in [(0..MIB as u64, 4096), (MIB as u64..MIB as u64 + 8192, MIB as u64)] {
        let bytes = part.end - part.start;
        assert_eq!(source.read_registered(&buffer, part.clone(), offset).expect("it is read"), bytes);
        let read = bytes_of(&context, &other.part(part.clone()).expect("it is within"));
        assert!(read == expected[offset as usize..][..bytes as usize]);
        assert_eq!(sink.write_registered(&buffer, part, offset + 4096).expect("it is written"), bytes);
        let written = fs::read(&to).expect("it is there");
        assert!(written[offset as usize + 4096..][..bytes as usize] == read);
    }
    let outside = source.read_registered(&buffer, 0..2 * MIB as u64 + 1, 0).unwrap_err();
    assert!(outside.to_string().contains("it has 2097152 bytes"), "{outside}");
    assert_eq!(source.read(&memory, 1 << 40).expect("nothing is there"), 0);
}

/// Returns the value of a variable of the fake library: a path.
fn path_in(variable: &str) -> PathBuf {
    std::env::var_os(variable).expect("the process has the fake library").into()
}

fn calls() -> Vec<String> {
    let log = fs::read_to_string(path_in(CUFILE_LOG)).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// Opens cuFile, and reads and writes with registered memory.
fn use_all(context: &CudaContext, path: &str) -> Result<(), CuFileError> {
    let driver = CuFileDriver::open(context)?;
    let file = CuFile::open_for_writing(&driver, path)?;
    let buffer = CuFileBuffer::new(&driver, target(context, 4096))?;
    file.write_registered(&buffer, 0..4096, 0)?;
    file.read_registered(&buffer, 0..4096, 0)?;
    Ok(())
}

#[test]
fn files_move_by_the_fake_cufile() {
    if with_fake_cuda("gpu::cufile::files_move_by_the_fake_cufile") {
        move_files("cufile-fake");
        let calls = calls();
        let count = |name: &str| calls.iter().filter(|call| *call == name).count();
        assert_eq!((count("cuFileDriverOpen"), count("cuFileDriverClose")), (1, 1));
        assert_eq!((count("cuFileHandleRegister"), count("cuFileHandleDeregister")), (2, 2));
        assert_eq!((count("cuFileBufRegister"), count("cuFileBufDeregister")), (1, 1));
        assert_eq!(calls.last().map(String::as_str), Some("cuFileDriverClose"));
    }
}

#[test]
fn each_failing_call_of_cufile_is_one_error() {
    if !with_fake_cuda("gpu::cufile::each_failing_call_of_cufile_is_one_error") {
        return;
    }
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("cufile-fails");
    let path = folder.path("file");
    let fails = path_in(CUFILE_FAILS);
    use_all(&context, &path).expect("nothing fails yet");
    // Each pair of functions begins and ends an object.
    let pairs = [
        ("cuFileDriverOpen", "cuFileDriverClose"),
        ("cuFileHandleRegister", "cuFileHandleDeregister"),
        ("cuFileBufRegister", "cuFileBufDeregister"),
    ];
    for function in
        ["cuFileDriverOpen", "cuFileHandleRegister", "cuFileBufRegister", "cuFileWrite", "cuFileRead"]
    {
        let before = calls().len();
        fs::write(&fails, function).expect("the folder is writable");
        let error = use_all(&context, &path).unwrap_err();
        fs::remove_file(&fails).expect("it is there");
        assert_eq!(
            error.code().map(|code| (code.number(), code.name())),
            Some((5030, "CU_FILE_INTERNAL_ERROR"))
        );
        let text = error.to_string();
        assert!(
            text.starts_with(function) && text.contains("returned CU_FILE_INTERNAL_ERROR (5030)"),
            "{text}"
        );
        // A read returns no code of the driver.
        let cuda = if ["cuFileWrite", "cuFileRead"].contains(&function) { 0 } else { 201 };
        assert!(text.contains(&format!("CUDA error {cuda}, on ")) && !text.contains('\n'), "{text}");
        let calls = calls().split_off(before);
        for (begins, ends) in pairs {
            let begun = calls.iter().filter(|call| *call == begins && begins != function).count();
            assert_eq!(calls.iter().filter(|call| *call == ends).count(), begun, "{function}: {calls:?}");
        }
        use_all(&context, &path).expect("it works again");
    }
    // Destructors log the error, and nothing else happens.
    let fail_in_destructor = |function: &str| {
        fs::write(&fails, function).expect("the folder is writable");
        use_all(&context, &path).expect("only a destructor fails");
        fs::remove_file(&fails).expect("it is there");
    };
    fail_in_destructor("cuFileDriverClose");
    // The driver was left open, as by another part of the process, which also closes it.
    let before = calls().len();
    use_all(&context, &path).expect("the driver is open");
    assert!(!calls().split_off(before).contains(&"cuFileDriverClose".to_owned()));
    fail_in_destructor("cuFileBufDeregister");
}

#[test]
fn errors_of_files_are_those_of_the_system() {
    if !with_fake_cuda("gpu::cufile::errors_of_files_are_those_of_the_system") {
        return;
    }
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    let folder = Scratch::new("cufile-errors");
    let path = folder.path("file");
    let driver = CuFileDriver::open(&context).expect("it opens");
    let missing = CuFile::open(&driver, &path).unwrap_err();
    assert_eq!(missing.to_string(), format!("opening {path}: No such file or directory (os error 2)"));
    assert_eq!(io::Error::from(missing).kind(), io::ErrorKind::NotFound);
    fs::write(&path, content(4096)).expect("the folder is writable");
    fs::write(path_in(CUFILE_FAILS), "cuFileRead errno").expect("the folder is writable");
    let memory = target(&context, 4096);
    let error = CuFile::open(&driver, &path).expect("it is there").read(&memory, 8).unwrap_err();
    let text = format!("cuFileRead of 4 KiB at offset 8 of {path}: Input/output error (os error 5)");
    assert_eq!(error.to_string(), text);
}

/// Gives a container without udev an entry for the block device of the working folder: cuFile asks
/// udev's database for the file system of each file. The folder /run of the calling thread, and of
/// the threads that it starts, is an empty one then, and ends with them.
fn describe_device_to_cufile() {
    if Path::new("/run/udev/data").exists() || !geteuid().is_root() {
        return;
    }
    unshare(CloneFlags::CLONE_NEWNS).expect("root may make a mount namespace");
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).expect("a private tree");
    mount(Some("tmpfs"), "/run", Some("tmpfs"), MsFlags::empty(), nothing).expect("an empty folder");
    fs::create_dir_all("/run/udev/data").expect("the folder is writable");
    fs::write("/run/udev/control", "").expect("the folder is writable");
    let device = fs::metadata(".").expect("the working folder is there").dev();
    let entry = format!("/run/udev/data/b{}:{}", major(device), minor(device));
    fs::write(entry, "E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n").expect("the folder is writable");
}

#[test]
#[ignore = "needs a GPU"]
fn files_move_by_cufile_to_a_gpu() {
    describe_device_to_cufile();
    let context = CudaContext::retain(&first_gpu()).expect("a context");
    match CuFileDriver::open(&context) {
        Err(error @ CuFileError::NoLibrary { .. }) => skip(&error.to_string()),
        Err(error) => panic!("{error}"),
        Ok(_driver) => move_files("cufile"),
    }
}
