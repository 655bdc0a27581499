//! A producer or a reader of stamped frames, for tests with containers.
//!
//! `pool_frames write PATH FRAMES [ROWS]` connects to the broker's socket at PATH and publishes
//! frames of 1080 rows, or of that many; it writes their tokens as lines of hexadecimal digits, and
//! takes the next block when it reads a line. `pool_frames read PATH HELD` reads tokens as lines,
//! checks the stamps of their frames, holds the last HELD ones, and writes a line `NUMBER TORN` for
//! each.
//!
//! Both write a first line `LOCKED SHM NAMESPACES`: the limit of locked memory and the size of
//! `/dev/shm` in KiB, and the identities of the user, PID, network, IPC and mount namespaces.

use std::collections::VecDeque;
use std::io::BufRead;

use hostbuf_pool::{ArrayLayout, ElementType, Pool, PoolMode, PoolOptions, ProducerOptions, Token};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;

/// The dimensions of a frame.
const ROWS: usize = 1080;
const ROW: [u64; 2] = [1920, 4];
const PAGE: usize = 4096;
const BLOCKS: u32 = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, path, counts @ ..] = &arguments[..] else {
        panic!("usage: pool_frames write|read PATH COUNT [ROWS]")
    };
    let counts: Vec<usize> = counts.iter().map(|count| count.parse().expect("a number")).collect();
    let options = PoolOptions::new(role.as_str()).mode(PoolMode::Required).path(path);
    let pool = Pool::connect(options).expect("the broker listens");
    println!("{}", limits());
    if role == "write" {
        write(&pool, counts[0], counts.get(1).copied().unwrap_or(ROWS));
    } else {
        read(&pool, counts[0]);
    }
}

fn limits() -> String {
    let (locked, _) = getrlimit(Resource::RLIMIT_MEMLOCK).expect("it has a limit");
    let shm = statvfs("/dev/shm").expect("it is mounted");
    let namespaces = ["user", "pid", "net", "ipc", "mnt"].map(|kind| {
        let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).expect("/proc is mounted");
        link.to_string_lossy().into_owned()
    });
    format!("{} {} {}", locked >> 10, (shm.blocks() * shm.fragment_size()) >> 10, namespaces.join(","))
}

fn write(pool: &Pool, frames: usize, rows: usize) {
    let frame = rows * (ROW[0] * ROW[1]) as usize;
    let options = ProducerOptions::new(frame as u64, BLOCKS).retain(1).quota(BLOCKS).stream("camera");
    let producer = pool.producer(&options).expect("there is memory");
    let layout =
        ArrayLayout::contiguous(ElementType::UInt8, &[rows as u64, ROW[0], ROW[1]]).expect("a layout");
    let mut lines = std::io::stdin().lock().lines();
    for number in 0..frames as u64 {
        let mut block = producer.take().expect("a block");
        for page in block.as_mut_slice()[..frame].chunks_exact_mut(PAGE) {
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        let token = block.publish(layout).expect("the array is as long as the block");
        println!("{}", token.to_bytes().map(|byte| format!("{byte:02x}")).concat());
        if lines.next().is_none() {
            return;
        }
    }
}

fn read(pool: &Pool, held: usize) {
    let mut blocks = VecDeque::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a text");
        let mut token = [0; Token::SIZE];
        for (byte, digits) in token.iter_mut().zip(line.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).expect("digits");
            *byte = u8::from_str_radix(digits, 16).expect("hexadecimal digits");
        }
        let block = pool.acquire_bytes(&token).expect("the block is still there");
        let stamps = block.as_slice().chunks_exact(PAGE);
        let mut stamps = stamps.map(|page| u64::from_le_bytes(page[..8].try_into().expect("8 bytes")));
        let number = stamps.next().expect("a page");
        println!("{number} {}", stamps.filter(|stamp| *stamp != number).count());
        blocks.push_back(block);
        while blocks.len() > held {
            blocks.pop_front();
        }
    }
}
