//! Readers of one pool with different devices, by a fake driver (tests/fixtures/fake_cuda.c). Each
//! reader is this test program in a process of its own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use hostbuf_pool::{
    ArrayLayout, Broker, BrokerOptions, DmaPath, ElementType, Pool, PoolMode, PoolOptions, Producer,
    ProducerOptions, Token,
};
use hostbuf_tests::{Scratch, eventually, fixture};
use nix::sys::eventfd::EventFd;

/// The variable with the operands of a reader: the name of the socket, the token, and the device.
const OPERANDS: &str = "HOSTBUF_TEST_DEVICE_READER";
/// The number of threads of a reader.
const THREADS: usize = 8;
const BLOCKS: u32 = 4;
const BLOCK_BYTES: u64 = 4096;
const LIMIT: Duration = Duration::from_secs(20);

/// A broker in a thread, and a producer.
struct DevicePool {
    name: String,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl DevicePool {
    fn start(test: &str) -> DevicePool {
        let name = format!("hostbuf-pool-{test}-{}", std::process::id());
        let mut broker = Broker::open(&BrokerOptions::new().name(&name)).expect("the name is free");
        let stop = Arc::new(EventFd::new().expect("an event descriptor"));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || broker.serve(stopped.as_fd()).expect("it serves"));
        DevicePool { name, stop, thread: Some(thread) }
    }

    fn connect(&self, client: &str) -> Pool {
        connect(&self.name, client)
    }
}

impl Drop for DevicePool {
    fn drop(&mut self) {
        self.stop.write(1).expect("it is open");
        self.thread.take().expect("it runs").join().expect("it has not panicked");
    }
}

fn connect(socket: &str, client: &str) -> Pool {
    Pool::connect(PoolOptions::new(client).mode(PoolMode::Required).socket(socket)).expect("a broker listens")
}

fn publish(producer: &Producer, stamp: u8) -> Token {
    let mut block = producer.take_timeout(LIMIT).expect("a free block");
    block.as_mut_slice().fill(stamp);
    let layout = ArrayLayout::contiguous(ElementType::UInt8, &[BLOCK_BYTES]).expect("a layout");
    block.publish(layout).expect("it is as long as the block")
}

/// Returns a folder with the fake driver.
fn driver(test: &str) -> Scratch {
    let folder = Scratch::new(test);
    let driver =
        fixture("cc", "fake_cuda.c", &["-shared", "-fPIC"]).expect("a C compiler built this test's crate");
    for library in ["libcuda.so.1", "libcuda.so"] {
        symlink(&driver, folder.path(library)).expect("it is new");
    }
    folder
}

/// Starts the test `name` as a reader, with the libraries in `folder`.
fn start_reader(name: &str, operands: &str, folder: &Scratch, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this"));
    command.args(["--exact", &format!("device_readers::{name}"), "--nocapture", "--test-threads=1"]);
    command.env("LD_LIBRARY_PATH", &folder.0).env(OPERANDS, operands).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts")
}

