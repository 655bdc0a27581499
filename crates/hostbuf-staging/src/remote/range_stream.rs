//! The bytes of a range, as they arrive.

use std::ops::Range;
use std::sync::Arc;

use bytes::BufMut;
use tokio::time::timeout;

use super::range_client::{RangeClient, RangeResponse};
use super::remote_error::{RemoteError, RemoteProblem};
use super::remote_object::RemoteObject;
use super::response_check::FailedAttempt;
use super::retries::Retries;

/// The bytes of a range, as they arrive. After a temporary failure, a further request goes on at
/// the first byte that is missing.
pub(super) struct RangeStream {
    object: Arc<RemoteObject>,
    client: RangeClient,
    requested: Range<u64>,
    /// The offset of the first byte that has not arrived.
    at: u64,
    /// The answer that is being received, and the end of its bytes.
    body: Option<(RangeResponse, u64)>,
    retries: Retries,
}

impl RangeStream {
    /// Makes the stream of a range that is within the object.
    pub(super) fn new(object: Arc<RemoteObject>, client: RangeClient, range: Range<u64>) -> RangeStream {
        let retries = Retries::new(&object.options);
        RangeStream { object, client, at: range.start, requested: range, body: None, retries }
    }

    /// Reads bytes into `into`, which has room for the rest of the range, or grows. Returns their
    /// number: 0 at the end of the range.
    pub(super) async fn read(&mut self, into: &mut impl BufMut) -> Result<usize, RemoteError> {
        while self.at < self.requested.end {
            match self.attempt(into).await {
                Ok(0) => {}
                Ok(bytes) => {
                    self.at += bytes as u64;
                    self.retries.received(bytes as u64);
                    return Ok(bytes);
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
        self.end().await.map(|()| 0).map_err(|problem| self.error(problem))
    }

    fn error(&self, problem: RemoteProblem) -> RemoteError {
        let (url, range) = (self.object.shown.clone(), Some(self.requested.clone()));
        RemoteError { url, range, attempts: self.retries.failures().max(1), problem }
    }

    /// Reads bytes: none between two answers. A cut does not count the bytes before it.
    async fn attempt(&mut self, into: &mut impl BufMut) -> Result<usize, FailedAttempt> {
        // The server has sent the beginning of the range only, as it has stated.
        if self.body.as_ref().is_some_and(|(_, end)| self.at == *end) {
            self.end().await?;
        }
        if self.body.is_none() {
            let missing = self.at..self.requested.end;
            let (response, accepted) = self.object.request(&self.client, &missing).await?;
            self.body = Some((response, accepted.end));
        }
        let limit = self.object.options.timeout;
        let Some((response, end)) = &mut self.body else { return Ok(0) };
        let missing = *end - self.at;
        match timeout(limit, response.read(into, missing, limit)).await {
            Err(_) => Err(RemoteProblem::Timeout { timeout: limit }.into()),
            Ok(Ok(0)) if missing > 0 => {
                let why = format!("{missing} bytes are missing");
                Err(RemoteProblem::Cut { received: 0, why }.into())
            }
            Ok(result) => Ok(result?),
        }
    }

    /// Receives the end of a body whose length was not stated, so that the connection can be used
    /// again.
    async fn end(&mut self) -> Result<(), RemoteProblem> {
        let Some((mut response, _)) = self.body.take() else { return Ok(()) };
        if response.content_length().is_some() {
            return Ok(());
        }
        let limit = self.object.options.timeout;
        match timeout(limit, response.chunk(limit)).await {
            Ok(Ok(Some(_))) => Err(RemoteProblem::TooLong),
            // All bytes are there. A connection without an end is closed.
            _ => Ok(()),
        }
    }
}
