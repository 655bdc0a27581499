//! The log of the command and of the agents, on standard error.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The environment variable with the filter.
const FILTER: &str = "HOSTBUF_LOG";

/// Returns whether the user has set a filter.
#[must_use]
pub fn is_wanted() -> bool {
    std::env::var_os(FILTER).is_some()
}

/// Starts the log of this process: errors, or the messages for which `HOSTBUF_LOG` asks by a level
/// or by a list such as `warn,hostbuf=debug`. An invalid list is reported and ignored.
pub fn start() {
    start_with("");
}

/// Starts the log of this process, with the filter `default` if the user has set none.
pub fn start_with(default: &str) {
    let text = std::env::var(FILTER).unwrap_or_default();
    let text = if text.is_empty() { default.to_owned() } else { text };
    let errors = || Targets::new().with_default(LevelFilter::ERROR);
    let filter = if text.is_empty() { Ok(errors()) } else { text.parse::<Targets>() };
    let filter = filter.unwrap_or_else(|error| {
        crate::complain!("hostbuf: invalid {FILTER} \"{text}\": {error}");
        errors()
    });
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry().with(lines).with(filter).init();
}
