//! The numbers and texts of an encoded table.

/// A writer of adjacent numbers and texts.
#[derive(Default)]
pub(super) struct TableWriter(pub(super) Vec<u8>);

impl TableWriter {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }
}

/// A reader of numbers and texts. It returns `None` instead of anything beyond the end.
pub(super) struct TableReader<'t>(pub(super) &'t [u8]);

impl<'t> TableReader<'t> {
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'t [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn text(&mut self) -> Option<&'t [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }

    pub(super) fn string(&mut self) -> Option<String> {
        String::from_utf8(self.text()?.to_vec()).ok()
    }

    /// Reads a number of items, and the items by `read`. Each has at least one byte, so a wrong
    /// number takes no more memory than the bytes that are left.
    pub(super) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        if count > self.0.len() as u64 {
            return None;
        }
        (0..count).map(|_| read(self)).collect()
    }
}
