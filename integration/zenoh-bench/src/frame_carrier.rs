//! The ways in which a frame gets into the consumer's hand.

/// A way in which a frame gets into the consumer's hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameCarrier {
    /// zenoh's shared memory: a provider with 128 MiB, written in place.
    SharedMemory,
    /// zenoh with its defaults, which copies a frame of ordinary memory to its shared memory.
    Defaults,
    /// zenoh without shared memory, over a socket path.
    Socket,
    /// A block of a pool, whose token is zenoh's message.
    Token,
    /// A block of a pool, which `hostbuf-zenoh` gives to zenoh as a message.
    Provider,
    /// Nothing: a request that no frame answers.
    None,
}

impl FrameCarrier {
    const LETTERS: [(FrameCarrier, u8); 6] = [
        (FrameCarrier::SharedMemory, b's'),
        (FrameCarrier::Defaults, b'd'),
        (FrameCarrier::Socket, b'k'),
        (FrameCarrier::Token, b't'),
        (FrameCarrier::Provider, b'p'),
        (FrameCarrier::None, b'n'),
    ];

    /// Returns the letter by which a frame is requested.
    pub(crate) fn letter(self) -> u8 {
        FrameCarrier::LETTERS.iter().find(|(carrier, _)| *carrier == self).expect("it is listed").1
    }

    /// Returns the way with a letter.
    pub(crate) fn of(letter: u8) -> Option<FrameCarrier> {
        FrameCarrier::LETTERS.iter().find(|(_, known)| *known == letter).map(|(carrier, _)| *carrier)
    }
}

/// The part of a frame that the camera writes and the consumer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// All bytes.
    Bytes,
    /// One stamp in every 4 KiB.
    Stamps,
}

impl Touched {
    /// Returns the letter by which it is requested.
    pub(crate) fn letter(self) -> u8 {
        match self {
            Touched::Bytes => b'b',
            Touched::Stamps => b's',
        }
    }
}
