//! The head of an answer of HTTP/1.1.

use reqwest::StatusCode;
use reqwest::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};

/// The most headers of an answer.
const HEADERS: usize = 100;

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) framing: BodyFraming,
    /// True if the connection can be used for another request.
    pub(super) keeps: bool,
}

/// The way in which the end of a body is found (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFraming {
    Length(u64),
    Chunked,
    UntilClose,
}

impl ResponseHead {
    /// Parses a head and returns it with its length; `None` if it is not complete.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(ResponseHead, usize)>, String> {
        let mut fields = [httparse::EMPTY_HEADER; HEADERS];
        let mut parsed = httparse::Response::new(&mut fields);
        let length = match parsed.parse(bytes).map_err(|error| format!("invalid HTTP: {error}"))? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial => return Ok(None),
        };
        let invalid = |what: &str| format!("invalid HTTP: {what}");
        let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or_else(|| invalid("the status is none"))?;
        let mut headers = HeaderMap::with_capacity(parsed.headers.len());
        for field in parsed.headers {
            let name = HeaderName::from_bytes(field.name.as_bytes());
            let pair = name.ok().zip(HeaderValue::from_bytes(field.value).ok());
            let (name, value) = pair.ok_or_else(|| invalid("a header"))?;
            headers.append(name, value);
        }
        let framing = framing(status, &headers).ok_or_else(|| invalid("the length of the body"))?;
        let closes = tokens(&headers, CONNECTION).any(|token| token == "close");
        // A head that states both may be read in two ways.
        let is_clear = !(headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING));
        let keeps = parsed.version == Some(1) && is_clear && !closes && framing != BodyFraming::UntilClose;
        Ok(Some((ResponseHead { status, headers, framing, keeps }, length)))
    }
}

fn framing(status: StatusCode, headers: &HeaderMap) -> Option<BodyFraming> {
    if status.is_informational() || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        return Some(BodyFraming::Length(0));
    }
    if headers.contains_key(TRANSFER_ENCODING) {
        // Another encoding would have to be decoded.
        let is_chunked = tokens(headers, TRANSFER_ENCODING).eq(["chunked"]);
        return is_chunked.then_some(BodyFraming::Chunked);
    }
    let mut lengths = tokens(headers, CONTENT_LENGTH).map(|text| {
        let has_digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
        if has_digits_only { text.parse().ok() } else { None }
    });
    match lengths.next() {
        None => Some(BodyFraming::UntilClose),
        // The same length may be stated several times.
        Some(first) => lengths.all(|other| other == first).then_some(BodyFraming::Length(first?)),
    }
}

/// Returns the elements of a list in small letters.
fn tokens(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = String> {
    let values = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    let elements = values
        .flat_map(|value| value.split(',').map(|text| text.trim().to_ascii_lowercase()).collect::<Vec<_>>());
    elements.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Option<ResponseHead> {
        ResponseHead::parse(head.as_bytes()).expect("a valid head").map(|(head, _)| head)
    }

    #[test]
    fn a_head_states_how_the_body_ends() {
        let framing = |fields: &str| {
            let head = parsed(&format!("HTTP/1.1 206 Partial Content\r\n{fields}\r\n"));
            head.map(|head| (head.framing, head.keeps))
        };
        assert_eq!(framing("Content-Length: 12\r\n"), Some((BodyFraming::Length(12), true)));
        assert_eq!(framing("Content-Length: 12, 12\r\n"), Some((BodyFraming::Length(12), true)));
        assert_eq!(
            framing("Content-Length: 0\r\nConnection: Close\r\n"),
            Some((BodyFraming::Length(0), false))
        );
        assert_eq!(framing("Transfer-Encoding: Chunked\r\n"), Some((BodyFraming::Chunked, true)));
        let both = "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n";
        assert_eq!(framing(both), Some((BodyFraming::Chunked, false)));
        assert_eq!(framing(""), Some((BodyFraming::UntilClose, false)));
        assert_eq!(
            parsed("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n").map(|head| head.keeps),
            Some(false)
        );
        assert_eq!(parsed("HTTP/1.1 206 Partial Content\r\nContent-Le"), None);
    }

    #[test]
    fn an_ambiguous_head_is_an_error() {
        let fields = [
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: x\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "no field\r\n",
        ];
        for fields in fields {
            let head = format!("HTTP/1.1 206 x\r\n{fields}\r\n");
            assert!(ResponseHead::parse(head.as_bytes()).is_err(), "{fields}");
        }
        assert!(ResponseHead::parse(b"no HTTP\r\n\r\n").is_err());
    }
}
