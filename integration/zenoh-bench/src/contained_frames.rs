//! Frames from a camera in a container with little memory that it may lock.

use hostbuf_bench_pool::{BenchBroker, FigureBar};
use zenoh::Wait;

use crate::bench_options::BenchOptions;
use crate::camera_process::CameraProcess;
use crate::frame_carrier::{FrameCarrier, Touched};
use crate::frame_loop::{FrameLoop, median};
use crate::sessions::{self, KEY};

const ROWS: [(&str, FrameCarrier, &str); 3] = [
    ("tuned", FrameCarrier::Token, "pool, the camera not in a container"),
    ("contained", FrameCarrier::Token, "pool, the camera in a container"),
    ("contained", FrameCarrier::Socket, "zenoh by its socket, the camera in a container"),
];

/// Measures frames per second, each way in turn. Returns whether the bars are met.
pub(crate) fn measure(options: &BenchOptions) -> Result<bool, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let broker = BenchBroker::start(Some(&sessions::broker_path(folder.path())))?;
    let pool = broker.connect("bench consumer")?;
    let session = sessions::tuned("listen", folder.path(), Some(&pool))?;
    let subscriber = session.declare_subscriber(KEY).wait().map_err(|error| error.to_string())?;
    let start = |kind| CameraProcess::start(folder.path(), kind);
    let mut cameras = [start("tuned")?, start("contained")?];
    println!(
        "the same with a camera in a container: user, process, network, IPC and mount namespaces, 64 KiB of locked \
         memory, 64 MiB in /dev/shm; all bytes are written and read:"
    );
    let mut rates: [Vec<f64>; ROWS.len()] = Default::default();
    for turn in 0..=options.turns() {
        for (at, (kind, carrier, _)) in ROWS.iter().enumerate() {
            let camera = &mut cameras[usize::from(*kind == "contained")];
            let (subscriber, touched) = (&subscriber, Touched::Bytes);
            let mut frames = FrameLoop { camera, subscriber, pool: &pool, carrier: *carrier, touched };
            let (rate, _) = frames.run(options.turn())?;
            if turn > 0 {
                rates[at].push(rate);
            }
        }
    }
    for ((.., text), rates) in ROWS.iter().zip(&rates) {
        println!("  {text:54} {:8.0} frames/s", median(rates));
    }
    let ratio = |of: usize| {
        median(&rates[1].iter().zip(&rates[of]).map(|(pool, other)| pool / other).collect::<Vec<_>>())
    };
    let same = FigureBar::AtLeast(0.9).print("  frames/s, pool in a container : not in one", ratio(0));
    Ok(FigureBar::AtLeast(1.0).print("  frames/s, pool : zenoh in a container", ratio(2)) & same)
}
