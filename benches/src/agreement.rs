//! A simulation of the agreement on an address: the rounds that jobs of up to 1 000 000 processes
//! need, with address spaces as the kernel, language runtimes and sanitizers lay them out
//! (docs/addresses.md).
//!
//! A message is a request to a participant or its reply; the agents combine them host by host, so a
//! participant handles two per round, however large the job. Work is the number of mappings that a
//! participant examines.
//!
//! The election's code is the shipped one; only the participants are simulated. All cores share the
//! work of large jobs.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

use hostbuf::agree::{Electorate, RangeRequest, elect};
use hostbuf_os::encode;
use hostbuf_protocol::candidates::{self, Ballot};
use hostbuf_protocol::limits::MAX_CANDIDATES;
use hostbuf_protocol::message::Message;
use hostbuf_raw::maps::HoleSearch;

use crate::expectation::{self, Planted};
use crate::fixture::BenchResult;
use crate::programs::{GIB, PROGRAMS, ProgramKind, TIB, TOP};
use crate::sample::{note, sample, timed};

const PAGE: u64 = 4096;

/// SplitMix64: the same layouts in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true with a probability of `percent` %.
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The layout of a job's processes, and their requests.
struct SimulatedJob {
    seed: u64,
    participants: usize,
    program: ProgramKind,
    /// PMIx 5 puts segments of its server's into every client.
    pmix: bool,
    /// One process in a hundred has a mapping at a random address.
    stray: bool,
    length: usize,
    align: usize,
    /// The addresses of the planted one-page mappings, by participant.
    planted: HashMap<usize, Vec<usize>>,
}

impl SimulatedJob {
    fn random(seed: u64, participants: usize) -> SimulatedJob {
        let mut random = Random(seed);
        let mut ticket = random.below(100);
        let mut program = ProgramKind::Plain;
        for (kind, weight) in PROGRAMS {
            if ticket < weight {
                program = kind;
                break;
            }
            ticket -= weight;
        }
        // The sizes are 16 MiB to 256 GiB (the most that a sanitizer leaves), every power of two
        // equally likely, and rarely up to 4 TiB.
        let sanitized = matches!(program, ProgramKind::Tsan | ProgramKind::Msan | ProgramKind::Asan);
        let vast = random.chance(5) && !sanitized;
        let length = if vast { (512 * GIB) << random.below(4) } else { (16 << 20) << random.below(15) };
        let align = if length >= GIB && random.chance(20) { GIB } else { 2 << 20 };
        let (pmix, stray) = (random.chance(30), random.chance(10));
        SimulatedJob {
            seed: random.next(),
            participants,
            program,
            pmix,
            stray,
            length: length as usize,
            align: align as usize,
            planted: HashMap::new(),
        }
    }

    /// Plants a mapping at each of these addresses, each in one random participant.
    fn plant(&mut self, addresses: impl Iterator<Item = usize>) {
        let mut random = Random(self.seed ^ 0x5bd1_e995);
        for at in addresses {
            let who = random.below(self.participants as u64) as usize;
            self.planted.entry(who).or_default().push(at);
        }
    }

