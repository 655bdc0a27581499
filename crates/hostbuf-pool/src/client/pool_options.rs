//! The options of a connection to a pool.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::error::PoolError;
use crate::socket_name::default_socket;

/// The variable with the [mode](PoolMode) of connections.
const ENV_MODE: &str = "HOSTBUF_POOL";

/// The behaviour without a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolMode {
    /// If there is no broker, the pool is one of this process alone, with ordinary memory.
    #[default]
    Optional,
    /// If there is no broker, connecting fails.
    Required,
    /// If there is no broker, the client starts one (`hostbuf broker`), which ends when it is
    /// unused.
    Start,
    /// The pool is one of this process alone.
    Private,
}

/// The options of a connection to a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOptions {
    /// The name of this client, for people and for producers that wait for it.
    pub name: String,
    /// The behaviour without a broker.
    pub mode: PoolMode,
    /// The abstract name of the broker's socket, without the leading zero byte.
    pub socket: String,
    /// The path of the broker's socket, instead of the abstract name.
    pub path: Option<PathBuf>,
    /// The time for which a request waits for the broker.
    pub timeout: Duration,
}

impl PoolOptions {
    /// The default of [`timeout`](PoolOptions::timeout).
    pub const TIMEOUT: Duration = Duration::from_secs(10);

    /// Makes the default options for a client of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> PoolOptions {
        PoolOptions {
            name: name.into(),
            mode: PoolMode::default(),
            socket: default_socket(),
            path: None,
            timeout: PoolOptions::TIMEOUT,
        }
    }

    /// Makes the options that `HOSTBUF_POOL` states: `optional`, `required`, `auto` (start a
    /// broker), `private`, `@NAME` (the abstract name of a socket) or `/PATH`.
    ///
    /// # Errors
    /// [`PoolError::Invalid`] for another value.
    pub fn from_environment(name: impl Into<String>) -> Result<PoolOptions, PoolError> {
        let options = PoolOptions::new(name);
        match std::env::var(ENV_MODE) {
            Ok(value) => options.with_value(&value),
            Err(std::env::VarError::NotPresent) => Ok(options),
            Err(std::env::VarError::NotUnicode(value)) => options.with_value(&value.to_string_lossy()),
        }
    }

    fn with_value(self, value: &str) -> Result<PoolOptions, PoolError> {
        match value.as_bytes().first() {
            None => Ok(self),
            Some(b'@') if value.len() > 1 => Ok(self.mode(PoolMode::Required).socket(&value[1..])),
            Some(b'/') => Ok(self.mode(PoolMode::Required).path(value)),
            _ => value.parse().map(|mode| self.mode(mode)),
        }
    }

    /// Sets the behaviour without a broker.
    #[must_use]
    pub fn mode(mut self, mode: PoolMode) -> PoolOptions {
        self.mode = mode;
        self
    }

    /// Sets the abstract name of the broker's socket.
    #[must_use]
    pub fn socket(mut self, name: impl Into<String>) -> PoolOptions {
        self.socket = name.into();
        self
    }

    /// Sets the path of the broker's socket.
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> PoolOptions {
        self.path = Some(path.into());
        self
    }

    /// Sets the time for which a request waits for the broker.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> PoolOptions {
        self.timeout = limit;
        self
    }

    /// Describes the command that starts a broker for a client with these options: `hostbuf broker
    /// --name left`.
    #[must_use]
    pub fn broker_command(&self) -> String {
        match &self.path {
            Some(path) => format!("hostbuf broker --path {}", path.display()),
            None if self.socket == default_socket() => "hostbuf broker, or HOSTBUF_POOL=auto".to_owned(),
            None => format!("hostbuf broker --name {}", self.socket),
        }
    }
}

impl FromStr for PoolMode {
    type Err = PoolError;

    fn from_str(text: &str) -> Result<PoolMode, PoolError> {
        match text {
            "optional" => Ok(PoolMode::Optional),
            "required" => Ok(PoolMode::Required),
            "auto" => Ok(PoolMode::Start),
            "private" => Ok(PoolMode::Private),
            other => Err(PoolError::Invalid {
                what: format!(
                    "invalid pool \"{other}\" ({ENV_MODE}): expected optional, required, auto, private, @NAME or /PATH"
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_of_the_variable_are_understood() {
        let of = |value: &str| PoolOptions::new("test").with_value(value);
        assert_eq!(of("").unwrap(), PoolOptions::new("test"));
        assert_eq!(of("auto").unwrap().mode, PoolMode::Start);
        assert_eq!(of("private").unwrap().mode, PoolMode::Private);
        let named = of("@mine").unwrap();
        assert_eq!((named.mode, named.socket.as_str()), (PoolMode::Required, "mine"));
        assert_eq!(of("/run/pool").unwrap().path, Some("/run/pool".into()));
        for wrong in ["yes", "@", "Auto"] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("\"{wrong}\"")) && error.contains("auto"), "{error}");
        }
    }
}
