//! `hostbuf broker`: serves the pool of this user.

mod open_files;
pub(crate) mod stop_signals;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueHint;
use hostbuf::{Bytes, Error, ErrorClass, Result};
use hostbuf_agent::report::end;
use hostbuf_os::socket;
use hostbuf_pool::{Broker, BrokerOptions, PoolError};

use stop_signals::StopSignals;

/// Serve the pool of this user: make the memory that its processes share block by block
///
/// A producer writes into a block, and readers in other processes use the block in place. The
/// broker makes the memory within its limits, notices when a process ends, and takes back what the
/// process held. No block passes through it. It serves the processes of its own user until SIGTERM,
/// SIGINT or SIGHUP. Its clients keep their blocks then, and report them to the next broker.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Programs find the broker by themselves. With HOSTBUF_POOL=auto the first of them starts one, which ends when it is \
unused. hostbuf stat shows the pool, its clients, and the holders of each block.")]
pub(crate) struct BrokerArguments {
    /// Make at most this much memory for all clients together: 512M, 1G
    #[arg(long, value_name = "SIZE", value_hint = ValueHint::Other, default_value = "1G")]
    #[arg(allow_negative_numbers = true)]
    limit: Bytes,
    /// Make at most this much memory for one client. The default is 256M, or the limit if that is
    /// lower
    #[arg(long, value_name = "SIZE", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    per_client: Option<Bytes>,
    /// Allow at most this much GPU memory for all clients together: 512M, 1G, or 0 for none.
    /// The clients allocate this memory, and the broker counts it
    #[arg(long, value_name = "SIZE", value_hint = ValueHint::Other, default_value = "1G")]
    #[arg(allow_negative_numbers = true)]
    gpu_limit: Bytes,
    /// Allow at most this much GPU memory for one client. The default is 256M, or the limit if
    /// that is lower
    #[arg(long, value_name = "SIZE", value_hint = ValueHint::Other, allow_negative_numbers = true)]
    gpu_per_client: Option<Bytes>,
    /// End when there has been neither a client nor a segment for this time: 60, 60s; by default
    /// the broker stays
    #[arg(long, value_name = "SECONDS", value_hint = ValueHint::Other)]
    #[arg(value_parser = seconds, allow_negative_numbers = true)]
    idle: Option<Duration>,
    /// Keep the published blocks of a producer for this time after its end, for late readers
    #[arg(long, value_name = "SECONDS", value_hint = ValueHint::Other, default_value = "5")]
    #[arg(value_parser = seconds, allow_negative_numbers = true)]
    linger: Duration,
    /// Listen on this abstract name instead of hostbuf-pool-UID. Clients find it by
    /// HOSTBUF_POOL=@NAME
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    name: Option<String>,
    /// Listen at this path too, which containers mount. Clients find it by HOSTBUF_POOL=/PATH
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    path: Option<PathBuf>,
    /// Print the clients that come and go, and warnings
    #[arg(short, long)]
    verbose: bool,
}

/// Parses a time: `60`, `60s` or `0.5`.
///
/// # Errors
/// The end of the message to the user.
pub(crate) fn seconds(text: &str) -> std::result::Result<Duration, &'static str> {
    let expected = "expected a number of seconds, for example 60, 60s or 0.5";
    let number: f64 = text.strip_suffix('s').unwrap_or(text).trim_end().parse().map_err(|_| expected)?;
    Duration::try_from_secs_f64(number).map_err(|_| expected)
}