    /// Computes the mappings of one process, in ascending order.
    fn space(&self, participant: usize, space: &mut Vec<(usize, usize)>) {
        let mut random = Random(self.seed ^ (participant as u64 + 1).wrapping_mul(0xa076_1d64_78bd_642f));
        space.clear();
        let mut map = |start: u64, length: u64| {
            let start = start.min(TOP - PAGE) & !(PAGE - 1);
            space.push((start as usize, (start + length).next_multiple_of(PAGE).min(TOP) as usize));
        };
        // The executable and its heap: 28 random bits of pages above two thirds of the address
        // space.
        let executable = match self.program {
            ProgramKind::Fixed => 0x40_0000,
            _ => 0x5555_5555_4000 + random.below(1 << 28) * PAGE,
        };
        map(executable, (1 + random.below(64)) << 20);
        map(executable + (128 << 20) + random.below(1 << 18) * PAGE, (1 + random.below(512)) << 20);
        // The stack, libraries and anonymous memory: from the top down, or as the old layouts have
        // it.
        let stack = TOP - random.below(1 << 22) * PAGE - (8 << 20);
        map(stack, 8 << 20);
        let (mut at, up) = match self.program {
            ProgramKind::UnlimitedStack => (0x1554_0000_0000 + random.below(1 << 26) * PAGE, false),
            ProgramKind::Legacy => (0x2aaa_aaaa_b000 + random.below(1 << 28) * PAGE, true),
            _ => (stack - (1 << 20) - random.below(1 << 28) * PAGE, false),
        };
        for _ in 0..20 + random.below(30) {
            let most = if random.chance(10) { 19 } else { 9 };
            let length = PAGE << random.below(most);
            let gap = if random.chance(30) { random.below(1 << 10) * PAGE } else { 0 };
            at = if up { at + gap } else { at - gap - length };
            map(at, length);
            at = if up { at + length } else { at };
        }
        match self.program {
            ProgramKind::Asan => {
                map(0x7fff_8000, 0x1000_7fff_8000 - 0x7fff_8000);
                map(0x6000_0000_0000, 4 * TIB + 0x2000);
            }
            ProgramKind::Tsan => map(0x80_0000_0000, 0x5500_0000_0000 - 0x80_0000_0000),
            ProgramKind::Msan => {
                map(0x100_0000_0000, 0x5100_0000_0000 - 0x100_0000_0000);
                map(0x6000_0000_0000, 0x1400_0000_0000);
            }
            ProgramKind::Zgc => (0..3).for_each(|i| map((4 << i) * TIB, (1 + random.below(64)) * GIB)),
            ProgramKind::Node => {
                for _ in 0..6 + random.below(10) {
                    map(random.below(1 << 34) * PAGE, (1 + random.below(512)) << 20);
                }
            }
            ProgramKind::Go => map(0xc0_0000_0000, (64 << 20) << random.below(8)),
            ProgramKind::Cuda => {
                map(0x2_04c0_0000, 0xfb40_0000);
                map(TIB, 64 << 20);
            }
            _ => {}
        }
        if self.pmix {
            // The server of each host chooses the address once; 64 processes share it.
            let mut server =
                Random(self.seed ^ (participant as u64 / 64 + 1).wrapping_mul(0xe703_7ed1_a0b4_28db));
            for (start, room) in [(0x1fcc_0000_0000, 0x1d_0000_0000), (0x3f98_0000_0000, 0x3a_0000_0000)] {
                map(start + server.below(room / PAGE) * PAGE, (1 + server.below(8)) << 20);
            }
        }
        if self.stray && random.chance(1) {
            map(random.below(TOP / PAGE - (1 << 18)) * PAGE, 1 << 30);
        }
        for &at in self.planted.get(&participant).into_iter().flatten() {
            map(at as u64, PAGE);
        }
        space.sort_unstable();
        // The kernel would place later mappings elsewhere; overlapping ones count as one.
        space.dedup_by(|next, before| {
            let joined = next.0 <= before.1;
            if joined {
                before.1 = before.1.max(next.1);
            }
            joined
        });
    }
}

/// The job's processes. Their layout is recomputed for every request, which is cheaper than storing
/// a million of them.
struct Simulated<'a> {
    job: &'a SimulatedJob,
    messages: u64,
    looked_at: u64,
}

impl Simulated<'_> {
    /// Folds `ask` over all participants' mappings, on several threads. Returns the result of each
    /// thread.
    fn all<T: Copy + Send + Sync>(
        &mut self,
        none: T,
        ask: impl Fn(T, &[(usize, usize)]) -> T + Sync,
    ) -> Vec<T> {
        /// The number of participants that a thread takes at a time.
        const PORTION: usize = 4096;
        let (job, next) = (self.job, AtomicUsize::new(0));
        let work = || {
            let (mut space, mut sum) = (Vec::new(), none);
            loop {
                let first = next.fetch_add(PORTION, Ordering::Relaxed);
                if first >= job.participants {
                    return sum;
                }
                for participant in first..(first + PORTION).min(job.participants) {
                    job.space(participant, &mut space);
                    sum = ask(sum, &space);
                }
            }
        };
        self.messages += 2 * job.participants as u64;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = job.participants.div_ceil(PORTION).min(cores);
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mut sums = vec![work()];
            sums.extend(others.into_iter().map(|other| other.join().expect("it only counts")));
            sums
        })
    }
}

