//! The protocol between a participant and the agent of its host, over an abstract unix socket of
//! type SOCK_SEQPACKET.
//!
//! Every packet is one [`Frame`] of [`Frame::SIZE`] bytes: a magic number, a kind, words and a
//! text. A packet of another length, with another magic number or an unknown kind is not a frame,
//! and ends the connection. This module is compiled into the library, the agent and the preloaded
//! object, so it depends only on `core`.
//!
//! ```text
//! participant                         agent
//!   Hello (role and rank)         ->
//!   Ready (in the program itself) ->
//!                                 <-  Ballot (candidates)          repeated while there is no
//!   Votes (the candidates held)   ->                               common candidate
//!                                 <-  Search (from)                after the last ballot
//!   Hole (its lowest hole)        ->
//!                                 <-  Winner (layout + descriptors)
//!   Mapped                        ->
//!                                 <-  Go                           all ranks have mapped
//!   at any time:                  <-  Fail (text, and if to print it)
//!   Failed (text)                 ->
//! ```

/// The largest number of buffers of one job.
pub const MAX_BUFFERS: usize = 16;
/// The largest number of candidates of one ballot.
pub const MAX_CANDIDATES: usize = 16;
/// The environment variable with the name of the agent's socket.
pub const ENV_JOB: &str = "HOSTBUF_JOB";
/// The environment variable with the path of the `hostbuf` command that the launcher inserts before
/// the ranks' programs.
pub const ENV_PREFIX: &str = "HOSTBUF_PREFIX";
/// The environment variable with the number of the connection that `hostbuf exec` opened.
pub const ENV_CONNECTION: &str = "HOSTBUF_CONNECTION";
/// The environment variable with the first buffer's address: `0x` and 16 hexadecimal digits. Only a
/// process that has mapped the buffer has it; see [`ENV_ADDRESS_ROOM`].
pub const ENV_ADDRESS: &str = "HOSTBUF_ADDRESS";
/// The environment variable with the first buffer's size in bytes, in decimal.
pub const ENV_SIZE: &str = "HOSTBUF_SIZE";
/// The name under which `hostbuf exec` reserves room for [`ENV_ADDRESS`]. The preloaded object
/// renames the entry in place once the buffer is mapped, so a program without a buffer finds no
/// address. Both names have the same length.
pub const ENV_ADDRESS_ROOM: &str = "HOSTBUF_PADDING";
/// The name under which `hostbuf exec` reserves room for [`ENV_SIZE`].
pub const ENV_SIZE_ROOM: &str = "HOSTBUF_PAD2";
/// The value of [`ENV_ADDRESS_ROOM`] and [`ENV_SIZE_ROOM`]: as long as the longest address and the
/// longest size.
pub const ROOM: &str = "....................";
const _: () = assert!(ENV_ADDRESS.len() == ENV_ADDRESS_ROOM.len() && ENV_SIZE.len() == ENV_SIZE_ROOM.len());

/// The environment variable with the inode number of the network namespace in which the host's
/// agent listens.
pub const ENV_NETWORK: &str = "HOSTBUF_NETWORK";
/// The environment variable with the names of its ranks for a message of a later program of a rank
/// ("ranks 0-3 on h0"). A leading `-` means that another rank with the same command line prints the
/// message.
pub const ENV_REPORT: &str = "HOSTBUF_REPORT";
/// The environment variable with the path of the preloaded object, for programs whose `LD_PRELOAD`
/// names a descriptor.
pub const ENV_OBJECT: &str = "HOSTBUF_OBJECT";
/// The largest length of the value of [`ENV_REPORT`], in bytes.
pub const REPORT_MAX: usize = 64;
/// The environment variable that makes a missing buffer an error for later programs (`--require`).
pub const ENV_REQUIRE: &str = "HOSTBUF_REQUIRE";

/// The environment variable with the rank on this host, for [`Role::Member`].
pub const ENV_LOCAL_RANK: &str = "HOSTBUF_LOCAL_RANK";
/// The environment variable with the number of ranks of this host.
pub const ENV_LOCAL_SIZE: &str = "HOSTBUF_LOCAL_SIZE";

