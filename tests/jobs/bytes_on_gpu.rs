//! The bytes that loads put on a GPU, with a fake driver whose GPU has memory of the host.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hostbuf::HostBuffer;
use hostbuf::job::{Collective, Local};
use hostbuf::register::{Access, CudaHost};
use hostbuf_cuda::{CudaContext, DeviceMemory, Driver};
use hostbuf_load::{LoadOptions, SliceTarget, TensorTable};
use hostbuf_staging::{CudaDevice, DeviceTarget};
use hostbuf_tests::fake_cuda::{COPY_MS, FREED, LOG, install_fake_cuda};
use hostbuf_tests::{CommandOutput, Scratch, hostbuf, program};

use crate::loaded_tensors::{TensorFiles, npy, safetensors, word};
use crate::registered::can_register;

/// The alignment of files in the memory, and that of the data of a shifted file.
const ALIGNMENTS: [usize; 2] = [4096, 64];

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|at| ((at * 31 + at / 4096 + seed) % 251) as u8).collect()
}

/// Returns files one behind the other as a buffer has them. `data` is the number of bytes of data
/// at the end of each.
fn region(files: &[(Vec<u8>, usize)]) -> Vec<u8> {
    let mut region = Vec::new();
    for (file, data) in files {
        let header = file.len() - data;
        let shift =
            if header.is_multiple_of(8) { 0 } else { header.next_multiple_of(ALIGNMENTS[1]) - header };
        region.resize(region.len().next_multiple_of(ALIGNMENTS[0]) + shift, 0);
        region.extend_from_slice(file);
    }
    region
}

#[test]
fn the_command_copies_each_byte_to_its_place() {
    let folder = Scratch::new("bytes-on-gpu");
    install_fake_cuda(&folder);
    // Three windows of 16 MiB. The header of the second file has an odd length.
    let lengths = [35 << 20, 300_003, 4097];
    let data: Vec<Vec<u8>> =
        lengths.into_iter().enumerate().map(|(seed, bytes)| pattern(bytes, seed)).collect();
    let contents = [safetensors("a", &data[0], 0), safetensors("b", &data[1], 3), npy(&data[2])];
    let files: Vec<(Vec<u8>, usize)> = contents.into_iter().zip(lengths).collect();
    let paths = ["a.safetensors", "b.safetensors", "c.npy"].map(|name| folder.path(name));
    for (path, (file, _)) in paths.iter().zip(&files) {
        fs::write(path, file).expect("the folder is writable");
    }
    let expected = region(&files);
    // Copies that take place in the call, and copies that take place while the command goes on.
    for delay in ["0", "30"] {
        let freed = folder.path(&format!("freed-{delay}"));
        let mut command = Command::new(hostbuf());
        command.args(["load", "--gpu", "0"]).args(&paths).env("LD_LIBRARY_PATH", &folder.0);
        let outcome = CommandOutput::of(command.env(FREED, &freed).env(COPY_MS, delay)).ok();
        assert!(outcome.stdout.contains("; on GPU 0 after "), "{outcome:?}");
        let found = fs::read(&freed).expect("the memory of the GPU was freed");
        assert_eq!(found.len(), expected.len(), "{outcome:?}");
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "{outcome:?}");
    }
}

/// The matrix of the job: bytes in rows and columns that no number of ranks divides.
const SHAPE: [usize; 2] = [1000, 3001];
const RANKS: usize = 3;
/// The variable that names the file in the ranks.
const FILE: &str = "HOSTBUF_TEST_FILE";

/// Returns the part of a rank of `size` indices, as `torch.chunk` divides them.
fn chunk(size: usize, rank: usize) -> Range<usize> {
    let length = size.div_ceil(RANKS);
    size.min(rank * length)..size.min((rank + 1) * length)
}

