//! Programs made of bytes, from the fuzz target or random. The first byte selects headroom and tailroom;
//! each step begins with a byte that selects the operation.

use crate::machine;
use crate::op::Op;
use std::ops::Bound;

/// The most steps in a program.
const MAX_STEPS: usize = 200;

/// Runs the program that `bytes` encode.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (headroom, tailroom) = [(0, 0), (32, 16), (200, 0)][usize::from(input.byte() % 3)];
    let steps = std::iter::from_fn(|| (!input.0.is_empty()).then(|| input.op()));
    machine::run(headroom, tailroom, steps.take(MAX_STEPS));
}

/// The rest of the input; zeros follow its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        byte
    }

    fn slot(&mut self) -> usize {
        usize::from(self.byte() % 16)
    }

    /// Reads a length: usually small, sometimes larger than the largest size class.
    fn len(&mut self) -> usize {
        match self.byte() {
            byte @ ..200 => usize::from(byte),
            byte => usize::from(byte - 199) * 800 + usize::from(self.byte()),
        }
    }

    /// Returns bytes that all differ, so that each is recognizable.
    fn data(&mut self) -> Vec<u8> {
        let (first, len) = (self.byte(), self.len().min(3000));
        (0..len).map(|n| first.wrapping_add(n as u8)).collect()
    }

    fn bound(&mut self) -> Bound<usize> {
        match self.byte() % 8 {
            0 => Bound::Unbounded,
            1 => Bound::Included(usize::MAX),
            2 => Bound::Excluded(usize::MAX),
            kind if kind.is_multiple_of(2) => Bound::Included(self.len()),
            _ => Bound::Excluded(self.len()),
        }
    }

    fn op(&mut self) -> Op {
        match self.byte() % 43 {
            0 => Op::Alloc(self.len()),
            1 => Op::New,
            2 => Op::FromVec(self.data()),
            3 => Op::FromStatic,
            4 => Op::FromOwner(self.data()),
            5 => Op::CopyFromSlice(self.data()),
            6 => Op::Zeroed(self.len()),
            7 => Op::Collect(self.data()),
            8 => Op::Drop(self.slot()),
            9 => Op::Extend(self.slot(), self.data()),
            10 => Op::ExtendByBytes(self.slot(), self.data()),
            11 => Op::ExtendByPairs(self.slot(), self.slot()),
            12 => Op::ExtendWithin(self.slot(), self.bound(), self.bound()),
            13 => Op::PutChain(self.slot(), self.data(), self.data()),
            14 => Op::PutBytes(self.slot(), self.byte(), self.len()),
            15 => Op::PutInts(self.slot(), u64::from(self.byte()) << 33 | 0x0123_4567),
            16 => Op::WriteSpare(self.slot(), self.data()),
            17 => Op::ChunkMut(self.slot(), self.data()),
            18 => Op::Format(self.slot(), u32::from(self.byte()) << 20),
            19 => Op::Flip(self.slot(), self.len()),
            20 => Op::Prepend(self.slot(), self.data()),
            21 => Op::PrependHeader(self.slot(), self.data()),
            22 => Op::SplitTo(self.slot(), self.len()),
            23 => Op::SplitOff(self.slot(), self.len()),
            24 => Op::SplitOffFar(self.slot()),
            25 => Op::Split(self.slot()),
            26 => Op::CopyToBytes(self.slot(), self.len()),
            27 => Op::Unsplit(self.slot(), self.slot()),
            28 => Op::SplitAndJoin(self.slot(), self.len(), self.data()),
            29 => Op::Truncate(self.slot(), self.len()),
            30 => Op::Clear(self.slot()),
            31 => Op::Resize(self.slot(), self.len(), self.byte()),
            32 => Op::Reserve(self.slot(), self.len()),
            33 => Op::ReserveHuge(self.slot(), self.len()),
            34 => Op::TryReclaim(self.slot(), self.len()),
            35 => Op::Advance(self.slot(), self.len()),
            36 => Op::GetInts(self.slot()),
            37 => Op::Freeze(self.slot()),
            38 => Op::Thaw(self.slot()),
            39 => Op::Clone(self.slot()),
            40 => Op::Slice(self.slot(), self.bound(), self.bound()),
            41 => Op::SliceRef(self.slot(), self.len(), self.len()),
            _ if self.byte().is_multiple_of(2) => Op::Compact(self.slot()),
            _ => Op::ThroughBytes(self.slot()),
        }
    }
}
