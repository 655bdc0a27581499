//! The text of a header of numpy's format: a literal of Python.

use hostbuf_os::printable::printable_name;

/// The three values of a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NpyHeader {
    /// The type, such as `<f4`. Of a list of fields it is the text of the list.
    pub(super) descr: String,
    pub(super) is_fortran: bool,
    pub(super) shape: Vec<u64>,
}

/// The text of a header, from a position on.
pub(super) struct NpyText<'t> {
    text: &'t [u8],
    at: usize,
}

/// The most dimensions that an array of numpy has.
const MAX_DIMENSIONS: usize = 64;

impl<'t> NpyText<'t> {
    pub(super) fn new(text: &'t [u8]) -> NpyText<'t> {
        NpyText { text, at: 0 }
    }

    /// Parses a dictionary with the keys `descr`, `fortran_order` and `shape`, each once.
    ///
    /// # Errors
    /// The reason why the text is no such dictionary.
    pub(super) fn parse(mut self) -> Result<NpyHeader, String> {
        let (mut descr, mut is_fortran, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.accept(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let is_new = match key.as_str() {
                "descr" => descr.replace(self.descr()?).is_none(),
                "fortran_order" => is_fortran.replace(self.truth()?).is_none(),
                "shape" => shape.replace(self.shape()?).is_none(),
                _ => return Err(format!("unknown key \"{}\"", printable_name(&key))),
            };
            if !is_new {
                return Err(format!("the key {key:?} occurs twice"));
            }
            if !self.accept(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        if self.peek().is_some() {
            return Err(self.unexpected("the end"));
        }
        match (descr, is_fortran, shape) {
            (Some(descr), Some(is_fortran), Some(shape)) => Ok(NpyHeader { descr, is_fortran, shape }),
            _ => Err("one of the keys descr, fortran_order and shape is missing".into()),
        }
    }

    /// Returns the next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn accept(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, byte: u8) -> Result<(), String> {
        if self.accept(byte) { Ok(()) } else { Err(self.unexpected(&format!("{:?}", char::from(byte)))) }
    }

    fn unexpected(&mut self, expected: &str) -> String {
        match self.peek() {
            Some(found) => {
                format!("expected {expected} at character {}, found {:?}", self.at, char::from(found))
            }
            None => format!("expected {expected}, and the text ends"),
        }
    }

    /// Parses a string in single or double quotes. Names of types contain no escapes.
    fn string(&mut self) -> Result<String, String> {
        let quote = self.peek().filter(|byte| matches!(byte, b'\'' | b'"'));
        let Some(quote) = quote else { return Err(self.unexpected("a string")) };
        let rest = &self.text[self.at + 1..];
        let length = rest.iter().position(|&byte| byte == quote).ok_or("a string does not end")?;
        self.at += length + 2;
        Ok(String::from_utf8_lossy(&rest[..length]).into_owned())
    }

    /// Parses the type: a string, or a list of fields, which is skipped.
    fn descr(&mut self) -> Result<String, String> {
        if self.peek() != Some(b'[') {
            return self.string();
        }
        let (start, mut depth) = (self.at, 0usize);
        loop {
            match self.peek() {
                Some(b'\'' | b'"') => drop(self.string()?),
                Some(byte) => {
                    depth = match byte {
                        b'[' | b'(' => depth + 1,
                        b']' | b')' => depth - 1,
                        _ => depth,
                    };
                    self.at += 1;
                }
                None => return Err("a list of fields does not end".into()),
            }
            if depth == 0 {
                let list = String::from_utf8_lossy(&self.text[start..self.at]);
                return Ok(list.chars().take(100).collect());
            }
        }
    }

    fn truth(&mut self) -> Result<bool, String> {
        self.peek();
        for (word, value) in [("True", true), ("False", false)] {
            if self.text[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.unexpected("True or False"))
    }

    /// Parses a tuple of numbers: `()`, `(3,)`, `(3, 4)`. Python 2 wrote `3L`.
    fn shape(&mut self) -> Result<Vec<u64>, String> {
        self.expect(b'(')?;
        let mut shape = Vec::new();
        while !self.accept(b')') {
            if shape.len() == MAX_DIMENSIONS {
                return Err(format!("an array has at most {MAX_DIMENSIONS} dimensions"));
            }
            shape.push(self.number()?);
            self.accept(b'L');
            if !self.accept(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn number(&mut self) -> Result<u64, String> {
        self.peek();
        let digits = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = std::str::from_utf8(&self.text[self.at..self.at + digits]).unwrap_or_default();
        let number = text.parse().map_err(|_| match digits {
            0 => self.unexpected("a number"),
            _ => format!("the number at character {} is larger than 2^64 - 1", self.at),
        })?;
        self.at += digits;
        Ok(number)
    }
}
