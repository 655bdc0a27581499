//! The problem of a request that has failed.

use std::error::Error;
use std::io;
use std::time::Duration;

use super::remote_error::RemoteProblem;

/// Returns the problem of a request that has failed. A cut has no bytes yet.
pub(super) fn request_problem(error: reqwest::Error, timeout: Duration) -> RemoteProblem {
    // The address may have a signature.
    let error = error.without_url();
    let why = chain(&error);
    match () {
        () if is_tls(&error) => RemoteProblem::Tls { why },
        () if error.is_timeout() => RemoteProblem::Timeout { timeout },
        // The address of the request was parsed before, so an invalid one is that of a redirect.
        () if error.is_redirect() || error.is_builder() => RemoteProblem::Redirect { why },
        () if error.is_connect() => RemoteProblem::Connect { why },
        () => RemoteProblem::Cut { received: 0, why },
    }
}

/// Returns whether the certificate was refused. Other failures of TLS are those of a connection.
pub(super) fn is_tls(error: &(dyn Error + 'static)) -> bool {
    if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
        return true;
    }
    // An io::Error hides the error that it was made of from `source`.
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.is_some_and(|inner| is_tls(inner)) || error.source().is_some_and(is_tls)
}

/// Returns the texts of an error and its sources, without repetitions.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}