/// The environment variable with the process that registers the buffers before `main`, a colon, and
/// the devices. In that process the registering object completes the start: it sends
/// [`Kind::Mapped`] when all buffers are registered, and waits for [`Kind::Go`].
pub const ENV_REGISTER: &str = "HOSTBUF_REGISTER";

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// From a participant: [`Hello`].
    Hello = 1,
    /// From a participant: its program itself runs and can vote. Word 0: the [`Territory`]; word 1:
    /// the [`Coverage`]. The text is the reason if the program does not map the buffer before
    /// `main`.
    Ready = 2,
    /// To a participant: word 0 is the length, word 1 the number of candidates; the candidates
    /// follow.
    Ballot = 3,
    /// From a participant: word 0 is the bit mask of the held candidates; words 1..4 and the text
    /// are the first refusal.
    Votes = 4,
    /// To a participant: word 0 is the length, word 1 the start, word 2 the alignment.
    Search = 5,
    /// From a participant: word 0 is the hole, or `u64::MAX`.
    Hole = 6,
    /// To a participant, with one descriptor for the control page and one for each buffer:
    /// [`Winner`]. The text is the value of [`ENV_REPORT`].
    Winner = 7,
    /// From a participant: everything is mapped.
    Mapped = 8,
    /// To a participant: run `main`. The text, if any, is a line that this rank prints for its
    /// host.
    Go = 9,
    /// To a participant: word 0 is the exit status, word 1 is 1 if the text must be printed.
    Fail = 10,
    /// From a participant: it cannot continue. The text is the reason.
    Failed = 11,
    /// From a member: its part of a gather operation. Word 0 is the number of the operation, word 1
    /// the group, word 2 the number of members; the text is the part.
    Gather = 12,
    /// To a member: the part of member word 1 in the gather operation word 0.
    Gathered = 13,
    /// To a rank of a program that allocates, from its host's leader: the pages are populated, or
    /// populating has failed.
    Taken = 14,
}

impl Kind {
    fn from_number(n: u16) -> Option<Kind> {
        use Kind::*;
        [Hello, Ready, Ballot, Votes, Search, Hole, Winner, Mapped, Go, Fail, Failed, Gather, Gathered, Taken]
            .into_iter()
            .find(|&kind| kind as u16 == n)
    }
}

const WORDS: usize = 64;
const TEXT: usize = 496;
const MAGIC: u32 = 0x3142_4248;

/// One packet.
#[derive(Clone)]
#[repr(C)]
pub struct Frame {
    magic: u32,
    kind: u16,
    text_length: u16,
    padding: u64,
    /// The operands, by [`Kind`].
    pub words: [u64; WORDS],
    text: [u8; TEXT],
}

impl Frame {
    /// The length of every packet in bytes.
    pub const SIZE: usize = size_of::<Frame>();
    /// The largest number of bytes of text in a frame.
    pub const TEXT_MAX: usize = TEXT;

    /// Makes a frame with all words zero and no text.
    #[must_use]
    pub fn new(kind: Kind) -> Frame {
        Frame {
            magic: MAGIC,
            kind: kind as u16,
            text_length: 0,
            padding: 0,
            words: [0; WORDS],
            text: [0; TEXT],
        }
    }

    /// Returns the frame with `words` at its beginning.
    #[must_use]
    pub fn with_words(mut self, words: &[u64]) -> Frame {
        self.words[..words.len()].copy_from_slice(words);
        self
    }

    /// Returns the frame with `text`, truncated to [`Frame::TEXT_MAX`] bytes.
    #[must_use]
    pub fn with_text(mut self, text: &[u8]) -> Frame {
        let length = text.len().min(TEXT);
        self.text[..length].copy_from_slice(&text[..length]);
        self.text_length = length as u16;
        self
    }

