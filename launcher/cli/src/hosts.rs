//! The hosts of a job, as a user writes them.

use std::path::Path;

use hostbuf::{Error, Result};

/// MPI counts ranks in an int.
const MOST_RANKS: usize = i32::MAX as usize;

/// A number of ranks, as a user writes it.
///
/// # Errors
/// What would be one, for people.
pub(crate) fn ranks(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n <= MOST_RANKS);
    number.ok_or_else(|| match text {
        // `-np 4`, by which mpiruns are called.
        "p" => "`-n 4` is meant, not -np".into(),
        _ => format!("a whole number of at most {MOST_RANKS} is meant"),
    })
}

/// One host and how many ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) slots: usize,
}

/// `h0:2,h1:2`; without a number one rank.
///
/// # Errors
/// [`Error::Invalid`].
pub(crate) fn parse(list: &str) -> Result<Vec<Host>> {
    let hosts: Result<Vec<Host>> = list.split(',').filter(|h| !h.is_empty()).map(one).collect();
    let hosts = hosts?;
    if hosts.is_empty() {
        return Err(Error::Invalid { what: format!("hosts \"{list}\": none is named") });
    }
    Ok(joined(hosts))
}

fn one(text: &str) -> Result<Host> {
    let wrong = || {
        let what =
            format!("host \"{text}\": a name, or name:ranks with at most {MOST_RANKS} ranks, is meant");
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

/// The same host named twice has the slots of both.
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

/// A host file: `h0 slots=2` (Open MPI) or `h0:2` (Hydra), one a line, `#` begins a comment.
///
/// # Errors
/// [`Error::Invalid`], [`Error::Os`].
pub(crate) fn from_file(path: &Path) -> Result<Vec<Host>> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::Os { doing: format!("reading the host file {}", path.display()), source })?;
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
                        "\"{word}\" in {}: a number from 1 to {MOST_RANKS} is meant",
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
pub(crate) fn names(hosts: &[Host]) -> String {
    hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>().join(",")
}

/// Returns the hosts with their slots, as `--host` reads them.
pub(crate) fn list(hosts: &[Host]) -> String {
    hosts.iter().map(|h| format!("{}:{}", h.name, h.slots)).collect::<Vec<_>>().join(",")
}

/// Where `ranks` ranks land when the engine fills the hosts in order, as all do by default.
pub(crate) fn used(hosts: &[Host], ranks: usize) -> Vec<Host> {
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
    fn lists_and_files() {
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
