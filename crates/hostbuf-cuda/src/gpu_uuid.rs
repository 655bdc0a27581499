//! The UUID of a GPU.

use std::fmt;
use std::str::FromStr;

/// The UUID of a GPU, or of a part of one (MIG): the same in all processes and containers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
// Exhaustive: 16 bytes, and nothing else.
pub struct GpuUuid(pub [u8; 16]);

/// A text that is no UUID of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidUuid {
    text: String,
}

/// The numbers of hexadecimal digits between the hyphens.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

impl fmt::Display for GpuUuid {
    /// Prints the UUID as nvidia-smi does: `GPU-0123abcd-...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        let mut bytes = self.0.iter();
        for digits in GROUPS {
            f.write_str("-")?;
            for byte in bytes.by_ref().take(digits / 2) {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuUuid({self})")
    }
}

impl FromStr for GpuUuid {
    type Err = InvalidUuid;

    /// Parses the form that nvidia-smi prints, with or without `GPU-` or `MIG-`.
    fn from_str(text: &str) -> Result<GpuUuid, InvalidUuid> {
        let invalid = || InvalidUuid { text: text.into() };
        let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text);
        let groups: Vec<&str> = digits.split('-').collect();
        let right = groups.iter().map(|group| group.len()).eq(GROUPS)
            && groups.iter().all(|group| group.bytes().all(|b| b.is_ascii_hexdigit()));
        if !right {
            return Err(invalid());
        }
        let number = u128::from_str_radix(&groups.concat(), 16).map_err(|_| invalid())?;
        Ok(GpuUuid(number.to_be_bytes()))
    }
}

impl fmt::Display for InvalidUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid UUID of a GPU {:?}: expected GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx (nvidia-smi -L)",
            self.text
        )
    }
}

impl std::error::Error for InvalidUuid {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_uuid_parses_to_the_same_bytes() {
        let uuid = GpuUuid(std::array::from_fn(|i| i as u8 * 17));
        let text = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        assert_eq!((uuid.to_string().as_str(), text.parse()), (text, Ok(uuid)));
        assert_eq!(text["GPU-".len()..].parse(), Ok(uuid));
        assert_eq!(text.replace("GPU", "MIG").to_uppercase().parse(), Ok(uuid));
    }

    #[test]
    fn other_texts_are_refused_with_the_expected_form() {
        let right = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let mut wrong = vec![String::new(), "GPU-".into(), "GPU-é".into(), right.replace('-', "")];
        wrong.extend([format!("{right}0"), right.replace("00", "+0"), right.replace("ff", "fg")]);
        for text in wrong {
            let error = text.parse::<GpuUuid>().unwrap_err().to_string();
            assert!(error.contains("nvidia-smi -L"), "{text}: {error}");
        }
    }
}
