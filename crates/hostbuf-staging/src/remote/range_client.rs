//! The client of the requests of one runtime.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::header::HeaderMap;
use reqwest::{Client, RequestBuilder, Response, StatusCode};

use super::get_client::GetClient;
use super::get_response::GetResponse;
use super::remote_error::RemoteProblem;
use super::request_problem::request_problem;

/// The bytes that are read at a time of a text.
const PART_OF_TEXT: usize = 8 << 10;

/// The client of the requests of one runtime. Clones have the same connections.
#[derive(Clone)]
pub(super) struct RangeClient {
    /// The client for redirects, proxies, and all that [`GetClient`] cannot send.
    pub(super) library: Client,
    pub(super) own: Arc<GetClient>,
    pub(super) proxies: Arc<Matcher>,
    pub(super) timeout: Duration,
}

/// A response of either client. Its body is received by the reads.
pub(super) enum RangeResponse {
    Own(Box<GetResponse>),
    Library { response: Response, is_redirected: bool },
}

impl RangeClient {
    /// Sends a request, and receives the head of the response. `may_use_own` permits [`GetClient`].
    pub(super) async fn send(
        &self,
        request: RequestBuilder,
        may_use_own: bool,
    ) -> Result<RangeResponse, RemoteProblem> {
        let request = request.build().map_err(|error| request_problem(error, self.timeout))?;
        if may_use_own && self.own.can_send(&request) && !self.has_proxy(request.url().as_str()) {
            let response = self.own.send(&request).await?;
            if !is_redirect(response.head.status) {
                return Ok(RangeResponse::Own(Box::new(response)));
            }
            tracing::debug!(status = %response.head.status, "a redirect, which the library follows");
        }
        let url = request.url().clone();
        let response = self.library.execute(request).await;
        let response = response.map_err(|error| request_problem(error, self.timeout))?;
        Ok(RangeResponse::Library { is_redirected: *response.url() != url, response })
    }

    fn has_proxy(&self, url: &str) -> bool {
        // An address that this parser refuses is left to the library.
        url.parse().map_or(true, |uri| self.proxies.intercept(&uri).is_some())
    }
}

/// Returns whether the library follows a response of this status.
fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

impl RangeResponse {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            RangeResponse::Own(response) => response.head.status,
            RangeResponse::Library { response, .. } => response.status(),
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        match self {
            RangeResponse::Own(response) => &response.head.headers,
            RangeResponse::Library { response, .. } => response.headers(),
        }
    }

    /// Returns the length of the body, if the server has stated it.
    pub(super) fn content_length(&self) -> Option<u64> {
        match self {
            RangeResponse::Own(response) => response.content_length(),
            RangeResponse::Library { response, .. } => response.content_length(),
        }
    }

    /// Returns whether another address has answered, to which the request was redirected.
    pub(super) fn is_redirected(&self) -> bool {
        matches!(self, RangeResponse::Library { is_redirected: true, .. })
    }

    /// Reads bytes of the body into `into`, if there is room for at most `most` and at least one.
    /// Returns their number: 0 at the end of the body.
    ///
    /// # Errors
    /// [`RemoteProblem::TooLong`] for more bytes than `most`.
    pub(super) async fn read(
        &mut self,
        into: &mut impl BufMut,
        most: u64,
        limit: Duration,
    ) -> Result<usize, RemoteProblem> {
        match self {
            RangeResponse::Own(response) => {
                response.read(&mut into.limit(usize::try_from(most).unwrap_or(usize::MAX))).await
            }
            RangeResponse::Library { response, .. } => {
                let chunk = loop {
                    match response.chunk().await.map_err(|error| request_problem(error, limit))? {
                        Some(chunk) if chunk.is_empty() => {}
                        chunk => break chunk.unwrap_or_default(),
                    }
                };
                if chunk.len() as u64 > most {
                    return Err(RemoteProblem::TooLong);
                }
                into.put_slice(&chunk);
                Ok(chunk.len())
            }
        }
    }

    /// Reads bytes of the body. Returns `None` at its end.
    pub(super) async fn chunk(&mut self, limit: Duration) -> Result<Option<Bytes>, RemoteProblem> {
        let mut part = BytesMut::with_capacity(PART_OF_TEXT);
        let bytes = self.read(&mut part, u64::MAX, limit).await?;
        Ok((bytes > 0).then(|| part.freeze()))
    }
}