impl Electorate for Simulated<'_> {
    fn vote(&mut self, ballot: &Ballot, length: usize) -> hostbuf::Result<u64> {
        let candidates = ballot.as_slice();
        let masks = self.all(u64::MAX, |common, space| {
            let mut mine = 0;
            for (i, &at) in candidates.iter().enumerate() {
                let below = space.partition_point(|&(_, end)| end <= at);
                let free = space.get(below).is_none_or(|&(start, _)| start >= at + length);
                mine |= u64::from(free && at + length <= TOP as usize) << i;
            }
            common & mine
        });
        self.looked_at += (candidates.len() * self.job.participants) as u64;
        Ok(masks.into_iter().fold(u64::MAX, |common, mask| common & mask))
    }

    fn hole(&mut self, from: usize, request: RangeRequest) -> hostbuf::Result<Option<usize>> {
        let RangeRequest { length, align, .. } = request;
        let holes = self.all((Some(0), 0), |(greatest, mut looked_at), space| {
            let mut search = HoleSearch::new(from, length, align, TOP as usize);
            for &(start, end) in space {
                looked_at += 1;
                if !search.pass(start, end) {
                    break;
                }
            }
            (greatest.and_then(|g: usize| Some(g.max(search.found()?))), looked_at)
        });
        self.looked_at += holes.iter().map(|(_, looked_at)| looked_at).sum::<u64>();
        Ok(holes.into_iter().map(|(hole, _)| hole).try_fold(0, |greatest, hole| Some(greatest.max(hole?))))
    }
}

/// Measures jobs of `participants` with planted conflicts: on all of the first ballot, in all
/// windows, and at random addresses. Reports the rounds, and the bytes that a participant and a
/// host send and receive. With a `kind`, only conflicts of that kind.
pub(crate) fn planted(participants: usize, jobs: usize, kind: Option<&str>) -> BenchResult {
    type Addresses = fn(usize, usize, &mut Random) -> Vec<usize>;
    let first: Addresses = |length, align, _| {
        candidates::ballot(0, length, align).map_or(Vec::new(), |ballot| ballot.as_slice().to_vec())
    };
    let windows: Addresses = |length, align, _| {
        let ballots = (0..).map_while(|round| candidates::ballot(round, length, align));
        ballots.flat_map(|ballot| ballot.as_slice().to_vec()).collect()
    };
    let anywhere: Addresses =
        |_, _, random| (0..1000).map(|_| (random.below((TOP - PAGE) / PAGE) * PAGE) as usize).collect();
    let kinds = [
        ("first", 2, first, Some(Planted::First)),
        ("windows", 10, windows, None),
        ("anywhere", 2, anywhere, Some(Planted::Anywhere(1000))),
    ];
    for (name, bar, addresses, expected) in
        kinds.into_iter().filter(|(name, ..)| kind.is_none_or(|kind| kind == *name))
    {
        let key = format!("agreement-planted-{name}");
        let (mut worst, mut without) = (0, 0);
        let mut jobs_by_rounds = BTreeMap::new();
        let (elapsed, outcome) = timed(|| -> BenchResult {
            for seed in 0..jobs {
                let mut job = SimulatedJob::random(((participants as u64) << 20) + seed as u64, participants);
                let mut random = Random(job.seed);
                let planted = addresses(job.length, job.align, &mut random);
                job.plant(planted.iter().copied());
                let mut electorate = Simulated { job: &job, messages: 0, looked_at: 0 };
                let outcome = elect(&mut electorate, RangeRequest::new(job.length, job.align))?;
                let Some(address) = outcome.address else {
                    without += 1;
                    continue;
                };
                let wins = address..address + job.length;
                if planted.iter().any(|at| wins.contains(at)) || !address.is_multiple_of(job.align) {
                    return Err(format!("{name}, seed {seed}: {address:#x} is taken or not aligned").into());
                }
                worst = worst.max(outcome.rounds);
                *jobs_by_rounds.entry(outcome.rounds).or_insert(0) += 1;
                sample(&key, "ours", f64::from(outcome.rounds));
                sample(&key, "theirs", f64::from(bar));
            }
            Ok(())
        });
        outcome?;
        // A request and a reply; between hosts two words in each direction, whatever the number of
        // ranks.
        let ballot = Message::Ballot { length: 0, candidates: Ballot::new(&[1; MAX_CANDIDATES]) };
        let votes = Message::Votes { mask: 0, refusal: None };
        let bytes = (encode(&ballot).len() + encode(&votes).len()) as u32 * worst;
        let each = jobs_by_rounds.iter().map(|(rounds, jobs)| format!("{rounds} in {jobs}"));
        let each = each.collect::<Vec<_>>().join(", ");
        note(
            &key,
            &format!(
                "{jobs} jobs of {participants} participants: rounds {each}; {without} without an address; at most \
                 {bytes} bytes to and from a participant on its host, and {} a host in all-reduces; {:.1} s a job, simulated",
                2 * 16 * worst,
                elapsed.as_secs_f64() / jobs as f64
            ),
        );
        if let Some(expected) = expected {
            note(&key, &expectation::text(participants, expected));
        }
    }
    Ok(())
}

