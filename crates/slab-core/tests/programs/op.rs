//! The steps of a random program, and how bytes encode them.

/// One step. `u8` and `u16` operands are reduced to what there is to choose from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Op {
    /// Takes a chunk of about this size.
    Alloc(u16),
    /// Asks for more than any class holds.
    AllocTooLarge,
    /// Takes chunks until the pool refuses, or this many.
    AllocMany(u16, u8),
    /// Takes a batch in one step.
    Batch(u16, u8),
    /// Takes one chunk out of a batch, or puts one in.
    BatchPop(u8),
    BatchPush(u8, u8),
    /// Gives up one thing that is held, whatever it is.
    Free(u8),
    /// Gives up each n-th thing.
    FreeEach(u8),
    FreeAll,
    /// Turns a chunk into a shared one and clones it.
    Share(u8, u8),
    /// Takes a chunk apart into its pointer, and back.
    IntoRaw(u8),
    FromRaw(u8),
    /// Waits for a chunk; polls again; gives up.
    Wait(u16),
    Poll(u8),
    Cancel(u8),
    Flush,
    Trim,
    TrimTo(u8),
    /// Ends the thread that the next step would run on.
    EndThread,
}

/// A step, and the number of the thread that takes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) thread: u8,
    pub(crate) op: Op,
}

impl Step {
    /// Bytes that one step is made from.
    pub(crate) const BYTES: usize = 4;

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [kind, a, b, c] = bytes;
        let size = u16::from_le_bytes([a, b]);
        let op = match kind & 31 {
            0..=6 => Op::Alloc(size),
            7 => Op::AllocTooLarge,
            8 => Op::AllocMany(size, c),
            9 => Op::Batch(size, c),
            10 => Op::BatchPop(a),
            11 => Op::BatchPush(a, b),
            12..=17 => Op::Free(a),
            18 => Op::FreeEach(a),
            19 => Op::FreeAll,
            20..=21 => Op::Share(a, c),
            22 => Op::IntoRaw(a),
            23 => Op::FromRaw(a),
            24 => Op::Wait(size),
            25 => Op::Poll(a),
            26 => Op::Cancel(a),
            27 => Op::Flush,
            28 => Op::Trim,
            29 => Op::TrimTo(a),
            30 => Op::EndThread,
            _ => Op::Free(b),
        };
        let thread = kind >> 5;
        Self { thread, op }
    }
}
