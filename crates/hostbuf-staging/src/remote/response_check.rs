//! The check of an answer to the request of a range.

use std::ops::Range;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER};

use super::content_range::ContentRange;
use super::object_version::ObjectVersion;
use super::range_client::RangeResponse;
use super::remote_error::RemoteProblem;
use super::web_hdfs;

/// The most bytes that are read of the text of an error.
const ERROR_TEXT: usize = 4096;
/// The longest time for which the text of an error is waited for.
const LONGEST_TEXT: Duration = Duration::from_secs(5);
/// The longest time that a server can ask to wait for.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The codes of S3 that refuse access with status 400: of credentials and signatures that are no
/// longer valid.
const REFUSALS: [&str; 4] = ["AccessDenied", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"];

/// An attempt that has failed.
#[derive(Debug)]
pub(super) struct FailedAttempt {
    pub(super) problem: RemoteProblem,
    /// The time that the server asks to wait for.
    pub(super) wait: Option<Duration>,
}

impl From<RemoteProblem> for FailedAttempt {
    fn from(problem: RemoteProblem) -> FailedAttempt {
        FailedAttempt { problem, wait: None }
    }
}

/// An answer with bytes from the beginning of the requested range on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AcceptedRange {
    /// The end of the bytes, which is at most that of the requested range.
    pub(super) end: u64,
    /// The length of the object, if the server states it.
    pub(super) total: Option<u64>,
}

/// Checks an answer by HTTP. `version` is that of the object, if it is known already: a server may
/// send a whole object as the answer to the range of all of its bytes.
pub(super) fn check_range(
    response: &RangeResponse,
    range: &Range<u64>,
    version: Option<&ObjectVersion>,
) -> Result<AcceptedRange, RemoteProblem> {
    let stated = response.headers().get(CONTENT_RANGE).map(|text| String::from_utf8_lossy(text.as_bytes()));
    let parsed = stated.as_deref().and_then(ContentRange::parse);
    let length = response.content_length();
    match (response.status(), parsed) {
        (StatusCode::PARTIAL_CONTENT | StatusCode::OK, Some(ContentRange { range: Some(sent), total })) => {
            let sends_length = length.is_none_or(|length| length == sent.end - sent.start);
            if sent.start != range.start || sent.end > range.end || !sends_length {
                let length = length.map_or(String::new(), |length| format!(", with {length} bytes"));
                let stated = format!("{}{length}", stated.unwrap_or_default());
                return Err(RemoteProblem::OtherRange { stated });
            }
            Ok(AcceptedRange { end: sent.end, total })
        }
        (StatusCode::PARTIAL_CONTENT, _) => {
            let stated = stated.map_or_else(|| "it states none".into(), std::borrow::Cow::into_owned);
            Err(RemoteProblem::OtherRange { stated })
        }
        (StatusCode::OK, _) => match (version, length) {
            (Some(version), Some(length)) if *range == (0..version.bytes) && length == version.bytes => {
                Ok(AcceptedRange { end: length, total: Some(length) })
            }
            // The first request of an object that turns out to be empty.
            (None, Some(0)) => Ok(AcceptedRange { end: 0, total: Some(0) }),
            _ => Err(RemoteProblem::NoRanges),
        },
        (StatusCode::RANGE_NOT_SATISFIABLE, parsed) => {
            match (version, parsed.and_then(|parsed| parsed.total)) {
                (None, Some(0)) => Ok(AcceptedRange { end: 0, total: Some(0) }),
                (Some(version), Some(total)) if version.bytes != total => {
                    let what = format!("it had {} bytes and has {total}", version.bytes);
                    Err(RemoteProblem::Changed { what })
                }
                // The range is within the object as it was, and not every server states the length.
                (Some(version), None) => {
                    let what = format!(
                        "it had {} bytes, and the range is beyond its end now (status 416)",
                        version.bytes
                    );
                    Err(RemoteProblem::Changed { what })
                }
                _ => Err(RemoteProblem::Status { status: 416, why: String::new() }),
            }
        }
        (status, _) => Err(RemoteProblem::Status { status: status.as_u16(), why: String::new() }),
    }
}

/// Checks an answer of WebHDFS, which has no header of the range.
pub(super) fn check_web_hdfs(
    response: &RangeResponse,
    range: &Range<u64>,
) -> Result<AcceptedRange, RemoteProblem> {
    let status = response.status();
    if !matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        return Err(RemoteProblem::Status { status: status.as_u16(), why: String::new() });
    }
    // A page of a portal, or a description, instead of the bytes.
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if ["text/html", "application/json"].iter().any(|page| kind.starts_with(page)) {
        return Err(RemoteProblem::OtherRange { stated: format!("a page of the type {kind}") });
    }
    let requested = range.end - range.start;
    match response.content_length() {
        Some(length) if length > requested => Err(RemoteProblem::TooLong),
        // The range is within the file, so a server that has the file sends all of it.
        Some(length) if length < requested => {
            Err(RemoteProblem::OtherRange { stated: format!("{length} bytes") })
        }
        _ => Ok(AcceptedRange { end: range.end, total: None }),
    }
}

/// Checks that the bytes are those of the object, not of a compressed form.
pub(super) fn check_encoding(response: &RangeResponse) -> Result<(), RemoteProblem> {
    match response.headers().get(CONTENT_ENCODING).map(|encoding| encoding.to_str().unwrap_or("unknown")) {
        None => Ok(()),
        Some(encoding) if encoding.eq_ignore_ascii_case("identity") => Ok(()),
        Some(encoding) => Err(RemoteProblem::Encoded { encoding: encoding.to_owned() }),
    }
}

/// Completes the problem of an answer by the text of its body and by its headers.
pub(super) async fn explain(
    mut response: RangeResponse,
    problem: RemoteProblem,
    limit: Duration,
) -> FailedAttempt {
    let RemoteProblem::Status { status, .. } = problem else { return problem.into() };
    let wait = response.headers().get(RETRY_AFTER).and_then(|text| text.to_str().ok()?.parse().ok());
    let wait = wait.map(|seconds| Duration::from_secs(seconds).min(LONGEST_WAIT));
    let mut body = Vec::new();
    let receive = async {
        while let Ok(Some(chunk)) = response.chunk(limit).await {
            body.extend_from_slice(&chunk[..chunk.len().min(ERROR_TEXT - body.len())]);
            if body.len() == ERROR_TEXT {
                break;
            }
        }
    };
    // A text that does not come leaves the status alone.
    let _ = tokio::time::timeout(LONGEST_TEXT, receive).await;
    if let Some(problem) = web_hdfs::exception(status, &body) {
        return FailedAttempt { problem, wait };
    }
    let code = element(&body, "Code").unwrap_or_default();
    let why = format!("status {status}{}{code}", if code.is_empty() { "" } else { ", " });
    let problem = match status {
        401 | 403 => RemoteProblem::Denied { why },
        400 if REFUSALS.contains(&code.as_str()) => RemoteProblem::Denied { why },
        404 | 410 => RemoteProblem::NotFound { why },
        _ => RemoteProblem::Status { status, why: code },
    };
    FailedAttempt { problem, wait }
}

/// Returns the text of an element of the XML with which S3 describes an error.
fn element(body: &[u8], name: &str) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once("</")?;
    let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic()) && value.len() <= 64;
    is_plain.then(|| value.to_owned())
}
