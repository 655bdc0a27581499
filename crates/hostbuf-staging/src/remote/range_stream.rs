//! The bytes of a range, in the parts in which they arrive.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use reqwest::{Client, Response};
use tokio::time::timeout;

use super::http_client::request_problem;
use super::remote_error::{RemoteError, RemoteProblem};
use super::remote_object::RemoteObject;
use super::response_check::FailedAttempt;
use super::retries::Retries;

/// The bytes of a range, in the parts in which they arrive. After a temporary failure, a further
/// request goes on at the first byte that is missing.
pub(super) struct RangeStream {
    object: Arc<RemoteObject>,
    client: Client,
    requested: Range<u64>,
    /// The offset of the first byte that has not arrived.
    at: u64,
    /// The answer that is being received, and the end of its bytes.
    body: Option<(Response, u64)>,
    retries: Retries,
}

impl RangeStream {
    /// Makes the stream of a range that is within the object.
    pub(super) fn new(object: Arc<RemoteObject>, client: Client, range: Range<u64>) -> RangeStream {
        let retries = Retries::new(&object.options);
        RangeStream { object, client, at: range.start, requested: range, body: None, retries }
    }

    /// Returns the next part, or `None` at the end of the range.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, RemoteError> {
        while self.at < self.requested.end {
            match self.attempt().await {
                Ok(chunk) if chunk.is_empty() => {}
                Ok(chunk) => {
                    self.at += chunk.len() as u64;
                    self.retries.received(chunk.len() as u64);
                    return Ok(Some(chunk));
                }
                Err(mut failed) => {
                    self.body = None;
                    // Those of all attempts: the last one may have brought nothing.
                    if let RemoteProblem::Cut { received, .. } = &mut failed.problem {
                        *received = self.at - self.requested.start;
                    }
                    let again = self.retries.after(failed).await;
                    again.map_err(|problem| self.error(problem))?;
                }
            }
        }
        self.end().await.map(|()| None).map_err(|problem| self.error(problem))
    }

    fn error(&self, problem: RemoteProblem) -> RemoteError {
        let (url, range) = (self.object.shown.clone(), Some(self.requested.clone()));
        RemoteError { url, range, attempts: self.retries.failures().max(1), problem }
    }

    /// Receives a part. It is empty between two answers. A cut does not count the bytes before it.
    async fn attempt(&mut self) -> Result<Bytes, FailedAttempt> {
        if self.body.is_none() {
            let missing = self.at..self.requested.end;
            let (response, accepted) = self.object.request(&self.client, &missing).await?;
            self.body = Some((response, accepted.end));
        }
        let limit = self.object.options.timeout;
        let Some((response, end)) = &mut self.body else { return Ok(Bytes::new()) };
        match timeout(limit, response.chunk()).await {
            Err(_) => Err(RemoteProblem::Timeout { timeout: limit }.into()),
            Ok(Err(error)) => Err(request_problem(error, limit).into()),
            Ok(Ok(Some(chunk))) if chunk.len() as u64 > *end - self.at => Err(RemoteProblem::TooLong.into()),
            Ok(Ok(Some(chunk))) => Ok(chunk),
            // The server has sent the beginning of the range only, as it has stated.
            Ok(Ok(None)) if self.at == *end => {
                self.body = None;
                Ok(Bytes::new())
            }
            Ok(Ok(None)) => {
                let why = format!("{} bytes are missing", *end - self.at);
                Err(RemoteProblem::Cut { received: 0, why }.into())
            }
        }
    }

    /// Receives the end of a body whose length was not stated, so that the connection can be used
    /// again.
    async fn end(&mut self) -> Result<(), RemoteProblem> {
        let Some((mut response, _)) = self.body.take() else { return Ok(()) };
        if response.content_length().is_some() {
            return Ok(());
        }
        match timeout(self.object.options.timeout, response.chunk()).await {
            Ok(Ok(Some(chunk))) if !chunk.is_empty() => Err(RemoteProblem::TooLong),
            // All bytes are there. A connection without an end is closed.
            _ => Ok(()),
        }
    }
}
