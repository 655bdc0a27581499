//! The process that holds frames until it is killed.

use std::io::Write;
use std::path::Path;

use zenoh::Wait;

use crate::sessions::{self, KEY};

/// Holds every frame, and writes a byte for each. `carrier` is `pool` or `zenoh`.
pub(crate) fn run(folder: &Path, carrier: &str) -> Result<bool, String> {
    let pool = sessions::connect(folder, "bench holder")?;
    let session = sessions::tuned("connect", folder, None)?;
    let subscriber = session.declare_subscriber(KEY).wait().map_err(|error| error.to_string())?;
    let (mut samples, mut blocks) = (Vec::new(), Vec::new());
    while let Ok(sample) = subscriber.recv() {
        if carrier == "pool" {
            let block = pool.acquire_bytes(&sample.payload().to_bytes());
            blocks.push(block.map_err(|error| error.to_string())?);
        } else if sample.payload().as_shm().is_none() {
            return Err("zenoh has not passed shared memory".into());
        } else {
            samples.push(sample);
        }
        let mut output = std::io::stdout();
        output.write_all(b"h").and_then(|()| output.flush()).map_err(|error| error.to_string())?;
    }
    Ok(true)
}
