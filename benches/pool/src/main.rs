//! The benchmarks of pools: see README.md.

mod bench_process;
mod blocks;
mod cameras;
mod copy_window;
mod frame_message;
mod frame_producer;
mod frames;
mod mirror_frames;
#[cfg(feature = "rdma")]
mod mirror_reads;
mod rate;
mod shared_ring;
mod start;
mod system_calls;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["frames"] => frames::measure(1800),
        ["frames", count] => match count.parse() {
            Ok(count) => frames::measure(count),
            Err(_) => return usage(),
        },
        ["blocks"] => blocks::measure(),
        ["cameras"] => cameras::measure(60, false),
        ["cameras", "--full"] => cameras::measure(60, true),
        ["cameras", "--quick"] => cameras::measure(5, false),
        ["rate"] => rate::measure(),
        ["start"] => start::measure(),
        ["role", "blocks", ref role @ ..] => blocks::play(role),
        ["role", "cameras", ref role @ ..] => cameras::play(role),
        ["role", "rate", ref role @ ..] => rate::play(role),
        ["role", "start", ref role @ ..] => start::play(role),
        ["mirror", "serve", address] => mirror_frames::serve(address).map_err(|error| error.to_string()),
        ["mirror", "send", address] => mirror_frames::send(address).map_err(|error| error.to_string()),
        ["producer", socket, ring] => frame_producer::run(socket, ring),
        _ => return usage(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("hostbuf-bench-pool: {why}");
            ExitCode::from(2)
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: hostbuf-bench-pool frames [FRAMES] | rate | start | blocks | cameras [--full|--quick] | mirror serve|send ADDRESS"
    );
    ExitCode::from(2)
}
