//! The cause and the remedy of a failed start, from the lines that an engine prints on standard
//! error.

/// A failure that an engine's lines describe: a clause, and a sentence without its full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    pub(crate) cause: String,
    pub(crate) remedy: String,
}

/// A process that a signal has ended, as an engine describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndedProcess {
    pub(crate) host: String,
    pub(crate) signal: i32,
}

/// Returns whether a line comes from ssh, by which most engines reach other hosts, and means that
/// a host cannot be reached.
pub(super) fn is_of_ssh(line: &str) -> bool {
    line.starts_with("ssh: ")
        || line.contains("Host key verification failed")
        || (line.contains("Permission denied (") && line.ends_with(")."))
}

/// Describes the host that ssh cannot reach, if one of `lines` reports it.
pub(super) fn unreachable_host(lines: &[&str]) -> Option<Diagnosis> {
    let line = lines.iter().find(|line| is_of_ssh(line))?;
    Some(Diagnosis {
        cause: line.trim_end_matches('.').to_owned(),
        remedy: "Check the names of the hosts, and that ssh reaches each of them without a password".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_ssh_is_the_cause() {
        let unknown = "ssh: Could not resolve hostname h9: Name or service not known";
        let refused = "u@h9: Permission denied (publickey,password).";
        for (lines, cause) in [
            (&["a warning", unknown, "more"][..], unknown),
            (&[refused], "u@h9: Permission denied (publickey,password)"),
            (&["Host key verification failed."], "Host key verification failed"),
        ] {
            assert_eq!(unreachable_host(lines).map(|found| found.cause).as_deref(), Some(cause));
        }
        for other in ["an agent has ended", "hostbuf-agent: opening x: Permission denied (os error 13)"] {
            assert_eq!(unreachable_host(&[other]), None);
        }
    }
}