impl BrokerArguments {
    /// Returns the filter of the log if the user has set none.
    pub(crate) fn log_filter(&self) -> &'static str {
        if self.verbose { "warn,hostbuf_pool=debug" } else { "" }
    }

    /// Returns the options of the broker.
    ///
    /// # Errors
    /// [`Error::Invalid`] for limits that allow no memory, and for a name that no socket can have.
    fn options(self) -> Result<BrokerOptions> {
        let invalid = |what: String| Err(Error::Invalid { what });
        let Bytes(limit) = self.limit;
        let Bytes(per_client) = self.per_client.unwrap_or(Bytes(BrokerOptions::PER_CLIENT.min(limit)));
        for (option, bytes) in [("--limit", limit), ("--per-client", per_client)] {
            if bytes == 0 {
                return invalid(format!(
                    "{option} 0: the pool would have no memory; state a size, e.g. 256M"
                ));
            }
        }
        if per_client > limit {
            return invalid(format!(
                "--per-client {} is more than --limit {}: raise --limit, or lower --per-client",
                Bytes(per_client),
                self.limit
            ));
        }
        let Bytes(gpu_limit) = self.gpu_limit;
        let gpu_default = Bytes(BrokerOptions::PER_CLIENT.min(gpu_limit));
        let Bytes(gpu_per_client) = self.gpu_per_client.unwrap_or(gpu_default);
        if gpu_per_client > gpu_limit {
            return invalid(format!(
                "--gpu-per-client {} is more than --gpu-limit {}: raise --gpu-limit, or lower --gpu-per-client",
                Bytes(gpu_per_client),
                self.gpu_limit
            ));
        }
        let mut options = BrokerOptions::new().limit(limit).per_client(per_client).linger(self.linger);
        options = options.gpu_limit(gpu_limit).gpu_per_client(gpu_per_client);
        options.idle = self.idle;
        if let Some(name) = self.name {
            if name.is_empty() || name.starts_with('@') || !socket::is_name(&name) {
                return invalid(format!(
                    "invalid --name \"{name}\": expected 1 to 107 bytes without NUL; the @ of HOSTBUF_POOL=@NAME is not a part of it"
                ));
            }
            options = options.name(name);
        }
        if let Some(path) = self.path {
            let absolute = std::path::absolute(&path).map_err(|source| Error::Os {
                doing: format!("finding the folder of {}", path.display()),
                source,
            })?;
            options = options.path(absolute);
        }
        Ok(options)
    }
}

/// Serves until a signal ends the broker, or until it was unused for its idle time.
pub fn run(arguments: BrokerArguments) -> ExitCode {
    let failed = |class: ErrorClass, error: &dyn std::fmt::Display| end("hostbuf broker", class, error);
    let options = match arguments.options() {
        Ok(options) => options,
        Err(error) => return failed(error.class(), &error),
    };
    open_files::raise_limit();
    // Before the sockets exist: a signal that comes now ends the broker in order.
    let stop = match StopSignals::block() {
        Ok(stop) => stop,
        Err(error) => return failed(error.class(), &error),
    };
    match serve(&options, &stop) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(class(&error), &error),
    }
}

fn serve(options: &BrokerOptions, stop: &StopSignals) -> std::result::Result<(), PoolError> {
    use std::os::fd::AsFd;
    let mut broker = Broker::open(options)?;
    let line = format!(
        "hostbuf broker: listening on {} (limit {}, {} for each client)\n",
        broker.addresses().join(" and "),
        Bytes(options.limit),
        Bytes(options.per_client)
    );
    // The broker serves even if nobody reads this line.
    let _ = std::io::stdout().write_all(line.as_bytes());
    let _ = std::io::stdout().flush();
    broker.serve(stop.as_fd())
}

/// Returns the class of an error, which is the exit status.
fn class(error: &PoolError) -> ErrorClass {
    match error {
        PoolError::Invalid { .. } => ErrorClass::Invalid,
        PoolError::Os { .. } => ErrorClass::Os,
        _ => ErrorClass::General,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: BrokerArguments,
    }

    fn options(words: &[&str]) -> Result<BrokerOptions> {
        let line = Line::try_parse_from([&["broker"], words].concat()).expect("valid words");
        line.arguments.options()
    }

    #[test]
    fn the_defaults_are_those_of_the_library() {
        assert_eq!(options(&[]).unwrap(), BrokerOptions::new());
        let small = options(&["--limit", "100M"]).unwrap();
        assert_eq!((small.limit, small.per_client), (100 << 20, 100 << 20));
    }

    #[test]
    fn times_are_seconds() {
        let times = options(&["--idle", "60s", "--linger", "0.5"]).unwrap();
        assert_eq!((times.idle, times.linger), (Some(Duration::from_secs(60)), Duration::from_millis(500)));
        for wrong in ["", "s", "-1", "1m", "inf", "nan"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn impossible_limits_and_names_are_refused() {
        for (words, part) in [
            (["--limit", "0"], "--limit 0: the pool would have no memory"),
            (["--per-client", "2G"], "--per-client 2 GiB is more than --limit 1 GiB"),
            (["--name", "@mine"], "invalid --name \"@mine\""),
            (["--name", ""], "invalid --name"),
        ] {
            let error = options(&words).unwrap_err();
            assert!(error.class() == ErrorClass::Invalid && error.to_string().contains(part), "{error}");
        }
    }
}
