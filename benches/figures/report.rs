//! The table: the rows with their bars, and what was measured of each.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::json;

use crate::sample::median;

/// What a row's numbers are.
#[derive(Clone, Copy)]
enum Unit {
    Seconds,
    Bytes,
    Share,
    Count,
    /// Bytes a second.
    Rate,
}

/// Which way round the ratio is.
#[derive(Clone, Copy)]
enum Ratio {
    /// Ours over theirs.
    Over,
    /// Theirs over ours: how many times as fast.
    Speed,
    /// The same of each turn, and the median of that: for two that stand on the same memory and are close, when the machine's
    /// memory is now faster, now slower.
    SpeedByTurn,
}

#[derive(Clone, Copy)]
enum Bar {
    AtMost(f64),
    AtLeast(f64),
    /// Only printed.
    None,
}

struct Row {
    key: &'static str,
    what: &'static str,
    unit: Unit,
    ratio: Ratio,
    bar: Bar,
}

const fn row(key: &'static str, what: &'static str, unit: Unit, ratio: Ratio, bar: Bar) -> Row {
    Row { key, what, unit, ratio, bar }
}

use Bar::{AtLeast, AtMost};
use Ratio::{Over, Speed, SpeedByTurn};
use Unit::{Bytes, Count, Rate, Seconds, Share};

