//! Numbers of bytes in messages and on the command line.

use std::fmt;

/// A number of bytes that prints with a unit: `2 GiB`, `1.5 MiB`, `17 bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// Exhaustive: a number with a way to show it.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match UNITS.iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) if self.0.trailing_zeros() >= *shift => {
                write!(f, "{} {unit}", self.0 >> shift)
            }
            Some((unit, shift)) => write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None if self.0 == 1 => f.write_str("1 byte"),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl std::str::FromStr for Bytes {
    /// The reason alone: the caller states the invalid text and the option that it belongs to.
    type Err = String;

    /// Parses `4096`, `64k`, `512M`, `2G`, `1.5GiB` or `3T`: binary units, upper or lower case.
    fn from_str(text: &str) -> std::result::Result<Bytes, String> {
        let wrong = || "expected a size, for example 4096, 64K, 512M, 2G or 1.5T".to_owned();
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let unit = unit.trim();
        let shift = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            // `1e9` and `-5` have no unit.
            _ if !number.is_empty() && unit.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
                return Err(format!("unknown unit {unit}: expected K, M, G or T"));
            }
            _ => return Err(wrong()),
        };
        let too_large = || "more than the address space holds".to_owned();
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(Bytes).ok_or_else(too_large);
        }
        let value = number.parse::<f64>().map_err(|_| wrong())?;
        if shift == 0 && number.contains('.') {
            return Err(format!("a fraction needs a unit, for example {number}G"));
        }
        let value = value * (1u64 << shift) as f64;
        if value < 1.8e19 { Ok(Bytes(value as u64)) } else { Err(too_large()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in
            [("4096", 4096), ("64k", 65536), ("2G", 2 << 30), ("1.5GiB", 3 << 29), ("3 TB", 3 << 40)]
        {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
        for (text, why) in [
            ("1P", "unknown unit P: expected K, M, G or T"),
            ("12 QiB", "unknown unit QiB: expected K, M, G or T"),
            ("1.5", "a fraction needs a unit, for example 1.5G"),
            ("99999999T", "more than the address space holds"),
            ("99999999.5T", "more than the address space holds"),
            ("99999999999999999999", "more than the address space holds"),
        ] {
            assert_eq!(text.parse::<Bytes>(), Err(why.into()), "{text}");
        }
        for text in ["", "G", "rubbish", ".", "-1", "1e9", "1,5G", "2.2.2G", "2.2.2"] {
            let why = text.parse::<Bytes>().unwrap_err();
            assert_eq!(why, "expected a size, for example 4096, 64K, 512M, 2G or 1.5T", "{text}");
        }
        assert_eq!(Bytes(2 << 30).to_string(), "2 GiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Bytes(17).to_string(), "17 bytes");
        assert_eq!(Bytes(1).to_string(), "1 byte");
    }
}
