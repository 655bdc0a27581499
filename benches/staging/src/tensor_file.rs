//! Files of tensors for benchmarks.

use std::io::{BufWriter, Write};
use std::path::Path;

use crate::temporary_file::TemporaryFile;

/// A file of equal tensors, which is removed when it is dropped.
pub(crate) struct TensorFile(TemporaryFile);

impl TensorFile {
    /// Makes a file of `count` tensors of bytes of the same shape in memory.
    pub(crate) fn new(count: usize, shape: &[usize]) -> std::io::Result<TensorFile> {
        let name = format!("hostbuf-bench-tensors-{}.safetensors", std::process::id());
        let (file, content) = TemporaryFile::create(Path::new("/dev/shm").join(name))?;
        let bytes: usize = shape.iter().product();
        let tensors: serde_json::Map<_, _> = (0..count)
            .map(|number| {
                let offsets = [number * bytes, (number + 1) * bytes];
                (
                    tensor_name(number),
                    serde_json::json!({"dtype": "U8", "shape": shape, "data_offsets": offsets}),
                )
            })
            .collect();
        let mut header = serde_json::to_vec(&tensors)?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut writer = BufWriter::new(content);
        writer.write_all(&(header.len() as u64).to_le_bytes())?;
        writer.write_all(&header)?;
        for number in 0..count {
            let mut word = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            for start in (0..bytes).step_by(CHUNK) {
                let chunk = word.to_le_bytes().repeat(CHUNK / 8);
                writer.write_all(&chunk[..CHUNK.min(bytes - start)])?;
                word = word.rotate_left(5).wrapping_add(start as u64);
            }
        }
        writer.flush()?;
        Ok(TensorFile(file))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// The number of bytes after which the content of a tensor changes.
const CHUNK: usize = 1000;

/// Returns the name of a tensor of a file.
pub(crate) fn tensor_name(number: usize) -> String {
    format!("layer.{number}.weight")
}
