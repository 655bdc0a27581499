//! The file that rings and fio write.

use std::error::Error;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostbuf_staging::{Backend, FileOptions, ReadAt, is_in_memory};

use crate::source_memory::SourceMemory;
use crate::temporary_file::TemporaryFile;

/// The unit in which the content is made and compared, and of the length of the file.
pub(crate) const BLOCK: usize = 1 << 20;

/// The alignment of memory for reads that bypass the page cache.
const ALIGNMENT: usize = 4096;

/// The file that rings and fio write. It is removed at the end.
pub(crate) struct WrittenFile {
    file: TemporaryFile,
    /// The descriptor that bypasses the page cache.
    direct: hostbuf_staging::File,
    bytes: usize,
    /// The number of the last content.
    content: u64,
}

impl WrittenFile {
    /// Creates a file of `bytes` bytes, and writes all of them, so that later writes allocate no
    /// blocks on the disk.
    ///
    /// # Errors
    /// Those of the file, including if it exists, and if it is not on a disk.
    pub(crate) fn create(path: &str, bytes: usize) -> Result<WrittenFile, Box<dyn Error>> {
        let (file, plain) = TemporaryFile::create(path.into()).map_err(|error| format!("{path}: {error}"))?;
        if is_in_memory(&plain)? {
            return Err(format!("{path} is in memory: name a file on a disk").into());
        }
        let mut block = vec![0; BLOCK];
        for offset in (0..bytes).step_by(BLOCK) {
            fill(&mut block, 0, offset);
            plain.write_all_at(&block, offset as u64)?;
        }
        plain.sync_all()?;
        let direct = FileOptions::new().backend(Backend::Direct).open(path)?;
        Ok(WrittenFile { file, direct, bytes, content: 0 })
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Fills the memory with content that the file has never had.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn renew(&mut self, source: &mut impl SourceMemory) -> Result<(), Box<dyn Error>> {
        self.content += 1;
        let mut block = vec![0; BLOCK];
        for offset in (0..self.bytes).step_by(BLOCK) {
            fill(&mut block, self.content, offset);
            source.store(&block, offset)?;
        }
        Ok(())
    }

    /// Reads the file bypassing the page cache, and compares it with the memory.
    ///
    /// # Errors
    /// The first block that differs, and those of the file and the device.
    pub(crate) fn compare(&self, source: &impl SourceMemory) -> Result<(), Box<dyn Error>> {
        let (mut buffer, mut expected) = (vec![0; BLOCK + ALIGNMENT], vec![0; BLOCK]);
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        let block = &mut buffer[start..start + BLOCK];
        for offset in (0..self.bytes).step_by(BLOCK) {
            let read = self.direct.read_at(block, offset as u64)?;
            source.load(&mut expected, offset)?;
            if read != BLOCK || *block != expected {
                let path = self.path().display();
                return Err(format!(
                    "{path} differs from the memory of the device in the {BLOCK} bytes at offset {offset}"
                )
                .into());
            }
        }
        Ok(())
    }
}

/// Fills a block of content `number` that begins at `offset`, by SplitMix64. All blocks of all
/// contents differ.
fn fill(block: &mut [u8], number: u64, offset: usize) {
    let mut state = (number << 40 | (offset / 8) as u64).wrapping_mul(INCREMENT);
    for word in block.as_chunks_mut::<8>().0 {
        state = state.wrapping_add(INCREMENT);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        *word = (mixed ^ mixed >> 31).to_le_bytes();
    }
}

/// The increment of SplitMix64.
const INCREMENT: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated_source::SimulatedSource;

    /// Creates a file of three blocks in the folder of this program, which is on a disk.
    fn written_file(name: &str) -> Option<WrittenFile> {
        let program = std::env::current_exe().expect("this test");
        let path = program.with_file_name(format!("{name}-{}", std::process::id()));
        match WrittenFile::create(path.to_str().expect("a path of text"), 3 * BLOCK) {
            Ok(file) => Some(file),
            Err(error) => {
                eprintln!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn content_that_was_not_written_differs() {
        let Some(mut file) = written_file("content") else { return };
        let mut source = SimulatedSource::new(3 * BLOCK);
        for content in 1..=2 {
            file.renew(&mut source).unwrap();
            let error = file.compare(&source).unwrap_err().to_string();
            assert!(error.contains("at offset 0"), "{content}: {error}");
            let options = FileOptions::new().write(true);
            let written = options.open(file.path()).unwrap();
            let mut block = vec![0; BLOCK];
            for offset in (0..file.bytes).step_by(BLOCK) {
                source.load(&mut block, offset).unwrap();
                written.as_std().write_all_at(&block, offset as u64).unwrap();
            }
            file.compare(&source).unwrap();
            block[BLOCK - 1] ^= 1;
            written.as_std().write_all_at(&block, 2 * BLOCK as u64).unwrap();
            let error = file.compare(&source).unwrap_err().to_string();
            assert!(error.contains("at offset 2097152"), "{content}: {error}");
        }
    }

    #[test]
    fn the_file_is_removed() {
        let Some(file) = written_file("removed") else { return };
        let path = file.path().to_owned();
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
    }
}