    /// Returns the kind, or `None` if it is unknown.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        Kind::from_number(self.kind)
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text[..usize::from(self.text_length).min(TEXT)]
    }

    /// Returns the bytes to send.
    #[must_use]
    #[allow(unsafe_code)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: repr(C) of integers only, without padding between them (4+2+2+8+512+496 = 1024):
        // every byte is initialised.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), Frame::SIZE) }
    }

    /// Parses a packet. Returns `None` if it is not a frame.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Frame> {
        if packet.len() != Frame::SIZE {
            return None;
        }
        let mut frame = Frame::new(Kind::Hello);
        frame.magic = u32::from_ne_bytes(packet[0..4].try_into().ok()?);
        frame.kind = u16::from_ne_bytes(packet[4..6].try_into().ok()?);
        frame.text_length = u16::from_ne_bytes(packet[6..8].try_into().ok()?);
        for (word, bytes) in frame.words.iter_mut().zip(packet[16..].chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        frame.text.copy_from_slice(&packet[16 + 8 * WORDS..]);
        (frame.magic == MAGIC && frame.kind().is_some() && usize::from(frame.text_length) <= TEXT)
            .then_some(frame)
    }
}

const _: () = assert!(Frame::SIZE == 1024);

/// The part of the address space in which a participant may hold addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Territory {
    /// Any free range.
    Anywhere = 0,
    /// Only in the window that ThreadSanitizer and MemorySanitizer leave to applications.
    Sanitized = 1,
}

/// The way in which a rank's program gets the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u64)]
pub enum Coverage {
    /// The preloaded object maps it before `main`.
    Preloaded = 0,
    /// Nothing can be preloaded, but the program contains the library and can attach.
    Attaches = 1,
    /// Nothing can be preloaded, and the program cannot attach.
    None = 2,
}

impl Coverage {
    /// Decodes word 1 of a frame of kind [`Kind::Ready`].
    #[must_use]
    pub fn from_word(word: u64) -> Coverage {
        match word {
            0 => Coverage::Preloaded,
            1 => Coverage::Attaches,
            _ => Coverage::None,
        }
    }
}

/// The identification of a participant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its part in the job.
    pub role: Role,
    /// The rank in the first world of the job.
    pub rank: u64,
    /// The number of ranks of the job, 0 if the engine does not report it.
    pub size: u64,
    /// The rank on this host.
    pub local_rank: u64,
    /// The number of ranks on this host.
    pub local_size: u64,
    /// A number that is the same in all participants that request the same buffers.
    pub request: u64,
}

/// The part of a participant in the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Role {
    /// A rank of the job: it votes, and the job waits for it.
    Rank = 1,
    /// A later program, a child or a spawned process: it maps the agreed range.
    Late = 2,
    /// The library in a process, which requests the agreed layout and the descriptors.
    Library = 3,
    /// A rank that takes part in collective operations among the ranks of this host, through the
    /// agent.
    Member = 4,
}

impl Hello {
    /// Encodes it as a frame.
    #[must_use]
    pub fn frame(&self) -> Frame {
        let Hello { role, rank, size, local_rank, local_size, request } = *self;
        Frame::new(Kind::Hello).with_words(&[role as u64, rank, size, local_rank, local_size, request])
    }

    /// Decodes a frame of kind [`Kind::Hello`]. Returns `None` if a word is invalid.
    #[must_use]
    pub fn parse(frame: &Frame) -> Option<Hello> {
        let [role, rank, size, local_rank, local_size, request] = *frame.words.first_chunk::<6>()?;
        let role = match role {
            1 => Role::Rank,
            2 => Role::Late,
            3 => Role::Library,
            4 => Role::Member,
            _ => return None,
        };
        let ranked = !matches!(role, Role::Rank | Role::Member)
            || (local_rank < local_size
                && local_size <= 1 << 20
                && (size == 0 || (rank < size && size <= 1 << 40)));
        ranked.then_some(Hello { role, rank, size, local_rank, local_size, request })
    }
}

/// The result of the agreement: the address and the layout of all buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Winner {
    /// The agreed address, at which the first buffer begins.
    pub address: u64,
    /// The number of bytes reserved at the address.
    pub length: u64,
    /// The offset of the control page from `address`, in bytes.
    pub control: u64,
    /// The length of the control page in bytes.
    pub control_length: u64,
    /// The buffers.
    pub buffers: Extents,
}

