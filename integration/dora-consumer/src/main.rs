//! A node of a dora dataflow that reads blocks of a pool: the viewer of `examples/dora_camera`,
//! in Rust. dora passes tokens, as from `hostbuf.dora` in Python.

use std::collections::BTreeSet;
use std::error::Error;

use dora_node_api::{DoraArray, DoraNode, Event, Metadata, Parameter, serde_json::json};
use hostbuf_pool::{AcquireError, Pool, PoolOptions};
use hostbuf_zenoh::join_process;
use nix::time::{ClockId, clock_gettime};

/// The key of the metadata of an output that is a token, and its value.
const MARKER: (&str, &str) = ("hostbuf", "token-1");
/// The distance of the stamps in a frame in bytes.
const STAMP_INTERVAL: usize = 4096;

/// Returns the bytes of a token, or `None` for another input.
fn token<'d>(metadata: &Metadata, data: &'d DoraArray) -> Option<&'d [u8]> {
    match metadata.parameters.get(MARKER.0)? {
        Parameter::String(version) if version == MARKER.1 => data.try_into().ok(),
        _ => None,
    }
}

/// Returns the number of a frame, and whether some stamps differ from it.
fn check(frame: &[u8]) -> (u64, bool) {
    let number = |page: &[u8]| u64::from_le_bytes(page[..8].try_into().expect("8 bytes"));
    let mut numbers = frame.chunks_exact(STAMP_INTERVAL).map(number);
    let first = numbers.next().unwrap_or_default();
    (first, numbers.any(|number| number != first))
}

/// Returns the time since a frame was ready at the camera, in milliseconds.
fn age(metadata: &Metadata) -> Result<f64, nix::Error> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    let now = now.tv_sec() * 1_000_000_000 + now.tv_nsec();
    match metadata.parameters.get("ready_ns") {
        Some(Parameter::Integer(ready)) => Ok((now - ready) as f64 / 1e6),
        _ => Ok(f64::NAN),
    }
}

/// Returns the value below which `percent` of the times lie.
fn percentile(times: &mut [f64], percent: usize) -> Option<f64> {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() * percent / 100).copied()
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let frames: usize = std::env::var("FRAMES").map_or(Ok(300), |text| text.parse())?;
    let pool = Pool::connect(PoolOptions::from_environment("viewer")?)?;
    // Before dora opens its session, which then also reads messages of a `PoolProvider` in place.
    join_process(&pool)?;
    let (_node, mut events) = DoraNode::init_from_env()?;
    let (mut numbers, mut in_hand, mut used) = (BTreeSet::new(), Vec::new(), Vec::new());
    let (mut torn, mut gone) = (0, 0);
    while let Some(event) = events.recv() {
        let Event::Input { metadata, data, .. } = event else { continue };
        let Some(token) = token(&metadata, &data) else { continue };
        let block = match pool.acquire_bytes(token) {
            Ok(block) => block,
            Err(AcquireError::Gone) => {
                gone += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        in_hand.push(age(&metadata)?);
        let (number, is_torn) = check(block.as_slice());
        used.push(age(&metadata)?);
        numbers.insert(number);
        torn += usize::from(is_torn);
    }
    let report = json!({
        "transport": "rust",
        "device": "CPU",
        "frames": numbers.len(),
        "lost": frames.saturating_sub(numbers.len()),
        "gone": gone,
        "torn": torn,
        "in_hand_p50": percentile(&mut in_hand, 50),
        "in_hand_p99": percentile(&mut in_hand, 99),
        "used_p50": percentile(&mut used, 50),
        "used_p99": percentile(&mut used, 99),
    });
    println!("REPORT {report}");
    Ok(())
}