/// Measures jobs of 1, 10, ... `most` participants. `scale` is the number of participants in all
/// jobs of a size, within 100 to 2000 jobs.
pub(crate) fn simulate(most: usize, scale: usize) -> BenchResult {
    let mut participants = 1;
    while participants <= most {
        // Fewer jobs of a million participants, since each takes one second on all cores.
        let jobs = (scale / participants).clamp(if participants >= 1_000_000 { 20 } else { 100 }, 2000);
        let mut one = 0;
        let mut worst = 0;
        let mut without = 0;
        let mut slow: Vec<String> = Vec::new();
        let (mut messages, mut looked_at) = (0, 0);
        let (elapsed, outcome) = timed(|| -> BenchResult {
            for i in 0..jobs {
                let job = SimulatedJob::random(((participants as u64) << 32) + i as u64, participants);
                let mut electorate = Simulated { job: &job, messages: 0, looked_at: 0 };
                let outcome = elect(&mut electorate, RangeRequest::new(job.length, job.align))?;
                one += u32::from(outcome.rounds == 1 && outcome.address.is_some());
                worst = worst.max(outcome.rounds);
                if outcome.rounds > 1 {
                    let with = [(job.stray, " and strays"), (job.pmix, " and PMIx 5")];
                    let with: String = with.into_iter().filter(|w| w.0).map(|w| w.1).collect();
                    slow.push(format!(
                        "{:?}{with}, {}, {}",
                        job.program,
                        hostbuf::Bytes(job.length as u64),
                        outcome.rounds
                    ));
                }
                without += usize::from(outcome.address.is_none());
                if outcome.address.is_some() {
                    messages += electorate.messages;
                    looked_at += electorate.looked_at;
                }
            }
            Ok(())
        });
        outcome?;
        // Without a common free range there is no agreement: such a job counts in the rounds, but
        // not as work.
        let all = ((jobs - without) * participants) as f64;
        let key = format!("agreement-{participants}");
        sample(&key, "ours", f64::from(one) / jobs as f64);
        sample(&key, "theirs", 1.0);
        // Messages per participant: the number is constant if it equals that of a job of one.
        let flat = format!("agreement-{participants}-work");
        sample(&flat, "ours", messages as f64 / all);
        sample(&flat, "theirs", 2.0);
        note(
            &key,
            &format!(
                "{jobs} jobs, at most {worst} rounds, {without} without an address; a participant sees {:.3} messages, \
                 looks at {:.2} places and (simulated) needs {:.0} ns",
                messages as f64 / all,
                looked_at as f64 / all,
                elapsed.as_secs_f64() * 1e9 / all
            ),
        );
        if !slow.is_empty() {
            note(&key, &format!("more than one round (program, bytes, rounds): {}", slow.join("; ")));
        }
        participants *= 10;
    }
    Ok(())
}