/// The buffers of a job, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extents {
    count: usize,
    list: [Extent; MAX_BUFFERS],
}

/// One buffer in the agreed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    /// The offset of the buffer from the agreed address, in bytes.
    pub offset: u64,
    /// The length of the buffer in bytes.
    pub length: u64,
    /// The flags of `mmap` in addition to `MAP_SHARED | MAP_FIXED`. Bit 63 includes the pages in
    /// core files.
    pub flags: u64,
}

/// The flag in [`Extent::flags`] that includes the pages in core files.
pub const FLAG_DUMP: u64 = 1 << 63;

impl Extents {
    /// Adds an extent. Returns false if there are already [`MAX_BUFFERS`].
    pub fn push(&mut self, extent: Extent) -> bool {
        let free = self.count < MAX_BUFFERS;
        if free {
            self.list[self.count] = extent;
            self.count += 1;
        }
        free
    }

    /// Returns all extents.
    #[must_use]
    pub fn as_slice(&self) -> &[Extent] {
        &self.list[..self.count]
    }
}

impl Winner {
    /// Encodes it as a frame.
    #[must_use]
    pub fn frame(&self) -> Frame {
        let mut frame = Frame::new(Kind::Winner);
        let head = [
            self.address,
            self.length,
            self.control,
            self.control_length,
            self.buffers.as_slice().len() as u64,
        ];
        frame.words[..5].copy_from_slice(&head);
        for (words, b) in frame.words[5..].chunks_exact_mut(3).zip(self.buffers.as_slice()) {
            words.copy_from_slice(&[b.offset, b.length, b.flags]);
        }
        frame
    }

    /// Decodes a frame of kind [`Kind::Winner`]. Returns `None` unless every part is inside the
    /// range.
    #[must_use]
    pub fn parse(frame: &Frame) -> Option<Winner> {
        let [address, length, control, control_length, count] = *frame.words.first_chunk::<5>()?;
        let inside = |offset: u64, bytes: u64| offset.checked_add(bytes).is_some_and(|end| end <= length);
        address.checked_add(length)?;
        if count as usize > MAX_BUFFERS || !inside(control, control_length) {
            return None;
        }
        let mut buffers = Extents::default();
        for words in frame.words[5..].chunks_exact(3).take(count as usize) {
            let extent = Extent { offset: words[0], length: words[1], flags: words[2] };
            if !inside(extent.offset, extent.length) || !buffers.push(extent) {
                return None;
            }
        }
        Some(Winner { address, length, control, control_length, buffers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_parsed_from_their_bytes() {
        let frame = Frame::new(Kind::Fail).with_words(&[1, 2]).with_text(b"no room");
        let back = Frame::parse(frame.bytes()).unwrap();
        assert_eq!(
            (back.kind(), back.text(), &back.words[..3]),
            (Some(Kind::Fail), &b"no room"[..], &[1, 2, 0][..])
        );
    }

    #[test]
    fn every_flipped_bit_of_the_head_is_rejected_or_harmless() {
        let good = Frame::new(Kind::Fail).with_text(b"text");
        for at in 0..16 {
            for bit in 0..8 {
                let mut bytes = good.bytes().to_vec();
                bytes[at] ^= 1 << bit;
                if let Some(frame) = Frame::parse(&bytes) {
                    assert!(frame.text().len() <= Frame::TEXT_MAX);
                    assert!(at >= 4, "a wrong magic number passed");
                }
            }
        }
        assert!(Frame::parse(&good.bytes()[1..]).is_none());
        assert!(Frame::parse(&[]).is_none());
    }

    #[test]
    fn a_winner_with_a_part_outside_its_range_is_rejected() {
        let mut buffers = Extents::default();
        assert!(buffers.push(Extent { offset: 0, length: 4096, flags: 0 }));
        let winner = Winner { address: 1 << 40, length: 8192, control: 4096, control_length: 4096, buffers };
        assert_eq!(Winner::parse(&winner.frame()), Some(winner));
        for word in 0..6 {
            let mut frame = winner.frame();
            frame.words[word] = u64::MAX;
            assert_eq!(Winner::parse(&frame), None, "word {word}");
        }
    }
}
