//! The limit on the registrations of a cache.

use crate::environment;
use crate::error::{Bytes, Error, Result};
use hostbuf_os::{memlock, memory};

/// A hard limit, which is never exceeded, not even for a moment. It counts registrations from
/// before they are made until they are deregistered, including leased and invalidated ones.
///
/// ```
/// # use hostbuf_register::Budget;
/// let budget = Budget::new(1024).bytes(4 << 20);
/// assert_eq!((budget.registrations, budget.bytes), (1024, 4 << 20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// The largest number of registrations.
    pub registrations: usize,
    /// The largest number of bytes in all of them together, as the device counts them (page-locking
    /// counts whole pages).
    pub bytes: usize,
}

impl Budget {
    /// The largest allowed number of registrations of a cache.
    pub const MOST_REGISTRATIONS: usize = 1 << 20;

    /// Makes a limit of so many registrations, without a limit of their bytes.
    #[must_use]
    pub const fn new(registrations: usize) -> Budget {
        Budget { registrations, bytes: usize::MAX }
    }

    /// Sets the largest number of registrations.
    #[must_use]
    pub const fn registrations(self, registrations: usize) -> Budget {
        Budget { registrations, ..self }
    }

    /// Sets the largest number of bytes.
    #[must_use]
    pub const fn bytes(self, bytes: usize) -> Budget {
        Budget { bytes, ..self }
    }

    /// Reads `HOSTBUF_CACHE_REGISTRATIONS` (a number, 1024 by default) and `HOSTBUF_CACHE_BYTES` (a
    /// size such as `512M` or `2G`). The default size is half of the memory that this process may
    /// lock (`ulimit -l`), or an eighth of the host's memory if no limit applies, as for root.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names the variable and its value.
    pub fn from_environment() -> Result<Budget> {
        let registrations = environment::text("HOSTBUF_CACHE_REGISTRATIONS")?;
        Budget::read(registrations.as_deref(), environment::text("HOSTBUF_CACHE_BYTES")?.as_deref())
    }

    fn read(registrations: Option<&str>, bytes: Option<&str>) -> Result<Budget> {
        let registrations = match registrations {
            None => 1024,
            Some(text) => {
                let number =
                    text.trim().parse().ok().filter(|n| (1..=Budget::MOST_REGISTRATIONS).contains(n));
                number.ok_or_else(|| {
                    let most = Budget::MOST_REGISTRATIONS;
                    let what = format!(
                        "invalid HOSTBUF_CACHE_REGISTRATIONS \"{text}\": expected a number from 1 to {most}"
                    );
                    Error::invalid(what)
                })?
            }
        };
        let bytes = match bytes {
            None => default_bytes(),
            Some(text) => {
                let invalid = |why| Error::invalid(format!("invalid HOSTBUF_CACHE_BYTES \"{text}\": {why}"));
                let size: Bytes = text.parse().map_err(invalid)?;
                if size.0 == 0 {
                    return Err(Error::invalid(format!(
                        "invalid HOSTBUF_CACHE_BYTES \"{text}\": expected at least one byte"
                    )));
                }
                size.0 as usize
            }
        };
        Budget { registrations, bytes }.check()
    }

    /// Returns the budget if it has room for a registration.
    ///
    /// # Errors
    /// [`Error::Invalid`] that gives the budget.
    pub(super) fn check(self) -> Result<Budget> {
        if self.registrations == 0 || self.bytes == 0 {
            return Err(Error::invalid(format!(
                "invalid budget of {} registrations and {} bytes: expected at least one of each",
                self.registrations, self.bytes
            )));
        }
        if self.registrations > Budget::MOST_REGISTRATIONS {
            let most = Budget::MOST_REGISTRATIONS;
            return Err(Error::invalid(format!(
                "invalid budget of {} registrations: expected at most {most}",
                self.registrations
            )));
        }
        Ok(self)
    }
}

/// Returns the default number of bytes.
fn default_bytes() -> usize {
    match memlock::limit() {
        Some(limit) => (limit as usize / 2).max(4096),
        None => memory::meminfo("MemTotal").unwrap_or(8 << 30) as usize / 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_budgets_in_the_environment_are_named() {
        let read = |r, b| Budget::read(r, b);
        assert_eq!(read(Some("7"), Some("2G")).unwrap(), Budget { registrations: 7, bytes: 2 << 30 });
        assert_eq!(read(None, Some("1k")).unwrap().registrations, 1024);
        assert!(read(None, None).unwrap().bytes >= 4096);
        for (registrations, bytes, name) in [
            (Some("many"), None, "HOSTBUF_CACHE_REGISTRATIONS"),
            (None, Some("12Q"), "invalid HOSTBUF_CACHE_BYTES \"12Q\": unknown unit Q"),
            (Some("0"), None, "HOSTBUF_CACHE_REGISTRATIONS"),
            (Some("99999999"), None, "1 to 1048576"),
            (Some("99999999999999999999999"), None, "HOSTBUF_CACHE_REGISTRATIONS"),
            (None, Some("0"), "HOSTBUF_CACHE_BYTES"),
        ] {
            let error = read(registrations, bytes).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
