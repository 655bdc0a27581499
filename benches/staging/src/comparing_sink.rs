//! A sink that compares what it is given with a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use hostbuf_staging::WriteAt;

/// A sink that compares the bytes that it is given with those of a file.
#[derive(Debug)]
pub(crate) struct ComparingSink(pub(crate) File);

impl WriteAt for ComparingSink {
    fn name(&self) -> String {
        "the comparison with the file".into()
    }

    fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        let mut expected = vec![0; from.len()];
        self.0.read_exact_at(&mut expected, offset)?;
        if from == expected {
            return Ok(from.len());
        }
        let at = from.iter().zip(&expected).position(|(one, other)| one != other).unwrap_or(0);
        Err(io::Error::other(format!("byte {} differs", offset + at as u64)))
    }
}
