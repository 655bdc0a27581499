//! The benchmarks of pools beside zenoh's shared memory: see README.md.

mod bench_options;
mod camera;
mod camera_process;
mod contained_command;
mod contained_frames;
mod deaths;
mod frame_carrier;
mod frame_loop;
mod gpu_frames;
mod holder;
mod processor_frames;
mod received_frame;
mod sessions;

use std::process::ExitCode;

use bench_options::BenchOptions;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["camera", folder, kind] => camera::run(folder.as_ref(), kind),
        ["holder", folder, carrier] => holder::run(folder.as_ref(), carrier),
        ["--help"] => {
            print!("{}", include_str!("../README.md"));
            return ExitCode::SUCCESS;
        }
        _ => match BenchOptions::parse(&words) {
            Ok(options) => measure(&options),
            Err(why) => Err(why),
        },
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("hostbuf-bench-zenoh: {why}");
            ExitCode::from(2)
        }
    }
}

/// Measures the named parts, first those without a GPU: they check that the driver is not loaded.
fn measure(options: &BenchOptions) -> Result<bool, String> {
    sessions::raise_locked_memory();
    let mut all_met = true;
    if options.processor {
        all_met &= processor_frames::measure(options)?;
    }
    if options.contained {
        all_met &= contained_frames::measure(options)?;
    }
    if options.deaths {
        all_met &= deaths::measure(options)?;
    }
    if options.gpu {
        all_met &= gpu_frames::measure(options)?;
    }
    Ok(all_met)
}
