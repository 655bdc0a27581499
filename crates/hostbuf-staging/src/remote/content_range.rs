//! The header `Content-Range`.

use std::ops::Range;

/// A parsed header `Content-Range`: `bytes 0-99/1000`, `bytes 0-99/*`, or `bytes */1000` (RFC 9110,
/// section 14.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    /// `None` if the requested range is not within the object.
    pub(super) range: Option<Range<u64>>,
    /// The length of the object, if it is known.
    pub(super) total: Option<u64>,
}

impl ContentRange {
    pub(super) fn parse(text: &str) -> Option<ContentRange> {
        let (unit, rest) = text.trim().split_once(' ')?;
        let (range, total) = rest.trim().split_once('/')?;
        if !unit.eq_ignore_ascii_case("bytes") {
            return None;
        }
        let total = if total == "*" { None } else { Some(number(total)?) };
        let range = match range {
            "*" => None,
            range => {
                let (first, last) = range.split_once('-')?;
                let (first, last) = (number(first)?, number(last)?);
                Some(first..last.checked_add(1).filter(|&end| end > first)?)
            }
        };
        let fits = match (&range, total) {
            (Some(range), Some(total)) => range.end <= total,
            (None, None) => false,
            _ => true,
        };
        fits.then_some(ContentRange { range, total })
    }
}

/// Parses digits, without a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed() {
        let parsed = |text| ContentRange::parse(text).map(|found| (found.range, found.total));
        assert_eq!(parsed("bytes 0-99/1000"), Some((Some(0..100), Some(1000))));
        assert_eq!(parsed("Bytes 5-5/*"), Some((Some(5..6), None)));
        assert_eq!(parsed("bytes */7"), Some((None, Some(7))));
        let invalid = [
            "",
            "bytes",
            "bytes 1-2",
            "bytes */*",
            "bytes 2-1/9",
            "bytes 0-9/9",
            "lines 0-1/2",
            "bytes 0-1,3-4/9",
            "bytes +1-2/9",
            "bytes -1/9",
            "bytes 0-18446744073709551615/*",
            "bytes a-b/c",
        ];
        for text in invalid {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
