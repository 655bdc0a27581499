//! Files of HDFS by its REST interface, WebHDFS.

use std::ops::Range;

use reqwest::Url;
use serde_json::Value;

use super::remote_error::RemoteProblem;

/// A file of HDFS: `webhdfs://HOST:PORT/PATH`, or `swebhdfs://` with TLS. Parameters of the
/// address, such as `user.name` and `delegation`, are those of each request.
#[derive(Debug)]
pub(super) struct WebHdfs {
    /// The address without an operation.
    url: Url,
}

impl WebHdfs {
    pub(super) fn new(url: &Url) -> Result<WebHdfs, RemoteProblem> {
        let form = || RemoteProblem::Address { why: "expected webhdfs://HOST:PORT/PATH".into() };
        let scheme = if url.scheme() == "swebhdfs" { "https" } else { "http" };
        let rest = url.as_str().split_once("://").ok_or_else(form)?.1;
        let mut url: Url = format!("{scheme}://{rest}").parse().map_err(|_| form())?;
        if url.path().len() < 2 {
            return Err(form());
        }
        let path = format!("/webhdfs/v1{}", url.path());
        url.set_path(&path);
        Ok(WebHdfs { url })
    }

    fn operation(&self, name: &str, parameters: &[(&str, u64)]) -> Url {
        let mut url = self.url.clone();
        let mut query = url.query_pairs_mut();
        query.append_pair("op", name);
        for (name, value) in parameters {
            query.append_pair(name, &value.to_string());
        }
        drop(query);
        url
    }

    /// Returns the address of a range. The server redirects it to the one that has the data.
    pub(super) fn range(&self, range: &Range<u64>) -> Url {
        self.operation("OPEN", &[("offset", range.start), ("length", range.end - range.start)])
    }

    /// Returns the address of the whole file.
    pub(super) fn whole(&self) -> Url {
        self.operation("OPEN", &[])
    }

    /// Returns the address of the properties of the file.
    pub(super) fn status(&self) -> Url {
        self.operation("GETFILESTATUS", &[])
    }
}

/// Returns the number of bytes and the time of the last change from an answer to
/// [`WebHdfs::status`].
pub(super) fn parse_status(body: &[u8]) -> Result<(u64, String), RemoteProblem> {
    let invalid = || RemoteProblem::Status {
        status: 200,
        why: "the response is not a WebHDFS answer to GETFILESTATUS".into(),
    };
    let status: Value = serde_json::from_slice(body).map_err(|_| invalid())?;
    let status = status.get("FileStatus").ok_or_else(invalid)?;
    if status.get("type").and_then(Value::as_str) != Some("FILE") {
        return Err(RemoteProblem::NotFound { why: "it is a folder".into() });
    }
    let bytes = status.get("length").and_then(Value::as_u64).ok_or_else(invalid)?;
    let modified = status.get("modificationTime").map_or_else(String::new, Value::to_string);
    Ok((bytes, modified))
}

/// Returns the problem of an error of WebHDFS (`RemoteException`), if the body is one.
pub(super) fn exception(status: u16, body: &[u8]) -> Option<RemoteProblem> {
    let parsed: Value = serde_json::from_slice(body).ok()?;
    let exception = parsed.get("RemoteException")?;
    let field = |name| exception.get(name).and_then(Value::as_str).unwrap_or_default();
    let (class, message) = (field("exception"), field("message").lines().next().unwrap_or_default());
    let why = format!("status {status}, {class}: {message}");
    Some(match class {
        "FileNotFoundException" => RemoteProblem::NotFound { why },
        "AccessControlException" | "SecurityException" | "InvalidToken" => RemoteProblem::Denied { why },
        // Another server of the cluster will answer soon.
        "StandbyException" | "RetriableException" => RemoteProblem::Status { status: 503, why },
        _ => RemoteProblem::Status { status, why },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_operation_and_the_parameters() {
        let url: Url = "swebhdfs://me@name:9870/a/b%20c?user.name=x".parse().expect("a valid address");
        let file = WebHdfs::new(&url).expect("a valid address");
        let range = file.range(&(5..12));
        let expected = "https://me@name:9870/webhdfs/v1/a/b%20c?user.name=x&op=OPEN&offset=5&length=7";
        assert_eq!(range.as_str(), expected);
        let folder: Url = "webhdfs://name:9870/".parse().expect("a valid address");
        assert!(matches!(WebHdfs::new(&folder), Err(RemoteProblem::Address { .. })));
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        let status = |text: &str| parse_status(text.as_bytes());
        let file = r#"{"FileStatus":{"type":"FILE","length":7,"modificationTime":12}}"#;
        assert_eq!(status(file), Ok((7, "12".into())));
        for text in ["", "{}", "[]", r#"{"FileStatus":{"type":"FILE","length":-1}}"#] {
            assert!(matches!(status(text), Err(RemoteProblem::Status { .. })), "{text}");
        }
        let folder = r#"{"FileStatus":{"type":"DIRECTORY","length":0}}"#;
        assert!(matches!(status(folder), Err(RemoteProblem::NotFound { .. })));
        assert_eq!(exception(404, b"<html>"), None);
        let standby = br#"{"RemoteException":{"exception":"StandbyException","message":"one\ntwo"}}"#;
        let expected = RemoteProblem::Status { status: 503, why: "status 403, StandbyException: one".into() };
        assert_eq!(exception(403, standby), Some(expected));
    }
}
