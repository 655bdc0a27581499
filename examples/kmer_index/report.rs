//! The output of the demo.

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::Range;
use std::time::Duration;

use hostbuf::{Bytes, Frozen, HostBuffer, Pages, Proof};

use crate::classify::{Contig, Verdict};
use crate::fasta::Source;
use crate::index::{Genome, Index};
use crate::kmer::K;
use crate::pointer::Delivery;
use crate::team::Member;

/// Prints at once. It ignores a reader that has ended.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Formats a number with spaces: `47 206 349`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn time(d: Duration) -> String {
    match d.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.001 => format!("{:.0} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

fn times(all: &[(&str, Duration)]) -> String {
    all.iter().map(|&(name, d)| format!("{name} {}", time(d))).collect::<Vec<_>>().join(", ")
}

/// The largest number of ranks that get a line each.
const RANKS: usize = 16;

/// Describes the buffer and its address in each rank.
pub fn buffer(buffer: &HostBuffer, members: &[Member], addresses: &[u64]) -> String {
    let pages = match (buffer.pages(), buffer.huge_bytes()) {
        (Pages::Transparent, 0) => {
            "pages of 4 KiB (huge pages were requested, and none was available)".into()
        }
        (Pages::Transparent, huge) => format!("{} of it on transparent huge pages of 2 MiB", Bytes(huge)),
        (other, _) => format!("pages of {}", Bytes(other.size())),
    };
    let mut text = format!("\nbuffer     {} on each host, {pages}\n", Bytes(buffer.len() as u64));
    text += "           rank  host      address\n";
    for (rank, (member, address)) in members.iter().zip(addresses).enumerate().take(RANKS) {
        _ = writeln!(text, "           {rank:4}  {:8}  {address:#x}", member.host);
    }
    if members.len() > RANKS {
        let same = if addresses.iter().all(|a| *a == addresses[0]) { "the same" } else { "NOT THE SAME" };
        _ = writeln!(text, "           .. and {} more, {same}", members.len() - RANKS);
    }
    text
}

/// Describes the index.
pub fn index(index: &Index, used: u64, bases: u64) -> String {
    let (kmers, occurrences) = (count(index.kmers), count(index.occurrences));
    let per = |n: u64| used as f64 / n.max(1) as f64;
    format!(
        "\nindex      {kmers} different {K}-mers at {occurrences} places; different lists of genomes: {}\n           \
         {} in the buffer: {:.1} bytes per k-mer, {:.1} per base\n",
        count(index.lists),
        Bytes(used),
        per(index.kmers),
        per(bases)
    )
}

/// States for how many hosts the kernel sealed the buffer. `sealed` has an entry for each host.
pub fn frozen(frozen: &Frozen, sealed: &[bool]) -> String {
    let hosts = sealed.len();
    let proven = sealed.iter().filter(|s| **s).count();
    let mut text = format!(
        "frozen     on {proven} of {hosts} hosts the kernel has sealed it: nobody can write (F_SEAL_WRITE)\n"
    );
    if let Proof::Weaker { why } = frozen.proof() {
        _ = writeln!(text, "           not here: {why}");
    }
    text
}

/// Describes the pointer that was sent to another host.
pub fn pointer(delivery: Option<&Delivery>, members: &[Member]) -> String {
    let Some(Delivery { from, to, address, content }) = delivery else {
        return "pointer    not sent: there is nobody to send it to, or no contig hits the index\n".into();
    };
    let (sender, receiver) = (&members[*from].host, &members[*to].host);
    format!(
        "pointer    rank {from} on {sender} sent {address:#x} to rank {to} on {receiver}, which followed it; both see\n           \
         {content}\n"
    )
}

/// Lists the times of all phases.
pub fn phases(launched: bool, launch: &[(&str, Duration)], here: &[(&str, Duration)]) -> String {
    let first = if launched { "before main" } else { "allocate" };
    format!("\ntime       {first}: {}\n           then: {}\n", times(launch), times(here))
}

/// Compares the memory of the buffer in all ranks together with that of private copies.
pub fn memory(pss: u64, used: u64, ranks: usize, hosts: usize) -> String {
    let private = used * ranks as u64;
    let several = |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
    format!(
        "memory     {:>9}  the index in all ranks together: {} on {} (sum of PSS)\n           \
         {:>9}  the same as private copies, one a rank: {:.1} times as much\n",
        Bytes(pss).to_string(),
        several(ranks, "rank"),
        several(hosts, "host"),
        Bytes(private).to_string(),
        private as f64 / pss.max(1) as f64
    )
}

/// Lists the classifications of the contigs of each file.
pub fn contigs(files: &[Source], contigs: &[Contig], verdicts: &[Verdict], index: &Index) -> String {
    let width = files.iter().map(|f| f.name.len()).max().unwrap_or(0).max(4);
    let mut text =
        format!("\n{:width$}  contigs       bases  classified as (contigs, share of the bases)\n", "file");
    let names: Vec<&str> = index.genomes().map(Genome::name).collect();
    for (number, file) in files.iter().enumerate() {
        // The contigs and bases of each genome, of ties, and of no genome.
        let (several, none) = (names.len(), names.len() + 1);
        let mut sums = vec![(0u64, 0u64); names.len() + 2];
        for (contig, verdict) in contigs.iter().zip(verdicts).filter(|(c, _)| c.file == number) {
            let class = match verdict.tied {
                0 => none,
                1 => verdict.genome as usize,
                _ => several,
            };
            sums[class].0 += 1;
            sums[class].1 += contig.bases.len() as u64;
        }
        let all = sums.iter().fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let share = |class: usize| {
            let (contigs, bases) = sums[class];
            format!("{contigs} ({:.1}%)", 100.0 * bases as f64 / all.1.max(1) as f64)
        };
        let mut order: Vec<usize> = (0..names.len()).filter(|&i| sums[i].0 > 0).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(sums[i].1));
        let mut classes: Vec<String> =
            order.iter().take(2).map(|&i| format!("{} {}", names[i], share(i))).collect();
        if order.len() > 2 {
            let rest = order[2..].iter().fold((0, 0), |a, &i| (a.0 + sums[i].0, a.1 + sums[i].1));
            sums.push(rest);
        }
        let share = |class: usize| {
            let (contigs, bases) = sums[class];
            format!("{contigs} ({:.1}%)", 100.0 * bases as f64 / all.1.max(1) as f64)
        };
        let more = [(none + 1, "others"), (several, "undecided"), (none, "none")];
        classes.extend(
            more.iter()
                .filter(|(class, _)| sums.get(*class).is_some_and(|s| s.0 > 0))
                .map(|&(class, name)| format!("{name} {}", share(class))),
        );
        _ = writeln!(text, "{:width$}  {:7}  {:>10}  {}", file.name, all.0, count(all.1), classes.join(", "));
    }
    text
}

