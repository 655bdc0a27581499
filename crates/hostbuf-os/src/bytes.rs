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
    type Err = String;

    /// Parses `4096`, `64k`, `512M`, `2G`, `1.5GiB` or `3T`: binary units, upper or lower case.
    fn from_str(text: &str) -> std::result::Result<Bytes, String> {
        let wrong = || format!("\"{text}\" is not a size: expected for example 4096, 64K, 512M, 2G or 1.5T");
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            _ => return Err(wrong()),
        };
        let too_large = || format!("\"{text}\" is more than the address space holds");
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(1 << shift).map(Bytes).ok_or_else(too_large);
        }
        if shift == 0 {
            return Err(format!("\"{text}\" is not a size: a fraction needs a unit, for example {text}G"));
        }
        let value = number.parse::<f64>().map_err(|_| wrong())? * (1u64 << shift) as f64;
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
        assert!("1.5".parse::<Bytes>().unwrap_err().contains("needs a unit"));
        for text in ["", "G", "-1", "2X", "1e9", "99999999T", "2.2.2G"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(Bytes(2 << 30).to_string(), "2 GiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Bytes(17).to_string(), "17 bytes");
        assert_eq!(Bytes(1).to_string(), "1 byte");
    }
}
