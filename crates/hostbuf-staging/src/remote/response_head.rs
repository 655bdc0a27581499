//! The head of a response of HTTP/1.1.

use reqwest::StatusCode;
use reqwest::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING};

/// The most headers of a response.
const HEADERS: usize = 100;

/// The head of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) framing: BodyFraming,
    /// True if the connection can be used for another request.
    pub(super) is_persistent: bool,
}

/// The rule by which the end of a body is found (RFC 9112, section 6.3).
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
        let status = status.ok_or_else(|| invalid("the status code is invalid"))?;
        let mut headers = HeaderMap::with_capacity(parsed.headers.len());
        for field in parsed.headers {
            let name = HeaderName::from_bytes(field.name.as_bytes());
            let pair = name.ok().zip(HeaderValue::from_bytes(field.value).ok());
            let (name, value) = pair.ok_or_else(|| invalid("a header is malformed"))?;
            headers.append(name, value);
        }
        let framing = framing(status, &headers)
            .ok_or_else(|| invalid("Content-Length or Transfer-Encoding is invalid"))?;
        let closes = tokens(&headers, CONNECTION).any(|token| token == "close");
        // Another recipient may have taken the length of a head that states both.
        let is_clear = !(headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING));
        let is_persistent =
            parsed.version == Some(1) && is_clear && !closes && framing != BodyFraming::UntilClose;
        Ok(Some((ResponseHead { status, headers, framing, is_persistent }, length)))
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
    let elements = values.flat_map(|value| {
        value.split(',').map(|text| text.trim_matches([' ', '\t']).to_ascii_lowercase()).collect::<Vec<_>>()
    });
    elements.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parses a head, of which a prefix was parsed before.
    fn parsed_in_parts(head: &[u8], at: usize) -> Result<Option<(ResponseHead, usize)>, String> {
        match ResponseHead::parse(&head[..at]) {
            Ok(None) => ResponseHead::parse(head),
            result => result,
        }
    }

    fn parsed(head: &str) -> Option<ResponseHead> {
        ResponseHead::parse(head.as_bytes()).expect("a valid head").map(|(head, _)| head)
    }

    #[test]
    fn a_head_states_how_the_body_ends() {
        let framing = |fields: &str| {
            let head = parsed(&format!("HTTP/1.1 206 Partial Content\r\n{fields}\r\n"));
            head.map(|head| (head.framing, head.is_persistent))
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
            parsed("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n").map(|head| head.is_persistent),
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
            "Content-Length: \r\n",
            "Content-Length: 1,\r\n",
            "Content-Length: 1 1\r\n",
            "Content-Length: 0x1\r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Content-Length: 1\u{a0}\r\n",
            "Content-Length : 1\r\n",
            "Content-Length: 1\r\n 2\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: identity\r\nContent-Length: 1\r\n",
            "Transfer-Encoding: \u{b}chunked\r\n",
            "Transfer-Encoding: \r\n",
            "no field\r\n",
        ];
        for fields in fields {
            let head = format!("HTTP/1.1 206 x\r\n{fields}\r\n");
            assert!(ResponseHead::parse(head.as_bytes()).is_err(), "{fields}");
        }
        assert!(ResponseHead::parse(b"no HTTP\r\n\r\n").is_err());
    }

    #[test]
    fn a_head_has_a_limited_number_of_headers() {
        let head = |headers: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(headers));
        assert!(parsed(&head(HEADERS)).is_some());
        assert!(ResponseHead::parse(head(HEADERS + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_head_is_the_same_if_it_arrives_in_two_parts() {
        let heads: [&[u8]; 6] = [
            b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 0-4/9\r\n\r\nhello",
            b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nETag: \"\xe4\"\r\nno field\r\n\r\n",
            b"no HTTP\r\n\r\n",
        ];
        for head in heads {
            let whole = ResponseHead::parse(head);
            for at in 0..=head.len() {
                assert_eq!(parsed_in_parts(head, at), whole, "at byte {at} of {}", head.escape_ascii());
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = ResponseHead::parse(&bytes);
            let _ = ResponseHead::parse(&[b"HTTP/1.1 200 OK\r\n", &bytes[..]].concat());
        }

        #[test]
        fn fields_of_any_text_parse_the_same_in_two_parts(
            fields in "((Content-Length|Transfer-Encoding|Connection|[a-zA-Z -]{0,5}):[ -~\t\r\n]{0,12}\r?\n){0,4}",
            at in any::<prop::sample::Index>(),
        ) {
            let head = format!("HTTP/1.1 206 x\r\n{fields}\r\n").into_bytes();
            let whole = ResponseHead::parse(&head);
            let parts = parsed_in_parts(&head, at.index(head.len()));
            prop_assert_eq!(parts.is_ok(), whole.is_ok());
            if whole.is_ok() {
                prop_assert_eq!(parts, whole);
            }
        }
    }
}
