//! The address of an object, by the protocol of its server.

use std::ops::Range;

use reqwest::header::RANGE;
use reqwest::{Client, RequestBuilder, Url};

use super::http_client::HttpClients;
use super::remote_error::{RemoteError, RemoteProblem};
use super::remote_options::RemoteOptions;
use super::s3_signer::S3Signer;
use super::shown_url::{shown, shown_text};
use super::web_hdfs::WebHdfs;

/// The address of an object.
#[derive(Debug)]
pub(super) enum ObjectAddress {
    Http(Url),
    S3(Box<S3Signer>),
    WebHdfs(WebHdfs),
}

/// The schemes of addresses.
const SCHEMES: &str = "expected http://, https://, s3://, webhdfs:// or swebhdfs://";

impl ObjectAddress {
    /// Parses an address whose scheme is one of `schemes`. Returns it with its form for messages.
    pub(super) fn parse(
        text: &str,
        schemes: &[&str],
        options: &RemoteOptions,
        clients: &HttpClients,
    ) -> Result<(ObjectAddress, String), RemoteError> {
        let not_parsed = |error| {
            let why = format!("{error}: {SCHEMES}");
            RemoteError::before(shown_text(text), RemoteProblem::Address { why })
        };
        let url: Url = text.parse().map_err(not_parsed)?;
        let form = if url.has_host() { shown(&url) } else { shown_text(text) };
        let failed = |problem| RemoteError::before(&form, problem);
        let invalid = |why: String| failed(RemoteProblem::Address { why });
        let scheme = url.scheme();
        if !schemes.is_empty() && !schemes.contains(&scheme) {
            let expected = schemes.join(":// or ");
            return Err(invalid(format!("its scheme is {scheme}: expected {expected}://")));
        }
        let address = match scheme {
            "http" | "https" => Ok(ObjectAddress::Http(url.clone())),
            "s3" => clients
                .credential_client()
                .and_then(|client| S3Signer::new(&url, options, client))
                .map(|signer| ObjectAddress::S3(Box::new(signer))),
            "webhdfs" | "swebhdfs" => WebHdfs::new(&url).map(ObjectAddress::WebHdfs),
            _ => return Err(invalid(format!("its scheme is {scheme}: {SCHEMES}"))),
        };
        Ok((address.map_err(failed)?, form))
    }

    /// Makes the request of a range.
    pub(super) async fn request(
        &self,
        client: &Client,
        range: &Range<u64>,
    ) -> Result<RequestBuilder, RemoteProblem> {
        match self {
            // The range is a part of the address.
            ObjectAddress::WebHdfs(file) => Ok(client.get(file.range(range))),
            _ => {
                let range = format!("bytes={}-{}", range.start, range.end - 1);
                Ok(self.whole(client).await?.header(RANGE, range))
            }
        }
    }

    /// Makes the request of the whole object.
    pub(super) async fn whole(&self, client: &Client) -> Result<RequestBuilder, RemoteProblem> {
        let url = match self {
            ObjectAddress::Http(url) => url.clone(),
            ObjectAddress::S3(signer) => signer.url().await?,
            ObjectAddress::WebHdfs(file) => file.whole(),
        };
        Ok(client.get(url))
    }
}
