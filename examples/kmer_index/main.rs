//! One k-mer index for all ranks of all hosts.
//!
//! Rank 0 reads reference genomes and builds an index of their 31-mers in the buffer, linked by raw
//! pointers. It goes to the other hosts as bytes and is frozen; then all ranks classify contigs
//! with it, each its share. In the end one process does everything again in private memory, and the
//! results must be the same.
//!
//! One program for four ways to run: `hostbuf run -n 8 ... -- kmer_index`, `mpirun ... hostbuf exec
//! ... -- kmer_index` (the buffer is there already), plain `mpirun ... kmer_index`, and alone (it
//! is allocated).

mod check;
mod classify;
mod fasta;
mod index;
mod kmer;
mod pointer;
mod report;
mod survey;
mod team;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use hostbuf::job::{Reduce, all_or_none};
use hostbuf::{BufferOptions, Bytes, Error, HostBuffer, Proof, Result};

use crate::classify::{Contig, Verdict};
use crate::fasta::Source;
use crate::report::count;
use crate::survey::Need;
use crate::team::{Member, Team};

const USAGE: &str = "\
usage: kmer_index --genomes FILE... --contigs FILE... [--size SIZE]
       kmer_index --print-size [--copies N] --genomes FILE... [--contigs FILE...]

Builds an index of the 31-mers of reference genomes in a buffer that all ranks of a
host share, sends it to the other hosts, and classifies contigs with it.

  --genomes FILE...  reference genomes, FASTA, one genome a file
  --contigs FILE...  sequences to classify, FASTA
  --size SIZE        size of the buffer (1.5G) when no launcher made one;
                     as needed unless given
  --print-size       only print the bytes that the buffer needs
  --copies N         so many hosts share this machine's memory (simulated hosts)
  --help             this

With less memory than the index needs, the first genomes that fit are taken.
";

#[derive(Debug, Default)]
struct Arguments {
    genomes: Vec<PathBuf>,
    contigs: Vec<PathBuf>,
    size: Option<u64>,
    copies: u64,
    print_size: bool,
    help: bool,
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Invalid { what: what.into() }
}

impl Arguments {
    fn parse(words: impl Iterator<Item = OsString>) -> Result<Arguments> {
        let mut arguments = Arguments { copies: 1, ..Arguments::default() };
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            let option = word.to_string_lossy().into_owned();
            let is_option = |w: &OsString| w.as_encoded_bytes().starts_with(b"--");
            let mut value = || words.next_if(|w| !is_option(w));
            match &*option {
                "--genomes" => arguments.genomes.extend(std::iter::from_fn(value).map(PathBuf::from)),
                "--contigs" => arguments.contigs.extend(std::iter::from_fn(value).map(PathBuf::from)),
                "--size" => {
                    let text = value().ok_or(invalid("--size lacks its value"))?;
                    let Bytes(size) = text.to_string_lossy().parse().map_err(invalid)?;
                    arguments.size = Some(size);
                }
                "--copies" => {
                    let text = value().ok_or(invalid("--copies lacks its value"))?;
                    let copies = text.to_string_lossy().parse().ok().filter(|&n| n > 0);
                    arguments.copies = copies.ok_or(invalid("--copies: expected a number of at least 1"))?;
                }
                "--print-size" => arguments.print_size = true,
                "--help" | "-h" => arguments.help = true,
                _ => return Err(invalid(format!("\"{option}\": no such option (see --help)"))),
            }
        }
        if arguments.genomes.is_empty() && !arguments.help {
            return Err(invalid("no genomes are given (--genomes FILE..., see --help)"));
        }
        if arguments.contigs.is_empty() && !arguments.help && !arguments.print_size {
            return Err(invalid("no contigs are given (--contigs FILE..., see --help)"));
        }
        Ok(arguments)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse(std::env::args_os().skip(1));
    if let Ok(arguments) = &arguments
        && (arguments.help || arguments.print_size)
    {
        let text = if arguments.help { Ok(USAGE.into()) } else { size(arguments) };
        return finish(text.map(|text| report::print(&text)), true);
    }
    let team = match Team::join() {
        Ok(team) => team,
        Err(error) => return finish(Err(error), true),
    };
    // Errors reach all ranks, but a panic does not, and the other ranks would wait.
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| demo(&team, arguments)));
    match done {
        // Each rank detects lost connections itself.
        Ok(result) => {
            let speaks = team.leads() || matches!(result, Err(Error::Collective { .. }));
            finish(result, speaks)
        }
        Err(_) => team.abort(),
    }
}