#[test]
fn each_rank_of_a_job_has_its_slices() {
    if let Some(path) = std::env::var_os(FILE) {
        return load_slices(Path::new(&path));
    }
    let folder = Scratch::new("slices-on-gpu");
    install_fake_cuda(&folder);
    let [rows, columns] = SHAPE;
    let (matrix, vector) = (pattern(rows * columns, 1), pattern(70_001, 2));
    let (middle, end) = (matrix.len(), matrix.len() + vector.len());
    let header = format!(
        r#"{{"matrix":{{"dtype":"U8","shape":[{rows},{columns}],"data_offsets":[0,{middle}]}},"vector":{{"dtype":"U8","shape":[{}],"data_offsets":[{middle},{end}]}}}}"#,
        vector.len()
    );
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), &matrix, &vector].concat();
    let path = folder.path("model.safetensors");
    fs::write(&path, file).expect("the folder is writable");
    let freed = folder.path("freed");
    let this = std::env::current_exe().expect("a test knows its path");
    for delay in ["0", "5"] {
        let mut command = Command::new(hostbuf());
        command.args([
            "run",
            "--quiet",
            "--launcher",
            "local",
            "-n",
            &RANKS.to_string(),
            "--size",
            "8M",
            "--",
        ]);
        command.args(["sh", "-c", &format!("{FREED}={freed}-{delay}.$HOSTBUF_RANK exec \"$0\" \"$@\"")]);
        command.arg(&this).args([
            "--exact",
            "bytes_on_gpu::each_rank_of_a_job_has_its_slices",
            "--nocapture",
        ]);
        command.env("LD_LIBRARY_PATH", &folder.0).env(FILE, &path).env(COPY_MS, delay);
        let outcome = CommandOutput::of(&mut command).ok();
        assert_eq!(outcome.stdout.matches("1 passed").count(), RANKS, "{outcome:?}");
        for rank in 0..RANKS {
            let found = fs::read(format!("{freed}-{delay}.{rank}")).expect("the rank has freed its memory");
            // The memory of the slices, in the order in which the rank has allocated it.
            let mut expected =
                matrix[chunk(rows, rank).start * columns..chunk(rows, rank).end * columns].to_vec();
            expected.extend(matrix.chunks(columns).flat_map(|row| &row[chunk(columns, rank)]));
            expected.extend(&vector);
            assert!(found == expected, "the slices of rank {rank} with copies of {delay} ms are wrong");
        }
    }
}

/// Loads the file as one rank of the job, with slices of its own on the GPU.
fn load_slices(path: &Path) {
    let (group, buffer) = (Local::from_env().expect("a rank"), HostBuffer::attach().expect("a buffer"));
    let registrar = Arc::new(CudaHost::new(0).expect("a driver"));
    let _registration = buffer.register(&registrar, .., Access::READ).expect("the driver registers it");
    let gpu = Driver::find().and_then(|driver| driver.gpu(0)).expect("a GPU");
    let context = CudaContext::retain(&gpu).expect("a context");
    let device = CudaDevice::new(&context).expect("a stream");
    let table = TensorTable::read(&[path]).expect("a file of safetensors");
    let (rank, ranks) = (group.rank(), group.size());
    let matrix = table.get("matrix").expect("the file has it");
    let slice = |dim| matrix.slice(dim, rank, ranks).expect("the matrix has two dimensions");
    let vector = table.get("vector").expect("the file has it").whole();
    let slices = [("matrix", slice(0)), ("matrix", slice(1)), ("vector", vector)].map(|(name, slice)| {
        let memory = DeviceMemory::new(&context, slice.bytes as usize).expect("memory");
        SliceTarget::new(name, DeviceTarget::new(Arc::new(memory))).slice(slice)
    });
    // Many windows, which the ranks read in turn.
    let options = LoadOptions::new().window_bytes(64 << 10).piece_bytes(16 << 10).workers(1);
    let targets = |_: &TensorTable| Ok(slices.to_vec());
    let tensors = options.load_to_device(&group, &buffer, &[path], &device, &targets).expect("it is loaded");
    let counters = tensors.counters();
    assert_eq!(counters.job_bytes_read, counters.file_bytes, "each byte is read once");
}

#[test]
fn tensors_before_main_are_registered_with_the_gpu() {
    if !can_register() {
        return;
    }
    let files = TensorFiles::new("tensors-registered", 1 << 20);
    install_fake_cuda(&files.scratch);
    for (who, registrations) in [("leader", 1), ("all", 2)] {
        let log = files.scratch.path(&format!("log-{who}"));
        let mut command = Command::new(hostbuf());
        command.args([
            "run",
            "--launcher",
            "local",
            "-n",
            "2",
            "--register",
            "cuda",
            "--register-ranks",
            who,
        ]);
        command.args(files.options()).arg("--").arg(program("loaded_tensors")).arg("once");
        command.env("LD_LIBRARY_PATH", &files.scratch.0).env(LOG, &log);
        let outcome = CommandOutput::of(&mut command).ok();
        let lines: Vec<String> = outcome.stdout.lines().map(str::to_owned).collect();
        files.assert_complete(&lines, 2);
        let has_whole_buffer = |line: &&String| {
            let (at, length) = (word(line, "at"), word(line, "length"));
            word(line, "registered") == format!("cuda0@{at}+{length}")
        };
        assert_eq!(lines.iter().filter(has_whole_buffer).count(), registrations, "{lines:#?}");
        let log = fs::read_to_string(&log).expect("the driver was asked");
        assert_eq!(log, "registered\n".repeat(registrations), "{outcome:?}");
    }
}
