//! Addresses in messages.

use reqwest::Url;

/// Returns an address without what may be secret: the user, the password, the query and the
/// fragment.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // It has no user if it cannot have one.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}

/// Returns an address that cannot be parsed without what may be secret.
pub(super) fn shown_text(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    match text.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let secret = "https://me:word@host:81/a/b%20c?X-Amz-Signature=1#f";
        let url: Url = secret.parse().expect("a valid address");
        assert_eq!(shown(&url), "https://host:81/a/b%20c");
        assert_eq!(shown_text(secret), "https://host:81/a/b%20c");
        assert_eq!(shown_text("s3:/x?y"), "s3:/x");
    }
}
