//! Histograms of latencies in memory that processes share.

mod buckets;
mod latency_histogram;
mod latency_snapshot;

pub use latency_histogram::LatencyHistogram;
pub use latency_snapshot::LatencySnapshot;
