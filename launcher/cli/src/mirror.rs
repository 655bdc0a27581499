//! `hostbuf mirror`: copies blocks between the pools of two hosts.

mod address;
#[cfg(not(feature = "rdma"))]
#[path = "mirror/no_rdma_device.rs"]
mod rdma_device;
#[cfg(feature = "rdma")]
mod rdma_device;
#[cfg(not(feature = "rdma"))]
mod rdma_program;
mod transport_report;

use std::io::{BufRead as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueHint;
use hostbuf::{Bytes, Error, Result};
use hostbuf_agent::report::end;
use hostbuf_mirror::{MirrorError, MirrorReceiver, MirrorReceiverOptions, MirrorSender, MirrorSenderOptions};
use hostbuf_pool::{Pool, PoolError, PoolMode, PoolOptions, ProducerOptions, Token};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::broker::stop_signals::StopSignals;
use address::{PeerAddress, listen_address, peer_address};
use rdma_device::RdmaDevice;
use transport_report::TransportReport;

/// Copy blocks from the pool of one host to that of another
///
/// With --listen it receives blocks until SIGTERM, SIGINT or SIGHUP, and publishes them in the pool
/// of this host. With --to it reads tokens from standard input, one in each line, sends their
/// blocks, and prints the token of each copy after it is published: a filter in front of any
/// transport. The peers do not authenticate each other, so the network must be trusted.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both sides are clients of the broker of their host: start hostbuf broker first, or set HOSTBUF_POOL=auto.")]
#[command(group = clap::ArgGroup::new("side").required(true))]
pub(crate) struct MirrorArguments {
    /// Receive blocks at this address: 10.0.0.2:7400, [fd00::2]:7400
    #[arg(long, value_name = "ADDRESS:PORT", value_hint = ValueHint::Other, group = "side")]
    #[arg(value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Send the blocks of the tokens on standard input to this address, or host name
    #[arg(long, value_name = "ADDRESS:PORT", value_hint = ValueHint::Hostname, group = "side")]
    #[arg(value_parser = peer_address)]
    to: Option<PeerAddress>,
    /// Use at most this much memory for the current blocks; a frame has at most half of it: 512M,
    /// 1G
    #[arg(long, value_name = "SIZE", value_hint = ValueHint::Other, default_value = "240M")]
    #[arg(allow_negative_numbers = true, conflicts_with = "to")]
    limit: Bytes,
    /// Keep the last FRAMES copies for late readers. The default is half of the blocks
    #[arg(long, value_name = "FRAMES", value_hint = ValueHint::Other)]
    #[arg(value_parser = frames, allow_negative_numbers = true, conflicts_with = "to")]
    retain: Option<u32>,
    /// Give each frame this time until its copy is published: 10, 10s, 0.5
    #[arg(long, value_name = "SECONDS", value_hint = ValueHint::Other, default_value = "10")]
    #[arg(value_parser = frame_time, allow_negative_numbers = true, conflicts_with = "listen")]
    deadline: Duration,
    /// Transfer the bytes of frames by RDMA, on the nearest device or on DEVICE, if the other side
    /// also has --rdma: --rdma, --rdma=mlx5_0. Otherwise they go by TCP, and the sender prints the
    /// reason
    #[arg(long, value_name = "DEVICE", value_hint = ValueHint::Other, num_args = 0..=1, require_equals = true)]
    rdma: Option<Option<String>>,
}

/// The number of blocks that the receiver has beyond those that it retains.
const FREE_BLOCKS: u32 = 4;
/// The length of the smallest block in bytes: a page.
const BLOCK_BYTES: u64 = 4096;
/// The longest time for a frame.
const MAX_DEADLINE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Parses a number of frames.
///
/// # Errors
/// The end of the message to the user.
fn frames(text: &str) -> std::result::Result<u32, String> {
    let most = ProducerOptions::MAX_BLOCKS - 1;
    let frames = text.parse().ok().filter(|frames| (1..=most).contains(frames));
    frames.ok_or_else(|| format!("expected a number of frames from 1 to {most}"))
}

/// Parses the time for a frame.
///
/// # Errors
/// The end of the message to the user.
fn frame_time(text: &str) -> std::result::Result<Duration, &'static str> {
    let time = crate::broker::seconds(text).ok().filter(|time| !time.is_zero() && *time <= MAX_DEADLINE);
    time.ok_or(
        "expected a number of seconds above 0 and at most 2592000 (30 days), for example 10, 10s or 0.5",
    )
}

