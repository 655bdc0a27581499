//! An object of a server, with its version.

use std::ops::Range;
use std::time::Duration;

use tokio::time::timeout;

use super::object_address::ObjectAddress;
use super::object_version::ObjectVersion;
use super::range_client::{RangeClient, RangeResponse};
use super::remote_error::{RemoteError, RemoteProblem};
use super::remote_options::RemoteOptions;
use super::response_check::{
    AcceptedRange, FailedAttempt, check_encoding, check_range, check_web_hdfs, explain,
};
use super::retries::Retries;
use super::web_hdfs::{WebHdfs, parse_status};

/// The most bytes of an answer of WebHDFS that describes a file.
const STATUS_BYTES: usize = 64 << 10;

/// An object of a server, with the version that it had when it was opened.
#[derive(Debug)]
pub(super) struct RemoteObject {
    pub(super) address: ObjectAddress,
    /// The address for messages.
    pub(super) shown: String,
    pub(super) version: ObjectVersion,
    pub(super) options: RemoteOptions,
    /// True if the first request was redirected, as all further ones may be.
    is_redirected: bool,
}

impl RemoteObject {
    /// Asks the server for the version of an object.
    pub(super) async fn open(
        client: RangeClient,
        address: ObjectAddress,
        shown: String,
        options: RemoteOptions,
    ) -> Result<RemoteObject, RemoteError> {
        let mut retries = Retries::new(&options);
        let limit = options.timeout;
        loop {
            let version = match &address {
                ObjectAddress::WebHdfs(file) => web_hdfs_version(&client, file, limit).await,
                _ => http_version(&client, &address, limit).await,
            };
            let failed = match version {
                Ok((version, is_redirected)) => {
                    return Ok(RemoteObject { address, shown, version, options, is_redirected });
                }
                Err(failed) => failed,
            };
            if let Err(problem) = retries.after(failed).await {
                return Err(RemoteError { url: shown, range: None, attempts: retries.failures(), problem });
            }
        }
    }

    /// Requests a range, and checks the head of the answer.
    pub(super) async fn request(
        &self,
        client: &RangeClient,
        range: &Range<u64>,
    ) -> Result<(RangeResponse, AcceptedRange), FailedAttempt> {
        let response = send(client, &self.address, range, self.options.timeout, !self.is_redirected).await?;
        let accepted = match self.address {
            ObjectAddress::WebHdfs(_) => check_web_hdfs(&response, range),
            _ => check_range(&response, range, Some(&self.version)),
        };
        let accepted = match accepted.and_then(|accepted| check_encoding(&response).map(|()| accepted)) {
            Ok(accepted) => accepted,
            Err(problem) => return Err(explain(response, problem, self.options.timeout).await),
        };
        match self.version.difference(response.headers(), accepted.total) {
            Some(what) => Err(RemoteProblem::Changed { what }.into()),
            None => Ok((response, accepted)),
        }
    }
}

/// Sends the request of a range, and waits for the head of the answer.
async fn send(
    client: &RangeClient,
    address: &ObjectAddress,
    range: &Range<u64>,
    limit: Duration,
    may_use_own: bool,
) -> Result<RangeResponse, RemoteProblem> {
    let request = match timeout(limit, address.request(&client.library, range)).await {
        Ok(request) => request?,
        Err(_) => {
            let why = format!("the service that gives them sent nothing for {limit:?}");
            return Err(RemoteProblem::Credentials { why });
        }
    };
    within(limit, client.send(request, may_use_own)).await
}

/// Waits for a part of an answer.
async fn within<T>(
    limit: Duration,
    part: impl Future<Output = Result<T, RemoteProblem>>,
) -> Result<T, RemoteProblem> {
    match timeout(limit, part).await {
        Ok(result) => result,
        Err(_) => Err(RemoteProblem::Timeout { timeout: limit }),
    }
}

/// Asks for the first byte of an object, since addresses that are signed for GET are not valid for
/// HEAD. Also returns whether the request was redirected.
async fn http_version(
    client: &RangeClient,
    address: &ObjectAddress,
    limit: Duration,
) -> Result<(ObjectVersion, bool), FailedAttempt> {
    let mut response = send(client, address, &(0..1), limit, false).await?;
    let mut accepted = check_range(&response, &(0..1), None);
    // Some servers refuse each range of an empty object without the length.
    if matches!(accepted, Err(RemoteProblem::Status { status: 416, .. })) {
        let whole = address.whole(&client.library).await?;
        let whole = within(limit, client.send(whole, false)).await?;
        if whole.content_length() == Some(0) && whole.status().is_success() {
            (response, accepted) = (whole, Ok(AcceptedRange { end: 0, total: Some(0) }));
        }
    }
    let accepted = match accepted {
        Ok(accepted) => accepted,
        Err(problem) => return Err(explain(response, problem, limit).await),
    };
    check_encoding(&response)?;
    let bytes = accepted.total.ok_or(RemoteProblem::NoLength)?;
    Ok((ObjectVersion::new(bytes, response.headers()), response.is_redirected()))
}

async fn web_hdfs_version(
    client: &RangeClient,
    file: &WebHdfs,
    limit: Duration,
) -> Result<(ObjectVersion, bool), FailedAttempt> {
    let request = client.library.get(file.status());
    let mut response = within(limit, client.send(request, false)).await?;
    if !response.status().is_success() {
        let problem = RemoteProblem::Status { status: response.status().as_u16(), why: String::new() };
        return Err(explain(response, problem, limit).await);
    }
    let mut body = Vec::new();
    while let Some(chunk) = within(limit, response.chunk(limit)).await? {
        body.extend_from_slice(&chunk);
        if body.len() > STATUS_BYTES {
            let why = format!("its answer to GETFILESTATUS has more than {STATUS_BYTES} bytes");
            return Err(RemoteProblem::Status { status: 200, why }.into());
        }
    }
    let (bytes, modified) = parse_status(&body)?;
    tracing::debug!(bytes, modified, "a file of HDFS");
    // The name node redirects each request to a data node.
    Ok((ObjectVersion { bytes, ..ObjectVersion::default() }, true))
}