const ROWS: &[Row] = &[
    row(
        "memory-4k",
        "PSS above the program without the table, of 1.02 T + 4 MB a rank; 4k pages",
        Bytes,
        Over,
        AtMost(1.0),
    ),
    row("memory-4k-copies", "  PSS of all ranks, of private copies' on 4k pages", Bytes, Over, Bar::None),
    row("memory-4k-tables", "  VmPTE of all ranks, of private copies' on 4k pages", Bytes, Over, Bar::None),
    row("memory-thp", "the same, transparent huge pages", Bytes, Over, AtMost(1.0)),
    row("memory-thp-copies", "  PSS of all ranks, of private copies' on THP", Bytes, Over, Bar::None),
    row("memory-thp-tables", "  VmPTE of all ranks, of private copies' on THP", Bytes, Over, Bar::None),
    row(
        "lookup-thp-private",
        "speed of random lookups, buffer on THP : private THP",
        Seconds,
        Speed,
        AtLeast(0.98),
    ),
    row(
        "lookup-thp-window",
        "speed of random lookups, buffer on THP : MPI window",
        Seconds,
        Speed,
        AtLeast(1.3),
    ),
    row(
        "lookup-2m-private",
        "speed of random lookups, buffer on 2m pages : private THP",
        Seconds,
        Speed,
        AtLeast(0.98),
    ),
    row(
        "lookup-2m-window",
        "speed of random lookups, buffer on 2m pages : MPI window",
        Seconds,
        Speed,
        AtLeast(1.3),
    ),
    row("lookup-4k-private", "  buffer on 4k pages : private THP", Seconds, Speed, Bar::None),
    row("lookup-4k-window", "  buffer on 4k pages : MPI window", Seconds, Speed, Bar::None),
    row("lookup-private-4k", "  private 4k : private THP", Seconds, Speed, Bar::None),
    row(
        "lookup16-thp-private",
        "  16 lookups at once, buffer on THP : private THP",
        Seconds,
        Speed,
        Bar::None,
    ),
    row("lookup16-thp-window", "  16 lookups at once, buffer on THP : MPI window", Seconds, Speed, Bar::None),
    row(
        "lookup16-4k-private",
        "  16 lookups at once, buffer on 4k pages : private THP",
        Seconds,
        Speed,
        Bar::None,
    ),
    row(
        "lookup16-4k-window",
        "  16 lookups at once, buffer on 4k pages : MPI window",
        Seconds,
        Speed,
        Bar::None,
    ),
    row(
        "lookup-c",
        "speed of lookups in one buffer, in C : in Rust (turn by turn)",
        Seconds,
        SpeedByTurn,
        AtLeast(0.98),
    ),
    row("lookup16-c", "  16 lookups at once, in C : in Rust", Seconds, SpeedByTurn, AtLeast(0.98)),
    row(
        "lookup-numpy",
        "speed of the same expression of numpy, on the buffer : on a private array",
        Seconds,
        SpeedByTurn,
        AtLeast(0.98),
    ),
    row(
        "allocate-2m",
        "speed of allocating and populating, 2m pages (pool) : window + touch",
        Seconds,
        Speed,
        AtLeast(3.0),
    ),
    row(
        "allocate-thp",
        "speed of allocating and populating, THP : window + touch",
        Seconds,
        Speed,
        AtLeast(3.0),
    ),
    row(
        "allocate-4k",
        "speed of allocating and populating, 4k pages : window + touch",
        Seconds,
        Speed,
        AtLeast(0.9),
    ),
    row("launch-exec", "time of mpirun hostbuf exec, of plain mpirun's", Seconds, Over, AtMost(1.15)),
    row("launch-run", "time of hostbuf run, of plain mpirun's", Seconds, Over, AtMost(2.5)),
    row("attach-16m-call", "HostBuffer::attach(), of 1 ms; 16 MiB", Seconds, Over, AtMost(1.0)),
    row(
        "attach-16m-all",
        "attach() and the constructor before main, of 1 ms; 16 MiB",
        Seconds,
        Over,
        AtMost(1.0),
    ),
    row(
        "attach-16m-before-main",
        "  lifetime of `true` with the preloaded object, of without",
        Seconds,
        Over,
        Bar::None,
    ),
    row("attach-4g-call", "HostBuffer::attach(), of 1 ms; 4 GiB", Seconds, Over, AtMost(1.0)),
    row(
        "attach-4g-all",
        "attach() and the constructor before main, of 1 ms; 4 GiB",
        Seconds,
        Over,
        AtMost(1.0),
    ),
    row("attach-flat", "attach() of 4 GiB, of 16 MiB", Seconds, Over, AtMost(1.1)),
    row("agreement-1", "layouts agreed in one round; 1 participant", Share, Over, AtLeast(0.99)),
    row("agreement-10", "layouts agreed in one round; 10 participants", Share, Over, AtLeast(0.99)),
    row("agreement-100", "layouts agreed in one round; 100 participants", Share, Over, AtLeast(0.99)),
    row("agreement-1000", "layouts agreed in one round; 1 000 participants", Share, Over, AtLeast(0.99)),
    row("agreement-10000", "layouts agreed in one round; 10 000 participants", Share, Over, AtLeast(0.99)),
    row("agreement-100000", "layouts agreed in one round; 100 000 participants", Share, Over, AtLeast(0.99)),
    row(
        "agreement-1000-work",
        "messages a participant, of the 2 of a job of one; 1 000",
        Count,
        Over,
        AtMost(1.05),
    ),
    row(
        "agreement-100000-work",
        "messages a participant, of the 2 of a job of one; 100 000",
        Count,
        Over,
        AtMost(1.05),
    ),
    row("replicate", "speed of replicating to 3 hosts : MPI_Bcast", Seconds, Speed, AtLeast(0.9)),
    row(
        "rdma-put-busy-64k",
        "bytes a second of puts : ib_write_bw, both looking all the time; 64 KiB",
        Rate,
        Over,
        Bar::None,
    ),
    row("rdma-put-busy-256k", "  256 KiB", Rate, Over, Bar::None),
    row("rdma-put-busy-1m", "  1 MiB", Rate, Over, AtLeast(0.9)),
    row("rdma-put-busy-4m", "  4 MiB", Rate, Over, Bar::None),
    row("rdma-put-busy-16m", "  16 MiB", Rate, Over, Bar::None),
    row("rdma-put-events-64k", "the same, ours by events; 64 KiB", Rate, Over, Bar::None),
    row("rdma-put-events-256k", "  256 KiB", Rate, Over, Bar::None),
    row("rdma-put-events-1m", "  1 MiB", Rate, Over, Bar::None),
    row("rdma-put-events-4m", "  4 MiB", Rate, Over, Bar::None),
    row("rdma-put-events-16m", "  16 MiB", Rate, Over, Bar::None),
    row("rdma-small", "puts of 8 bytes a second, in a batch : one by one", Count, Over, Bar::None),
    row(
        "rdma-channel-64k",
        "speed of a message, registered once : each time; 64 KiB",
        Seconds,
        Speed,
        Bar::None,
    ),
    row("rdma-channel-256k", "  256 KiB", Seconds, Speed, Bar::None),
    row("rdma-channel-1m", "  1 MiB", Seconds, Speed, Bar::None),
    row("rdma-channel-4m", "  4 MiB", Seconds, Speed, Bar::None),
    row("rdma-channel-16m", "  16 MiB", Seconds, Speed, Bar::None),
    row("rdma-replicate", "speed of replicating by puts : MPI_Bcast over TCP", Seconds, Speed, Bar::None),
    row("cache-hit-1", "cache: get + drop, 1 entry, of 25 ns", Seconds, Over, AtMost(1.0)),
    row("cache-hit-1k", "  1 k entries at random, of 25 ns", Seconds, Over, AtMost(1.0)),
    row("cache-hit-64k", "  64 k entries at random, of 80 ns", Seconds, Over, AtMost(1.0)),
    row("cache-walk-1", "  of that the walk without a cache, 1 entry", Seconds, Over, Bar::None),
    row("cache-walk-1k", "  of that the walk without a cache, 1 k", Seconds, Over, Bar::None),
    row("cache-walk-64k", "  of that the walk without a cache, 64 k", Seconds, Over, Bar::None),
    row("cache-ucx-1", "cache: get + drop, of UCX's rcache; 1 entry", Seconds, Over, AtMost(0.5)),
    row("cache-ucx-1k", "  the same, 1 k entries at random", Seconds, Over, AtMost(0.5)),
    row("cache-ucx-64k", "  the same, 64 k entries at random", Seconds, Over, AtMost(0.5)),
    row("cache-libfabric-1", "  of libfabric's MR cache as read earlier; 1 entry", Seconds, Over, Bar::None),
    row("cache-libfabric-1k", "  the same, 1 k entries at random", Seconds, Over, Bar::None),
    row("cache-libfabric-64k", "  the same, 64 k entries at random", Seconds, Over, Bar::None),
    row(
        "cache-hit-foreign",
        "cache: foreign memory, strict; of the owned one's + two getpid",
        Seconds,
        Over,
        AtMost(1.0),
    ),
    row(
        "cache-hit-many",
        "  the same, each of 64 in a get_many; of the owned one's + 5 ns",
        Seconds,
        Over,
        AtMost(1.0),
    ),
    row(
        "cache-policy-same",
        "cache: hits, working set = capacity of 16, 64, 1024",
        Share,
        Over,
        AtLeast(1.0),
    ),
    row("cache-policy-more", "  working set = capacity + 1", Share, Over, AtLeast(0.8)),
    row("cache-policy-scan", "  a hot set of half the capacity under a scan", Share, Over, AtLeast(0.95)),
    row("cache-policy-shift", "  after four passes of a new working set", Share, Over, AtLeast(1.0)),
    row(
        "cache-policy-mixed",
        "  bytes registered on a trace of mixed sizes, of LRU's",
        Bytes,
        Over,
        AtMost(1.0),
    ),
    row(
        "cache-threads-apart",
        "cache: 2 threads : 1, ranges of their own (hits a ns)",
        Count,
        Over,
        AtLeast(1.8),
    ),
    row("cache-threads-same", "  2 threads : 1, the same ranges (hits a ns)", Count, Over, AtLeast(1.8)),
    row(
        "cache-hit-p999",
        "cache: p99.9 of hits while another registration takes 1 s, of 5 µs",
        Seconds,
        Over,
        AtMost(1.0),
    ),
    row(
        "cache-miss",
        "cache: a miss that ends another, without the registrar's time, of 1 µs",
        Seconds,
        Over,
        AtMost(1.0),
    ),
    row("cache-miss-foreign", "  the same in foreign memory, strict; of the above", Seconds, Over, Bar::None),
    row(
        "cache-munmap",
        "cache: added to munmap by the monitor, a thread bound to its core, of 10 µs",
        Seconds,
        Over,
        AtMost(1.0),
    ),
    row("cache-munmap-asleep", "  of what a thread adds that only reads", Seconds, Over, Bar::None),
    row("cache-munmap-free", "  a thread that may roam, of 10 µs", Seconds, Over, AtMost(1.0)),
    row("cache-munmap-free-asleep", "  of what a thread adds that only reads", Seconds, Over, Bar::None),
    row(
        "cache-munmap-free-awake",
        "  of what one adds that reads and never sleeps",
        Seconds,
        Over,
        Bar::None,
    ),
    row("cache-munmap-busy", "  a bound thread with every core busy", Seconds, Over, Bar::None),
    row("cache-munmap-busy-asleep", "  of what a thread adds that only reads", Seconds, Over, Bar::None),
];