/// Receives until a signal comes, or sends until the end of standard input.
pub fn run(arguments: &MirrorArguments) -> ExitCode {
    let done = match (&arguments.listen, &arguments.to) {
        (Some(address), _) => listen(*address, arguments).map(|()| true),
        (None, Some(address)) => send(&address.0, arguments),
        (None, None) => Err(Error::Invalid { what: "--listen or --to is required".into() }),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => end("hostbuf mirror", error.class(), &error),
    }
}

/// Opens the RDMA device, if one is requested.
fn open_device(arguments: &MirrorArguments) -> Result<Option<RdmaDevice>> {
    arguments.rdma.as_ref().map(|name| RdmaDevice::open(name.as_deref())).transpose()
}

/// Connects to the broker of this host.
fn connect() -> Result<Pool> {
    let invalid = |error: PoolError| match error {
        PoolError::Os { doing, source } => Error::Os { doing, source },
        other => Error::Invalid { what: other.to_string() },
    };
    let mut options = PoolOptions::from_environment("mirror").map_err(invalid)?;
    if matches!(options.mode, PoolMode::Optional | PoolMode::Private) {
        // A pool of this process alone has no other readers.
        options = options.mode(PoolMode::Required);
    }
    Pool::connect(options).map_err(invalid)
}

/// Returns the options of a receiver that uses at most `limit`, and retains the last `retain`
/// copies.
///
/// # Errors
/// [`Error::Invalid`] for a limit that allows no frame, or fewer copies.
fn receiver_options(limit: Bytes, retain: Option<u32>) -> Result<MirrorReceiverOptions> {
    let most_blocks = limit.0 / BLOCK_BYTES;
    if most_blocks < 2 {
        let what = format!(
            "--limit {limit} is too small: a receiver has at least two blocks of 4 KiB, so give it at least 8K"
        );
        return Err(Error::Invalid { what });
    }
    let options = MirrorReceiverOptions::new().limit(limit.0).block_bytes(BLOCK_BYTES);
    let Some(retain) = retain else { return Ok(options) };
    if u64::from(retain) >= most_blocks {
        let what = format!(
            "--retain {retain} is more than --limit {limit} allows: expected at most {} with blocks of 4 KiB; lower --retain, or raise --limit",
            most_blocks - 1
        );
        return Err(Error::Invalid { what });
    }
    Ok(options.retain(retain).blocks((retain + FREE_BLOCKS).min(ProducerOptions::MAX_BLOCKS)))
}

fn listen(address: SocketAddr, arguments: &MirrorArguments) -> Result<()> {
    // Before there is a thread, so that all of them block the signals.
    let stop = StopSignals::block()?;
    let mut options = receiver_options(arguments.limit, arguments.retain)?;
    // A build without RDMA becomes another program here.
    let device = open_device(arguments)?;
    let by_rdma = device.as_ref().map_or_else(String::new, |device| format!(", RDMA on {}", device.name()));
    if let Some(device) = &device {
        options = device.of_receiver(options);
    }
    let receiver = MirrorReceiver::listen(&connect()?, address, options).map_err(mirror_error)?;
    say(&format!("listening at {} (limit {}{by_rdma})", receiver.address(), arguments.limit));
    let mut signals = [PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut signals, PollTimeout::NONE) {
            Ok(_) => {
                if device.is_some() {
                    say(&receiver_report(&receiver).to_string());
                }
                return Ok(());
            }
            Err(nix::Error::EINTR) => {}
            Err(errno) => {
                return Err(Error::Os { doing: "waiting for a signal".into(), source: errno.into() });
            }
        }
    }
}

/// Prints a line on standard output, also if nobody reads it.
fn say(line: &str) {
    let _ = std::io::stdout().write_all(format!("hostbuf mirror: {line}\n").as_bytes());
    let _ = std::io::stdout().flush();
}

