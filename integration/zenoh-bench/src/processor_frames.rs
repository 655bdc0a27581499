//! Frames from one process to another without a GPU.

use hostbuf_bench_pool::{BenchBroker, FRAME, FigureBar};
use zenoh::Wait;

use crate::bench_options::BenchOptions;
use crate::camera::is_driver_loaded;
use crate::camera_process::CameraProcess;
use crate::frame_carrier::{FrameCarrier, Touched};
use crate::frame_loop::{FrameLoop, IN_FLIGHT, median};
use crate::sessions::{self, KEY};

const CARRIERS: [(FrameCarrier, &str); 4] = [
    (FrameCarrier::SharedMemory, "zenoh-shm, 128 MiB, written in place"),
    (FrameCarrier::Token, "pool, token by zenoh"),
    (FrameCarrier::Provider, "pool, as zenoh's provider"),
    (FrameCarrier::Defaults, "zenoh's defaults, from ordinary memory"),
];

/// Measures frames per second, each way in turn. Returns whether the bars are met.
pub(crate) fn measure(options: &BenchOptions) -> Result<bool, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let broker = BenchBroker::start(Some(&sessions::broker_path(folder.path())))?;
    let pool = broker.connect("bench consumer")?;
    let tuned = sessions::tuned("listen", folder.path(), Some(&pool))?;
    let defaults = sessions::with_defaults("listen", folder.path())?;
    let subscribe =
        |session: &zenoh::Session| session.declare_subscriber(KEY).wait().map_err(|e| e.to_string());
    let (by_tuned, by_defaults) = (subscribe(&tuned)?, subscribe(&defaults)?);
    let mut camera = CameraProcess::start(folder.path(), "defaults")?;
    println!(
        "frames of {FRAME} bytes from one process to another, {IN_FLIGHT} ahead, without a GPU; locked memory: {}",
        sessions::locked_memory()
    );
    let mut all_met = true;
    for (touched, text) in [
        (Touched::Bytes, "the camera writes all bytes in place, the consumer reads all bytes"),
        (Touched::Stamps, "the camera writes a stamp in every 4 KiB, the consumer reads the stamps"),
    ] {
        println!("{text}:");
        let mut rates: [Vec<f64>; CARRIERS.len()] = Default::default();
        let mut shared = [true; CARRIERS.len()];
        // The first turn populates memory, and is not counted.
        for turn in 0..=options.turns() {
            for (at, (carrier, _)) in CARRIERS.iter().enumerate() {
                let subscriber = if *carrier == FrameCarrier::Defaults { &by_defaults } else { &by_tuned };
                let mut frames =
                    FrameLoop { camera: &mut camera, subscriber, pool: &pool, carrier: *carrier, touched };
                let (rate, is_shared) = frames.run(options.turn())?;
                if turn > 0 {
                    shared[at] &= is_shared || *carrier == FrameCarrier::Token;
                    rates[at].push(rate);
                }
            }
        }
        for ((_, text), (rates, is_shared)) in CARRIERS.iter().zip(rates.iter().zip(shared)) {
            let copied = if is_shared { "" } else { "  (not always by shared memory)" };
            println!("  {text:54} {:8.0} frames/s{copied}", median(rates));
        }
        if !shared[0] {
            return Err("zenoh has not passed shared memory".into());
        }
        let ratios: Vec<f64> = rates[1].iter().zip(&rates[0]).map(|(pool, zenoh)| pool / zenoh).collect();
        let (text, ratio) = ("  frames/s, pool : zenoh-shm, median of the turns", median(&ratios));
        if touched == Touched::Bytes {
            all_met &= FigureBar::AtLeast(1.0).print(text, ratio);
        } else {
            println!("{text:56} {ratio:8.2}");
        }
    }
    let is_loaded = camera.end()? | is_driver_loaded();
    let loaded = if is_loaded { 1.0 } else { 0.0 };
    all_met &= FigureBar::AtMost(0.0).print("processes that have loaded libcuda", loaded);
    Ok(all_met)
}