/// Returns the bytes of `range` that the kernel attributes to this process (PSS): its private
/// memory, and its share of memory that several processes map.
pub fn pss(range: Range<u64>) -> std::io::Result<u64> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let (mut inside, mut sum) = (false, 0);
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Pss:") {
            if inside {
                sum += kib.trim().trim_end_matches("kB").trim_end().parse().unwrap_or(0) << 10;
            }
        } else if let Some((start, _)) = line.split_once('-')
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            inside = range.contains(&start);
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_are_formatted() {
        assert_eq!([0, 999, 1000, 47_206_349].map(count), ["0", "999", "1 000", "47 206 349"]);
        let spans = [1234, 20_500, 3_210_000].map(Duration::from_micros);
        assert_eq!(spans.map(time), ["1 ms", "20 ms", "3.21 s"]);
    }

    #[test]
    #[allow(unsafe_code, reason = "the test maps a file")]
    fn touched_memory_is_counted() {
        // The kernel never merges a file's mapping with its neighbours.
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        // SAFETY: the running test's file does not change.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let start = map.as_ptr() as u64;
        std::hint::black_box(map.iter().step_by(4096).map(|&b| u64::from(b)).sum::<u64>());
        let sum = pss(start..start + map.len() as u64).unwrap();
        assert!(sum > 0 && sum <= map.len() as u64 + 4096, "{sum}");
        assert_eq!(pss(8..9).unwrap(), 0);
    }
}
