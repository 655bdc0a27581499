//! The description of a broker's state for `hostbuf stat`, as JSON.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hostbuf_os::process;
use serde_json::{Value, json};

use super::segment_record::{SegmentRecord, SegmentStage};
use super::state::BrokerState;
use crate::hold::BlockState;
use crate::latency::LatencySnapshot;
use crate::wire::{PoolMessage, SegmentKey};

/// The largest number of held blocks of a reader that are listed.
const LISTED_BLOCKS: usize = 256;

impl BrokerState {
    /// Sends the description in parts.
    pub(super) fn send_status(&mut self, client: u64, request: u64) {
        let text = self.status().to_string();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let part = hostbuf_protocol::failure::cut(rest, PoolMessage::TEXT_MAX);
            rest = &rest[part.len()..];
            self.send(client, &PoolMessage::StatusPart { request, text: part }, Vec::new());
        }
        self.send(client, &PoolMessage::StatusPart { request, text: "" }, Vec::new());
    }

    fn status(&self) -> Value {
        let clients = self.clients.iter().map(|(&id, client)| {
            json!({
                "client": id,
                "name": client.name,
                "pid": client.pid,
                "bytes": self.accounts.of_client(id),
                "gpu_bytes": self.gpu_accounts.of_client(id),
                "connected": client.connection.is_some(),
            })
        });
        let segments = self.segments.iter().map(|(key, segment)| self.segment_status(key, segment));
        let unaccounted = self.recovery.iter().flat_map(super::recovery::Recovery::waits_for);
        let unaccounted = unaccounted.map(
            |known| json!({ "pid": known.pid, "name": process::name(known.pid), "bytes": known.bytes() }),
        );
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pool": self.pool.to_string(),
            "host": process::host_name(),
            "pid": std::process::id(),
            "limit": self.accounts.limit(),
            "per_client": self.accounts.per_client(),
            "bytes": self.accounts.total(),
            "gpu_limit": self.gpu_accounts.limit(),
            "gpu_per_client": self.gpu_accounts.per_client(),
            "gpu_bytes": self.gpu_accounts.total(),
            "clients": clients.collect::<Vec<_>>(),
            "segments": segments.collect::<Vec<_>>(),
            "unaccounted": unaccounted.collect::<Vec<_>>(),
            "unclaimed_bytes": self.unclaimed.values().map(|segment| segment.bytes).sum::<u64>(),
        })
    }

    fn segment_status(&self, key: &SegmentKey, segment: &SegmentRecord) -> Value {
        let mut states = [0u64; 4];
        for block in segment.blocks() {
            let (state, _) = segment.table.word(block).load();
            let index = [BlockState::Free, BlockState::Writing, BlockState::Published, BlockState::Retired]
                .iter()
                .position(|known| *known == state);
            states[index.unwrap_or(0)] += 1;
        }
        let readers = segment.rows.iter().flatten().filter_map(|row| {
            let reader = row.reader?;
            let counters = row.view.counters();
            let held = segment.blocks().filter(|&block| row.view.cell(block).count() > 0);
            let (holds, held) = (held.clone().count(), held.take(LISTED_BLOCKS).collect::<Vec<u32>>());
            Some(json!({
                "client": reader,
                "name": self.clients.get(&reader).map(|client| client.name.as_str()),
                "pid": self.clients.get(&reader).map(|client| client.pid),
                "holds": holds,
                "held_blocks": held,
                "acquired": counters.acquired.load(Ordering::Relaxed),
                "gone": counters.gone.load(Ordering::Relaxed),
                "latency": latency_status(&row.view.latencies().snapshot()),
            }))
        });
        let stage = match segment.stage {
            SegmentStage::Granted => "granted",
            SegmentStage::Live => "live",
            SegmentStage::Adopted => "adopted",
            SegmentStage::Orphaned(_) => "orphaned",
            SegmentStage::Retired => "retired",
            SegmentStage::Ending => "ending",
        };
        let counters = segment.table.counters();
        json!({
            "pool": key.pool.to_string(),
            "segment": key.number,
            "stream": segment.stream,
            "stage": stage,
            "producer": segment.producer,
            "producer_name": segment.producer_name,
            "bytes": segment.bytes.host,
            "gpu": segment.terms.gpu.map(|gpu| gpu.to_string()),
            "gpu_bytes": segment.bytes.gpu,
            "block_bytes": segment.terms.geometry.block_bytes(),
            "blocks": segment.terms.geometry.blocks(),
            "quota": segment.terms.quota,
            "free": states[0],
            "writing": states[1],
            "published": states[2],
            "retired": states[3],
            "frames": counters.published.load(Ordering::Relaxed),
            "exhausted": counters.exhausted.load(Ordering::Relaxed),
            "readers": readers.collect::<Vec<_>>(),
        })
    }
}

/// Describes the times between publishing and acquiring: bounds in nanoseconds, `null` for one
/// beyond the range of the histogram. Each bucket is a bound and the number of times below it.
fn latency_status(latencies: &LatencySnapshot) -> Value {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).ok();
    let bound = |q: f64| latencies.quantile(q).and_then(ns);
    let buckets: Vec<Value> = latencies.buckets().map(|(bound, count)| json!([ns(bound), count])).collect();
    json!({
        "samples": latencies.count(),
        "p50_ns": bound(0.5),
        "p99_ns": bound(0.99),
        "max_ns": bound(1.0),
        "buckets": buckets,
    })
}