/// Reads the block in the process of a reader by several threads, and prints how its device does.
/// Returns false in the first process.
fn is_reader() -> bool {
    let Ok(operands) = std::env::var(OPERANDS) else { return false };
    let [socket, token, device] = operands.split(' ').collect::<Vec<_>>()[..] else {
        panic!("operands {operands}");
    };
    let pool = connect(socket, device);
    let block = pool.acquire(&token.parse().expect("a token")).expect("it is published");
    let device = device.parse().expect("a device");
    // They ask at the same time.
    let together = Barrier::new(THREADS);
    let path = |_| {
        together.wait();
        match block.dma(&device) {
            DmaPath::Direct(_) => "direct".to_owned(),
            DmaPath::Copy(why) => format!("copy, since {why}"),
        }
    };
    let paths: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|number| scope.spawn(move || path(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    let path = &paths[0];
    assert!(paths.iter().all(|other| other == path), "{paths:?}");
    // A copy of the content has the right bytes in each case.
    assert!(block.as_slice().iter().all(|byte| *byte == 7), "the content has changed");
    println!("> {path}");
    true
}

/// Waits for the end of a reader, and returns what it has printed.
fn path_of(mut reader: Child) -> String {
    let output = BufReader::new(reader.stdout.take().expect("it is piped"));
    let lines: Vec<String> = output.lines().map(|line| line.expect("text")).collect();
    assert!(reader.wait().expect("it ends").success(), "{lines:?}");
    let answer = lines.iter().find_map(|line| line.split_once("> "));
    answer.unwrap_or_else(|| panic!("no answer in {lines:?}")).1.to_owned()
}

#[test]
fn a_reader_whose_device_fails_copies_while_another_reads_directly() {
    if is_reader() {
        return;
    }
    let test = "a_reader_whose_device_fails_copies_while_another_reads_directly";
    let (folder, without) = (driver("device-readers"), Scratch::new("no-driver"));
    fs::write(without.path("libcuda.so.1"), "no library").expect("the folder is writable");
    fs::write(without.path("libcuda.so"), "no library").expect("the folder is writable");
    let pool = DevicePool::start("devices");
    let producer =
        pool.connect("camera").producer(&ProducerOptions::new(BLOCK_BYTES, BLOCKS)).expect("memory");
    let token = publish(&producer, 7);
    let path = |device: &str, folder: &Scratch, variables: &[(&str, &str)]| {
        let operands = format!("{} {token} {device}", pool.name);
        path_of(start_reader(test, &operands, folder, variables))
    };
    assert_eq!(path("cuda:0", &folder, &[]), "direct");
    let broken = path("cuda:0", &folder, &[("FAKE_CUDA_BROKEN", "1")]);
    assert!(broken.starts_with("copy, since the memory is not registered: "), "{broken}");
    let absent = path("cuda:1", &folder, &[]);
    assert!(absent.starts_with("copy, since the device cannot be used: "), "{absent}");
    let no_driver = path("cuda:0", &without, &[]);
    assert!(no_driver.starts_with("copy, since the device cannot be used: "), "{no_driver}");
    assert_eq!(path("cuda:0", &folder, &[]), "direct");
}

#[test]
fn a_client_loads_no_driver_before_it_asks_for_a_gpu() {
    let test = "a_client_loads_no_driver_before_it_asks_for_a_gpu";
    let Ok(operands) = std::env::var(OPERANDS) else {
        let (folder, pool) = (driver("no-driver-before"), DevicePool::start("no-driver-before"));
        let file = fs::canonicalize(folder.path("libcuda.so.1")).expect("it was made");
        let client = start_reader(test, &format!("{} {}", pool.name, file.display()), &folder, &[]);
        return assert_eq!(path_of(client), "loaded by dma");
    };
    let (socket, file) = operands.split_once(' ').expect("the socket and the driver");
    let maps = || fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let has_driver = || [file, "libcuda"].iter().any(|name| maps().contains(name));
    let pool = connect(socket, "client");
    let producer = pool.producer(&ProducerOptions::new(BLOCK_BYTES, BLOCKS)).expect("memory");
    let block = pool.acquire(&publish(&producer, 7)).expect("it is published");
    let direct = |device: &str| block.dma(&device.parse().expect("a device")).direct().is_some();
    assert!(direct("mlock") && !has_driver(), "no GPU was asked for");
    assert!(direct("cuda:0") && has_driver(), "the address is that of a GPU");
    println!("> loaded by dma");
}

#[test]
fn the_threads_of_a_reader_register_a_segment_once_and_again_after_a_refusal() {
    if is_reader() {
        return;
    }
    let test = "the_threads_of_a_reader_register_a_segment_once_and_again_after_a_refusal";
    let folder = driver("registered-once");
    let pool = DevicePool::start("once");
    let producer =
        pool.connect("camera").producer(&ProducerOptions::new(BLOCK_BYTES, BLOCKS)).expect("memory");
    let token = publish(&producer, 7);
    for refusals in ["0", "2"] {
        let (busy, log) = (folder.path("busy"), folder.path(&format!("log-{refusals}")));
        let operands = format!("{} {token} cuda:0", pool.name);
        // Each registration takes a while, and another one meanwhile is refused.
        let variables =
            [("FAKE_CUDA_BUSY", &busy[..]), ("FAKE_CUDA_LOG", &log), ("FAKE_CUDA_REFUSALS", refusals)];
        assert_eq!(path_of(start_reader(test, &operands, &folder, &variables)), "direct");
        let log = fs::read_to_string(&log).expect("there was a registration");
        // The first call is without the flag for read-only memory.
        let expected = ["refused\nregistered\n", "refused\nrefused\nregistered\n"];
        assert_eq!(log, expected[usize::from(refusals == "2")]);
    }
}

#[test]
fn a_reader_that_is_killed_in_a_registration_keeps_no_block() {
    if is_reader() {
        return;
    }
    let test = "a_reader_that_is_killed_in_a_registration_keeps_no_block";
    let folder = driver("killed-in-registration");
    let pool = DevicePool::start("registration");
    let producer = pool.connect("camera");
    let producer = producer
        .producer(&ProducerOptions::new(BLOCK_BYTES, BLOCKS).retain(1).quota(BLOCKS))
        .expect("memory");
    for round in 0..20 {
        let token = publish(&producer, 7);
        let busy = folder.path(&format!("busy-{round}"));
        let operands = format!("{} {token} cuda:0", pool.name);
        let mut reader = start_reader(test, &operands, &folder, &[("FAKE_CUDA_BUSY", &busy)]);
        eventually("it registers", LIMIT, || {
            let ended = reader.try_wait().expect("a child").is_some();
            ended || fs::exists(&busy).expect("the folder is readable")
        });
        reader.kill().expect("it is a child");
        reader.wait().expect("it ends");
        // One block is retained, and all others are free again.
        let take = |_| producer.take_timeout(LIMIT).expect("a killed reader holds nothing");
        drop((1..BLOCKS).map(take).collect::<Vec<_>>());
    }
}
