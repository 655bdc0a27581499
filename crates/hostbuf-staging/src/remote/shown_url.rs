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
    // It may have a password with any characters before the last @.
    match (text.rsplit_once('@'), text.split_once("://")) {
        (None, _) => text.to_owned(),
        (Some((_, rest)), Some((scheme, _))) if !scheme.contains('@') => format!("{scheme}://{rest}"),
        (Some((_, rest)), _) => rest.to_owned(),
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
        for text in ["me:word@host/f", "http:/me:word@host/f", "http://me:wo/rd@host/f"] {
            let shown = shown_text(text);
            assert!(shown.ends_with("host/f") && !shown.contains("rd"), "{shown}");
        }
    }
}