fn receiver_report(receiver: &MirrorReceiver) -> TransportReport {
    let counters = receiver.counters();
    let (by_rdma, by_tcp) = (counters.read, counters.published - counters.read);
    TransportReport { by_rdma, copied: 0, by_tcp, tcp_reason: receiver.tcp_reason() }
}

fn sender_report(sender: &MirrorSender) -> TransportReport {
    let counters = sender.counters();
    let (by_rdma, copied, by_tcp) = (counters.read + counters.copied, counters.copied, counters.streamed);
    TransportReport { by_rdma, copied, by_tcp, tcp_reason: sender.tcp_reason() }
}

/// Sends the blocks of all tokens. Returns whether all copies were published.
fn send(address: &str, arguments: &MirrorArguments) -> Result<bool> {
    let device = open_device(arguments)?;
    let mut options = MirrorSenderOptions::new();
    if let Some(device) = &device {
        options = device.of_sender(options);
    }
    let pool = connect()?;
    let sender = MirrorSender::connect(address, options).map_err(mirror_error)?;
    if let Some(device) = &device {
        // Standard output is for tokens.
        match sender.tcp_reason() {
            None => hostbuf_agent::complain!(
                "hostbuf mirror: connected to {} (RDMA on {})",
                sender.peer(),
                device.name()
            ),
            Some(why) => {
                hostbuf_agent::complain!("hostbuf mirror: connected to {} (TCP: {why})", sender.peer());
            }
        }
    }
    let os = |doing: &'static str| move |source| Error::Os { doing: doing.into(), source };
    let mut all_published = true;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(os("reading standard input"))?;
        let copy = copy(&pool, &sender, line.trim(), arguments.deadline);
        let text = copy.unwrap_or_else(|why| {
            hostbuf_agent::complain!("hostbuf mirror: {why}");
            all_published = false;
            // Lines of tokens and of copies stay side by side.
            String::new()
        });
        let mut output = std::io::stdout().lock();
        let written = writeln!(output, "{text}").and_then(|()| output.flush());
        written.map_err(os("writing to standard output"))?;
    }
    if device.is_some() {
        hostbuf_agent::complain!("hostbuf mirror: {}", sender_report(&sender));
    }
    Ok(all_published)
}

fn copy(
    pool: &Pool,
    sender: &MirrorSender,
    token: &str,
    limit: Duration,
) -> std::result::Result<String, String> {
    let token: Token = token.parse().map_err(|error| format!("\"{token}\": {error}"))?;
    let deadline = Instant::now().checked_add(limit).ok_or("the deadline is beyond the clock")?;
    sender.send(pool, &token, deadline).map(|copy| copy.to_string()).map_err(|error| error.to_string())
}

fn mirror_error(error: MirrorError) -> Error {
    match error {
        MirrorError::Os { doing, source } => Error::Os { doing, source },
        other => Error::Invalid { what: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, frame_time, frames, receiver_options};

    #[test]
    fn a_limit_allows_two_blocks_and_the_retained_copies() {
        let refusal = |limit, retain| receiver_options(Bytes(limit), retain).unwrap_err().to_string();
        assert!(receiver_options(Bytes(8192), None).is_ok());
        assert!(receiver_options(Bytes(8192), Some(1)).is_ok());
        assert!(refusal(8191, None).contains("give it at least 8K"));
        assert!(refusal(8192, Some(2)).contains("at most 1 with"));
        assert!(receiver_options(Bytes(1 << 30), Some(65535)).is_ok_and(|options| options.blocks == 65536));
    }

    #[test]
    fn a_frame_has_some_time_and_at_least_one_copy_is_retained() {
        assert!(frame_time("0.5").is_ok() && frame_time("2592000s").is_ok());
        assert!(["", "0", "-1", "1e300", "2592001", "NaN"].iter().all(|text| frame_time(text).is_err()));
        assert!(frames("1").is_ok() && frames("65535").is_ok());
        assert!(["", "0", "-1", "x", "65536"].iter().all(|text| frames(text).is_err()));
    }
}