fn finish(result: Result<()>, speaks: bool) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if speaks {
                eprintln!("kmer_index: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Source>> {
    paths.iter().map(|path| fasta::read(path)).collect()
}

/// Returns the private memory that reading and checking takes.
fn private_bytes(genomes: &[Source], contigs: &[Contig]) -> u64 {
    let texts = genomes.iter().map(Source::bases).sum::<u64>();
    texts + check::bytes_needed(genomes, contigs) + (64 << 20)
}

/// Returns the number of genomes whose index fits into `room` bytes.
fn choose(genomes: &[Source], needs: &[Need], room: u64) -> Result<usize> {
    match survey::fitting(needs, room) {
        0 => Err(invalid(format!(
            "the index of {} alone takes {}, and there is room for {}",
            genomes[0].name,
            Bytes(needs[0].bytes),
            Bytes(room)
        ))),
        taken => Ok(taken),
    }
}

/// Describes the chosen genomes, and those left out.
fn choice(genomes: &[Source], needs: &[Need], taken: usize) -> String {
    let bases = genomes[..taken].iter().map(Source::bases).sum();
    let need = needs[taken - 1];
    let mut text = format!(
        "genomes    {taken} with {} bases, at most {} different k-mers: {} for the index\n",
        count(bases),
        count(need.distinct),
        Bytes(need.bytes)
    );
    if taken < genomes.len() {
        let left: Vec<&str> = genomes[taken..].iter().map(|g| &*g.name).collect();
        text += &format!(
            "           only these {taken} of {} fit; left out: {}\n",
            genomes.len(),
            left.join(", ")
        );
    }
    text
}

/// Computes the output of `--print-size`.
fn size(arguments: &Arguments) -> Result<String> {
    let genomes = read_all(&arguments.genomes)?;
    let contigs = classify::contigs(read_all(&arguments.contigs)?);
    let needs = survey::survey(&genomes);
    let room = survey::room(arguments.copies, private_bytes(&genomes, &contigs));
    let taken = choose(&genomes, &needs, room)?;
    eprint!("{}", choice(&genomes, &needs, taken));
    eprintln!(
        "memory     {} available here: room for {} on each host ({} here)",
        Bytes(survey::available()),
        Bytes(room),
        arguments.copies
    );
    Ok(format!("{}\n", needs[taken - 1].bytes))
}

/// Attaches the launcher's buffer or allocates one, and chooses the number of genomes (on rank 0).
fn obtain(
    team: &Team,
    members: &[Member],
    asked: Option<u64>,
    genomes: &[Source],
    needs: &[Need],
    own: u64,
) -> Result<(HostBuffer, usize)> {
    if std::env::var_os("HOSTBUF_JOB").is_some() {
        let buffer = all_or_none(&*team.group, HostBuffer::attach())?;
        let choose = || choose(genomes, needs, buffer.len() as u64);
        let taken = if team.leads() { choose() } else { Ok(0) };
        return Ok((buffer, all_or_none(&*team.group, taken)?));
    }
    // The machine with the least memory decides, unless the user has chosen a size.
    let copies = team::hosts_of_machine(members, team.rank()) as u64;
    let mut room = [survey::room(copies, own)];
    team.group.all_reduce(&mut room, Reduce::Min)?;
    let room = asked.unwrap_or(room[0]);
    let taken = if team.leads() { choose(genomes, needs, room) } else { Ok(0) };
    let taken = all_or_none(&*team.group, taken)?;
    let mut size = [if team.leads() { asked.unwrap_or(needs[taken - 1].bytes) } else { 0 }];
    team.group.all_reduce(&mut size, Reduce::Max)?;
    Ok((HostBuffer::allocate(&*team.group, BufferOptions::new(size[0]).name("kmers"))?, taken))
}

/// Runs a step, and returns its duration.
fn timed<T>(times: &mut Vec<(&'static str, Duration)>, name: &'static str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    times.push((name, begun.elapsed()));
    result
}

fn demo(team: &Team, arguments: Result<Arguments>) -> Result<()> {
    let group = &*team.group;
    let say = |text: String| {
        if team.leads() {
            report::print(&text);
        }
    };
    let arguments = all_or_none(group, arguments)?;
    let members = team.members()?;
    let hosts = team::hosts(&members);
    let mut times = Vec::new();

    // Only rank 0 needs the genomes; all ranks need the contigs.
    let (mut genomes, needs, files) = timed(&mut times, "read and count", || {
        let read = || -> Result<_> {
            let genomes = if team.leads() { read_all(&arguments.genomes)? } else { Vec::new() };
            let needs = survey::survey(&genomes);
            Ok((genomes, needs, read_all(&arguments.contigs)?))
        };
        all_or_none(&*team.patient, read())
    })?;
    let contigs = classify::contigs(files.clone());
    let own = private_bytes(&genomes, &contigs);
    let (buffer, taken) = obtain(team, &members, arguments.size, &genomes, &needs, own)?;
    if team.leads() {
        report::print(&choice(&genomes, &needs, taken));
    }
    genomes.truncate(taken);

    let start = buffer.as_ptr().as_ptr() as u64;
    let addresses = team.gather(&start.to_ne_bytes())?.into_iter().map(u64::from_ne_bytes);
    say(report::buffer(&buffer, &members, &addresses.collect::<Vec<_>>()));

    // One rank builds the index, and the other hosts receive its bytes.
    timed(&mut times, "build", || {
        let fill = |arena| index::build(arena, &genomes, needs[taken - 1].distinct);
        let built = if team.leads() { buffer.initialize(fill).map(drop) } else { Ok(()) };
        all_or_none(&*team.patient, built)
    })?;
    timed(&mut times, "replicate", || buffer.replicate(group, 0))?;
    let frozen = timed(&mut times, "freeze", || buffer.freeze(group))?;
    let root = buffer
        .root::<index::Index>()
        .and_then(|root| root.ok_or(Error::Fill { why: "the buffer has no index".into() }));
    let index = all_or_none(group, root)?;
    let used = all_or_none(group, buffer.high_water())?;
    say(report::index(index, used, genomes.iter().map(Source::bases).sum()));

    let mut words = vec![0; contigs.len() * Verdict::WORDS];
    timed(&mut times, "classify", || {
        let rank_of = classify::shares(&contigs, team.size());
        let known = index.genomes().count();
        for (i, contig) in contigs.iter().enumerate().filter(|(i, _)| rank_of[*i] == team.rank()) {
            let verdict = classify::classify(index, known, &contig.bases);
            words[i * Verdict::WORDS..][..Verdict::WORDS].copy_from_slice(&verdict.words());
        }
        // The verdicts of all ranks; the words of the other ranks are zero.
        if words.is_empty() { Ok(()) } else { group.all_reduce(&mut words, Reduce::Sum) }
    })?;
    let verdicts: Vec<Verdict> = words.chunks_exact(Verdict::WORDS).map(Verdict::from_words).collect();

    let sealed = team.gather(&[u8::from(*frozen.proof() == Proof::Sealed)])?;
    let mut by_host = vec![true; hosts];
    for (member, sealed) in members.iter().zip(sealed) {
        by_host[member.host_index] &= sealed == [1];
    }
    say(report::frozen(&frozen, &by_host));
    let delivery = pointer::deliver(team, &members, &buffer, index, &contigs)?;
    say(report::pointer(delivery.as_ref(), &members));

    // A page counts for a rank only after the rank has touched it, so each rank touches all pages.
    let touched =
        frozen.bytes().map(|bytes| bytes[..used as usize].iter().step_by(4096).map(|&b| u64::from(b)).sum());
    std::hint::black_box::<Option<u64>>(touched);
    group.barrier()?;
    let mine = report::pss(start..start + buffer.len() as u64);
    let mine = mine.map_err(|source| Error::Os { doing: "reading /proc/self/smaps".into(), source });
    let mut pss = [all_or_none(group, mine)?];
    group.all_reduce(&mut pss, Reduce::Sum)?;
    say(report::contigs(&files, &contigs, &verdicts, index));

    let checked = timed(&mut times, "check", || {
        let checked = if team.leads() { compare(&genomes, &contigs, &verdicts) } else { Ok(String::new()) };
        all_or_none(&*team.patient, checked)
    })?;
    let launched = std::env::var_os("HOSTBUF_JOB").is_some();
    let launch: Vec<_> =
        buffer.phases().into_iter().filter(|(_, t)| !t.is_zero()).map(|(p, t)| (p.name(), t)).collect();
    say(report::phases(launched, &launch, &times));
    say(report::memory(pss[0], used, team.size(), hosts));
    say(checked);
    Ok(())
}

/// Classifies all contigs again with a private index.
fn compare(genomes: &[Source], contigs: &[Contig], verdicts: &[Verdict]) -> Result<String> {
    let (need, available) = (check::bytes_needed(genomes, contigs), survey::available());
    if need > available {
        return Ok(format!(
            "NOT checked: a private index takes {}, and {} are available\n",
            Bytes(need),
            Bytes(available)
        ));
    }
    let expected = check::verdicts(genomes, contigs);
    let different = verdicts.iter().zip(&expected).position(|(a, b)| a != b);
    match different {
        None => Ok(format!(
            "checked: all {} contigs equal, by an index built privately in one process\n",
            count(contigs.len() as u64)
        )),
        Some(i) => Err(invalid(format!(
            "contig {i} ({}) is {:?} by the shared index, and {:?} by a private one",
            contigs[i].name, verdicts[i], expected[i]
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Arguments> {
        Arguments::parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_are_parsed() {
        let arguments = parse("--genomes a b --size 1.5G --contigs c").unwrap();
        assert_eq!((arguments.genomes.len(), arguments.contigs.len(), arguments.size), (2, 1, Some(3 << 29)));
        assert!(parse("--print-size --copies 4 --genomes a").unwrap().print_size);
        for (text, word) in [
            ("", "no genomes"),
            ("--genomes a", "no contigs"),
            ("--genomes a --contigs b --size", "--size lacks"),
            ("--genomes a --contigs b --size x", "\"x\""),
            ("--genomes a --copies 0", "--copies"),
            ("a", "no such option"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    /// Returns two genomes with a common stretch, and contigs of one, of the other, of both and of
    /// none.
    fn small() -> (Vec<Source>, Vec<Contig>) {
        let mut seed = 3;
        let mut random = |length: usize| -> Vec<u8> {
            let mut base = || {
                seed = kmer::spread(seed + 1);
                b"ACGT"[(seed >> 60 & 3) as usize]
            };
            (0..length).map(|_| base()).collect()
        };
        let [one, two, common, other] = [500, 400, 300, 200].map(&mut random);
        let source = |name: &str, parts: &[&[u8]]| {
            let record = fasta::FastaRecord { name: format!("{name}.1"), bases: parts.concat() };
            Source { name: name.into(), records: vec![record] }
        };
        let contig = |bases: &[u8]| Contig { file: 0, name: "c".into(), bases: bases.into() };
        let contigs = [&one[100..], &two[..200], &common, &other, &one[..20]].map(contig).into();
        (vec![source("one", &[&one, &common]), source("two", &[&common, b"N", &two])], contigs)
    }

    #[test]
    fn the_check_confirms_right_verdicts_and_detects_wrong_ones() {
        let (genomes, contigs) = small();
        let need = survey::survey(&genomes)[1];
        let buffer = HostBuffer::allocate(&hostbuf::job::Solo, BufferOptions::new(need.bytes)).unwrap();
        let index = buffer.initialize(|arena| index::build(arena, &genomes, need.distinct)).unwrap();
        let mut verdicts: Vec<Verdict> =
            contigs.iter().map(|c| classify::classify(index, 2, &c.bases)).collect();
        let seen: Vec<_> = verdicts.iter().map(|v| (v.kmers, v.best, v.genome, v.tied)).collect();
        assert_eq!(
            seen,
            [(370, 370, 0, 1), (170, 170, 1, 1), (270, 270, 0, 2), (170, 0, 0, 0), (0, 0, 0, 0)]
        );
        assert!(compare(&genomes, &contigs, &verdicts).unwrap().contains("all 5 contigs equal"));
        verdicts[1].best -= 1;
        assert!(compare(&genomes, &contigs, &verdicts).unwrap_err().to_string().contains("contig 1 (c)"));
    }
}
