//! The hosts of a job from the command line or a file.

use std::path::Path;

use hostbuf::{Error, Result};

/// The largest number of ranks: MPI counts them in an `int`.
const MAX_RANKS: usize = i32::MAX as usize;

/// Parses a number of ranks.
///
/// # Errors
/// The end of the message to the user.
pub fn ranks(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n <= MAX_RANKS);
    number.ok_or_else(|| match text {
        // `-np 4`, by which mpiruns are called.
        "p" => "did you mean -n 4 instead of -np?".into(),
        _ => format!("expected a whole number of at most {MAX_RANKS}"),
    })
}

/// A host with its number of slots.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Host {
    /// The name that the engine knows.
    pub name: String,
    /// The number of ranks that it takes.
    pub slots: usize,
}

/// Parses a list such as `h0:2,h1:2`. A host without a number has one slot.
///
/// # Errors
/// [`Error::Invalid`].
pub fn parse(list: &str) -> Result<Vec<Host>> {
    let hosts: Result<Vec<Host>> = list.split(',').filter(|h| !h.is_empty()).map(one).collect();
    let hosts = hosts?;
    if hosts.is_empty() {
        return Err(Error::Invalid { what: format!("invalid hosts \"{list}\": the list names no host") });
    }
    Ok(joined(hosts))
}

fn one(text: &str) -> Result<Host> {
    let wrong = || {
        let what =
            format!("invalid host \"{text}\": expected NAME or NAME:RANKS with at most {MAX_RANKS} ranks");
        Error::Invalid { what }
    };
    let (name, slots) = match text.rsplit_once(':') {
        Some((name, slots)) => (name, ranks(slots).map_err(|_| wrong())?),
        None => (text, 1),
    };
    if name.is_empty() || slots == 0 || name.starts_with('-') || name.contains(char::is_whitespace) {
        return Err(wrong());
    }
    Ok(Host { name: name.into(), slots })
}

/// Adds up the slots of hosts that are named several times.
fn joined(hosts: Vec<Host>) -> Vec<Host> {
    let mut list: Vec<Host> = Vec::new();
    for host in hosts {
        match list.iter_mut().find(|h| h.name == host.name) {
            Some(known) => known.slots += host.slots,
            None => list.push(host),
        }
    }
    list
}

/// Reads a host file with lines such as `h0 slots=2` or `h0:2`. A `#` begins a comment.
///
/// # Errors
/// [`Error::Invalid`], [`Error::Os`].
pub fn from_file(path: &Path) -> Result<Vec<Host>> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::Os { doing: format!("reading the host file {}", path.display()), source })?;
    from_text(&text, path)
}

/// Parses the text of the host file `path`.
///
/// # Errors
/// [`Error::Invalid`].
pub fn from_text(text: &str, path: &Path) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        let mut host = one(first)?;
        for word in words {
            if let Some(slots) = word.strip_prefix("slots=") {
                let wrong = || Error::Invalid {
                    what: format!(
                        "invalid \"{word}\" in {}: expected a number of slots from 1 to {MAX_RANKS}",
                        path.display()
                    ),
                };
                host.slots = ranks(slots).ok().filter(|&s| s > 0).ok_or_else(wrong)?;
            }
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err(Error::Invalid { what: format!("the host file {} names no host", path.display()) });
    }
    Ok(joined(hosts))
}

/// Returns the names of the hosts, separated by commas.
pub fn names(hosts: &[Host]) -> String {
    hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(",")
}

/// Returns the hosts with their slots, as `--host` reads them.
pub fn list(hosts: &[Host]) -> String {
    hosts.iter().map(|h| format!("{}:{}", h.name, h.slots)).collect::<Vec<_>>().join(",")
}

/// Returns the hosts that get some of `ranks` ranks if the engine fills them in order, as all
/// engines do by default.
pub fn used(hosts: &[Host], ranks: usize) -> Vec<Host> {
    let mut left = ranks;
    let mut list = Vec::new();
    for host in hosts {
        if left == 0 {
            break;
        }
        list.push(host.clone());
        left = left.saturating_sub(host.slots);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lists_and_host_files_are_parsed() {
        let hosts = parse("h0:2,h1,h0:1").unwrap();
        assert_eq!(list(&hosts), "h0:3,h1:1");
        assert_eq!(list(&used(&hosts, 3)), "h0:3");
        assert_eq!(list(&used(&hosts, 4)), "h0:3,h1:1");
        for bad in ["", ",", "h0:0", "h0:2147483648", "h0:99999999999999999999", "h0:x", ":2", "-x:1", "a b"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let path = std::env::temp_dir().join(format!("hostbuf-hosts-{}", std::process::id()));
        std::fs::write(&path, "# all\nh0 slots=2\nh1:3 # two\n\nh2\n").unwrap();
        let hosts = from_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(list(&hosts), "h0:2,h1:3,h2:1");
        assert!(from_file(Path::new("/no/such/file")).is_err());
    }
}