#[derive(Default)]
struct Measured {
    sides: BTreeMap<String, Vec<f64>>,
    notes: Vec<String>,
    /// Why there is no figure.
    unmeasured: Option<String>,
}

/// Reads samples from standard input and prints the table; `["--json", FILE]` writes it there as well. The status
/// tells whether all bars are met.
pub(crate) fn report(arguments: &[&str]) -> ExitCode {
    let mut all: BTreeMap<String, Measured> = BTreeMap::new();
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if let Some(rest) = line.strip_prefix("@ ") {
            let words: Vec<&str> = rest.split(' ').collect();
            if let [key, side, value] = words[..]
                && let Ok(value) = value.parse()
            {
                all.entry(key.into()).or_default().sides.entry(side.into()).or_default().push(value);
            }
        } else if let Some((key, text)) = line.strip_prefix("# ").and_then(|rest| rest.split_once(' ')) {
            all.entry(key.into()).or_default().notes.push(text.into());
        } else if let Some((key, why)) = line.strip_prefix("! ").and_then(|rest| rest.split_once(' ')) {
            all.entry(key.into()).or_default().unmeasured = Some(why.into());
        }
    }
    let mut lines = Vec::new();
    let mut records = Vec::new();
    let mut missed = 0;
    for row in ROWS {
        let Some(measured) = all.get(row.key) else { continue };
        if let Some(why) = &measured.unmeasured {
            lines.push([row.what, "", "", "", "", "not measured"].map(str::to_owned));
            records.push(json!({ "key": row.key, "what": row.what.trim(), "unmeasured": why }));
            continue;
        }
        let values = |side: &str| measured.sides.get(side).map_or(&[][..], Vec::as_slice);
        let (ours, theirs) = (values("ours"), values("theirs"));
        if ours.is_empty() || theirs.is_empty() {
            continue;
        }
        let (a, b) = (median(ours), median(theirs));
        let ratio = match row.ratio {
            Over => a / b,
            Speed => b / a,
            SpeedByTurn => {
                median(&ours.iter().zip(theirs).map(|(ours, theirs)| theirs / ours).collect::<Vec<_>>())
            }
        };
        let (bar, met) = match row.bar {
            AtMost(most) => (format!("<= {most}"), Some(ratio <= most)),
            AtLeast(least) => (format!(">= {least}"), Some(ratio >= least)),
            Bar::None => (String::new(), None),
        };
        missed += usize::from(met == Some(false));
        let verdict = met.map_or("", |m| if m { "met" } else { "MISSED" });
        lines.push([
            row.what.to_owned(),
            show(row.unit, a),
            show(row.unit, b),
            format!("{ratio:.3}"),
            bar.clone(),
            verdict.to_owned(),
        ]);
        records.push(json!({
            "key": row.key, "what": row.what.trim(), "ours": a, "theirs": b, "ratio": ratio, "bar": bar, "met": met,
            "samples": { "ours": ours, "theirs": theirs }, "notes": measured.notes,
        }));
    }
    print(&lines);
    for row in ROWS {
        for text in all.get(row.key).iter().flat_map(|m| m.notes.iter().chain(&m.unmeasured)) {
            println!("{}: {text}", row.key);
        }
    }
    if let ["--json", file, ..] = arguments {
        let document = json!({ "rows": records, "missed": missed });
        if let Err(error) = std::fs::write(file, format!("{document:#}\n")) {
            eprintln!("bench: writing {file}: {error}");
            return ExitCode::from(2);
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(unit: Unit, value: f64) -> String {
    match unit {
        Seconds if value.abs() < 1e-6 => format!("{:.1} ns", value * 1e9),
        Seconds if value.abs() < 1e-3 => format!("{:.1} µs", value * 1e6),
        Seconds if value.abs() < 1.0 => format!("{:.1} ms", value * 1e3),
        Seconds => format!("{value:.2} s"),
        Bytes => format!("{:.1} MiB", value / 1048576.0),
        Share => format!("{:.2} %", value * 100.0),
        Count => format!("{value:.3}"),
        Rate => format!("{:.1} MiB/s", value / 1048576.0),
    }
}

fn print(lines: &[[String; 6]]) {
    let head = ["what", "ours", "theirs", "ratio", "bar", ""].map(str::to_owned);
    let all = || std::iter::once(&head).chain(lines);
    let widths: [usize; 6] =
        std::array::from_fn(|i| all().map(|line| line[i].chars().count()).max().unwrap_or(0));
    for line in all() {
        let cells: Vec<String> = line
            .iter()
            .zip(widths)
            .enumerate()
            .map(
                |(i, (cell, width))| {
                    if (1..4).contains(&i) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                },
            )
            .collect();
        println!("{}", cells.join("  ").trim_end());
    }
}
