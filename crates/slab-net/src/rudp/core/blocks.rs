//! The pool memory of segments to be sent, with room for their headers.
//!
//! Segments are laid out one behind the other in blocks, header first, so that a run of them is already what goes
//! to the kernel: segments that fit one datagram or, with GSO, many datagrams of one size. Headers are written in
//! place when a segment is sent. A message in a packet of its own, with room for a header in front, stays where it
//! is and is a block by itself.

use super::super::budget::SendAccount;
use super::super::wire::HEADER_BYTES;
use crate::packet::{PacketBuf, PacketPool};

/// The largest block: what the kernel takes in one call with GSO.
const MAX_BLOCK: usize = 65507;
/// A packet is adopted only if its chunk is at most this many times as large as its segment.
const ADOPT_RATIO: usize = 2;

/// Where a segment lies: its header, and its payload behind that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) block: u32,
    pub(super) offset: u32,
    /// Bytes of payload.
    pub(super) len: u32,
}

impl Place {
    /// The length in bytes, header included.
    pub(super) fn size(&self) -> usize {
        HEADER_BYTES + self.len as usize
    }

    /// The offset of the byte behind it.
    pub(super) fn end(&self) -> u32 {
        self.offset + self.size() as u32
    }
}

#[derive(Debug)]
struct Block {
    /// Empty if the block is free.
    buf: PacketBuf,
    /// Segments that are not yet acknowledged.
    live: u32,
    reserved: usize,
}

#[derive(Debug)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// The block that new segments go to.
    open: Option<u32>,
    /// The capacity of the last block opened, and the most bytes of pool memory: in 32 bits, as there are many
    /// sessions.
    last_bytes: u32,
    limit: u32,
    account: SendAccount,
}

impl Blocks {
    pub(super) fn new(account: SendAccount) -> Self {
        Self {
            blocks: Vec::new(),
            free: Vec::new(),
            open: None,
            last_bytes: 0,
            limit: u32::MAX,
            account,
        }
    }

    /// Limits the pool memory in use to this many bytes from now on; `u32::MAX` is no limit.
    pub(super) fn set_limit(&mut self, bytes: u32) {
        self.limit = bytes;
    }

    /// Whether no segment is held: nothing is in flight, nor laid out to be sent.
    fn is_empty(&self) -> bool {
        self.blocks.len() == self.free.len()
    }

    /// If other segments are in flight, whose acknowledgements free memory, these can wait: so that sessions whose
    /// peers take nothing leave room for new ones, and for others to send.
    fn reserve(&mut self, bytes: usize, alone: bool) -> bool {
        let limited = self.limit < u32::MAX && self.account.bytes() + bytes > self.limit as usize;
        let reserve = match alone {
            true => SendAccount::reserve,
            false => SendAccount::reserve_spare,
        };
        !limited && reserve(&mut self.account, bytes)
    }

    /// Would the budget give so many bytes more to a session that has nothing in flight?
    pub(super) fn has_budget(&mut self, bytes: usize) -> bool {
        let has = self.reserve(bytes, true);
        if has {
            self.account.release(bytes);
        }
        has
    }

    /// Bytes of pool memory in use.
    pub(super) fn reserved(&self) -> usize {
        self.account.bytes()
    }

    /// Lays out a segment of `payload`, which `more` bytes of segments will follow at once; `None` if there is no
    /// memory. `alone`: nothing is in flight, nor to be sent, but the message that it belongs to.
    // Inlined so that the place is not read back from the stack, which would wait until all of the payload, written
    // just before, is in the cache.
    #[inline(always)]
    pub(super) fn push(
        &mut self,
        payload: &[u8],
        more: usize,
        alone: bool,
        pool: &PacketPool,
    ) -> Option<Place> {
        let needed = HEADER_BYTES + payload.len();
        let block = match self.open {
            Some(open) if self.blocks[open as usize].buf.tailroom() >= needed => open,
            _ => self.open_block(needed, more, alone, pool)?,
        };
        Some(self.append(block, payload))
    }

    /// Lays out a segment at the end of a block, which has room for it.
    #[inline(always)]
    fn append(&mut self, block: u32, payload: &[u8]) -> Place {
        let Block { buf, live, .. } = &mut self.blocks[block as usize];
        let offset = buf.len() as u32;
        buf.extend_from_slice(&[0; HEADER_BYTES]);
        buf.extend_from_slice(payload);
        *live += 1;
        Place {
            block,
            offset,
            len: payload.len() as u32,
        }
    }

    /// As [`push`](Self::push), for a small segment that must not wait for memory: if the budget or the pool has
    /// none, it comes from the heap, as far as the pool allows that.
    pub(super) fn push_or_heap(&mut self, payload: &[u8], pool: &PacketPool) -> Option<Place> {
        if let Some(place) = self.push(payload, 0, true, pool) {
            return Some(place);
        }
        let buf = pool.try_from_heap(HEADER_BYTES + payload.len())?;
        let block = self.add(buf, 0, 0);
        Some(self.append(block, payload))
    }

    /// Lengthens a segment by as much of `payload` as there is room for, up to `max` bytes, if it is the last one
    /// in the open block. Returns the number of bytes added.
    pub(super) fn extend(&mut self, place: &mut Place, payload: &[u8], max: usize) -> usize {
        let Block { buf, .. } = &mut self.blocks[place.block as usize];
        if self.open != Some(place.block) || buf.len() != place.end() as usize {
            return 0;
        }
        let room = buf.tailroom().min(max.saturating_sub(place.len as usize));
        let taken = payload.len().min(room);
        buf.extend_from_slice(&payload[..taken]);
        place.len += taken as u32;
        taken
    }

    /// Takes a packet as a segment if it has room for the header and its chunk is not too large for it; gives it
    /// back otherwise.
    pub(super) fn adopt(&mut self, mut packet: PacketBuf, alone: bool) -> Result<Place, PacketBuf> {
        let (len, size) = (packet.len(), HEADER_BYTES + packet.len());
        let occupied = packet.occupied_bytes();
        if packet.class().is_none()
            || packet.headroom() < HEADER_BYTES
            || occupied > size.next_multiple_of(64) * ADOPT_RATIO
            || !self.reserve(occupied, alone)
        {
            return Err(packet);
        }
        packet.prepend_header(HEADER_BYTES);
        let block = self.add(packet, 1, occupied);
        Ok(Place {
            block,
            offset: 0,
            len: len as u32,
        })
    }

    fn open_block(
        &mut self,
        needed: usize,
        more: usize,
        alone: bool,
        pool: &PacketPool,
    ) -> Option<u32> {
        let room = pool.room();
        let largest = pool.slab().size_classes().largest().saturating_sub(room);
        // While earlier segments are in flight, more than was announced is likely to come.
        let likely = if self.is_empty() {
            0
        } else {
            self.last_bytes as usize * 2
        };
        let wanted = (needed + more).max(likely).min(MAX_BLOCK).min(largest);
        let sizes = [wanted.max(needed), needed];
        let (buf, reserved) = sizes
            .iter()
            .find_map(|&bytes| self.allocate(bytes, alone, pool))
            .or_else(|| self.allocate_larger(needed, pool))?;
        self.last_bytes = buf.capacity() as u32;
        let block = self.add(buf, 0, reserved);
        self.close();
        self.open = Some(block);
        Some(block)
    }

    fn allocate(
        &mut self,
        bytes: usize,
        alone: bool,
        pool: &PacketPool,
    ) -> Option<(PacketBuf, usize)> {
        let reserved = pool.slab().size_classes().round_up(bytes + pool.room())?;
        if !self.reserve(reserved, alone) {
            return None;
        }
        match pool.try_alloc(bytes) {
            Ok(buf) => Some((buf, reserved)),
            Err(_) => {
                self.account.release(reserved);
                None
            }
        }
    }

    /// If nothing is in flight, whose acknowledgement would free memory: takes a chunk of the next larger class that
    /// has one. Otherwise what is unread, of this session and others, could keep its class in use for as long as
    /// their readers wait to send.
    fn allocate_larger(&mut self, bytes: usize, pool: &PacketPool) -> Option<(PacketBuf, usize)> {
        if !self.is_empty() {
            return None;
        }
        let buf = pool.try_alloc_or_larger(bytes, usize::MAX).ok()?;
        let reserved = buf.occupied_bytes();
        self.reserve(reserved, true).then_some((buf, reserved))
    }

    fn add(&mut self, buf: PacketBuf, live: u32, reserved: usize) -> u32 {
        let block = Block {
            buf,
            live,
            reserved,
        };
        match self.free.pop() {
            Some(index) => {
                self.blocks[index as usize] = block;
                index
            }
            None => {
                if self.blocks.len() == self.blocks.capacity() {
                    // Most sessions never have a second block. All blocks may be free at once.
                    let more = self.blocks.len().max(1);
                    self.blocks.reserve_exact(more);
                    self.free.reserve_exact(self.blocks.capacity());
                }
                self.blocks.push(block);
                (self.blocks.len() - 1) as u32
            }
        }
    }

    /// Puts nothing more into the open block.
    fn close(&mut self) {
        if let Some(open) = self.open.take()
            && self.blocks[open as usize].live == 0
        {
            self.give_back(open);
        }
    }

    /// A segment is no longer needed.
    pub(super) fn release(&mut self, place: Place) {
        let block = &mut self.blocks[place.block as usize];
        block.live -= 1;
        if block.live == 0 {
            if self.open == Some(place.block) {
                self.open = None;
            }
            self.give_back(place.block);
        }
    }

    fn give_back(&mut self, index: u32) {
        let block = &mut self.blocks[index as usize];
        block.buf = PacketBuf::new();
        self.account.release(block.reserved);
        self.free.push(index);
    }

    /// Frees the lists' memory if they hold no block.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.blocks = Vec::new();
            self.free = Vec::new();
        }
    }

    /// Drops all segments.
    pub(super) fn clear(&mut self) {
        self.blocks = Vec::new();
        self.free = Vec::new();
        self.open = None;
        self.account.release(self.account.bytes());
    }

    /// The bytes of a segment, header included.
    #[inline]
    pub(super) fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        let buf = &mut self.blocks[place.block as usize].buf;
        &mut buf[place.offset as usize..place.end() as usize]
    }

    /// The bytes from `start` to `end` of a block.
    #[inline]
    pub(super) fn range(&self, block: u32, start: u32, end: u32) -> &[u8] {
        &self.blocks[block as usize].buf[start as usize..end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::budget::MemoryBudget;
    use super::*;

    fn pool(headroom: usize) -> PacketPool {
        PacketPool::builder()
            .max_memory(4 << 20)
            .headroom(headroom)
            .build()
            .unwrap()
    }

    #[test]
    fn adjacent_segments_share_a_block_that_is_freed_with_the_last() {
        let (pool, budget) = (pool(0), MemoryBudget::new(1 << 20));
        let mut blocks = Blocks::new(budget.account_to_send());
        let a = blocks.push(b"aaaa", 100, true, &pool).unwrap();
        let b = blocks.push(b"bb", 0, true, &pool).unwrap();
        assert_eq!((b.block, b.offset), (a.block, a.end()));
        assert_eq!(&blocks.range(a.block, 24, 28), b"aaaa");
        assert_eq!(pool.slab().stats().in_use(), 1);
        blocks.release(a);
        assert_eq!(pool.slab().stats().in_use(), 1);
        blocks.release(b);
        assert_eq!((pool.slab().stats().in_use(), budget.reserved()), (0, 0));
    }

    #[test]
    fn only_the_last_segment_can_be_extended() {
        let (pool, budget) = (pool(0), MemoryBudget::new(1 << 20));
        let mut blocks = Blocks::new(budget.account_to_send());
        let mut a = blocks.push(b"aa", 1000, true, &pool).unwrap();
        assert_eq!(blocks.extend(&mut a, b"xxxx", 5), 3);
        assert_eq!(a.len, 5);
        let mut b = blocks.push(b"b", 0, true, &pool).unwrap();
        assert_eq!(blocks.extend(&mut a, b"x", 100), 0);
        assert_eq!(blocks.extend(&mut b, b"c", 100), 1);
        assert_eq!(&blocks.bytes_mut(b)[24..], b"bc");
    }

    #[test]
    fn a_packet_with_headroom_is_adopted_without_a_copy() {
        let (pool, budget) = (pool(24), MemoryBudget::new(1 << 20));
        let mut blocks = Blocks::new(budget.account_to_send());
        let mut packet = pool.try_alloc(900).unwrap();
        packet.resize(900, 1);
        let at = packet.as_ptr();
        let place = blocks.adopt(packet, true).unwrap();
        assert_eq!(blocks.bytes_mut(place)[24..].as_ptr(), at);
        blocks.release(place);

        // A small message in a large chunk would pin it.
        let mut packet = pool.try_alloc(9000).unwrap();
        packet.resize(10, 1);
        assert!(blocks.adopt(packet, true).is_err());
        assert_eq!((pool.slab().stats().in_use(), budget.reserved()), (0, 0));
    }

    #[test]
    fn a_larger_chunk_serves_if_nothing_is_in_flight() {
        let (pool, budget) = (pool(0), MemoryBudget::new(1 << 20));
        // Slabs of a class above that of the segment, with one free chunk.
        let mut held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(2048).ok()).collect();
        held.pop();
        assert!(pool.try_alloc(1400).is_err());

        let mut blocks = Blocks::new(budget.account_to_send());
        let first = blocks.push(&[0; 1300], 0, true, &pool).unwrap();
        assert_eq!(budget.reserved(), 2048);
        held.pop();
        let next = blocks.push(&[0; 1300], 0, true, &pool);
        assert_eq!(
            next, None,
            "the acknowledgement of the first will free memory"
        );
        blocks.release(first);
        assert_eq!(budget.reserved(), 0);
        assert!(blocks.push(&[0; 1300], 0, true, &pool).is_some());
    }

    #[test]
    fn the_budget_and_the_pool_are_limits() {
        let (pool, budget) = (pool(0), MemoryBudget::new(3000));
        let mut blocks = Blocks::new(budget.account_to_send());
        let first = blocks.push(&[0; 1376], 100_000, true, &pool).unwrap();
        assert_eq!(budget.reserved(), 1536, "the smaller block was taken");
        assert_eq!(blocks.push(&[0; 1476], 0, true, &pool), None);
        blocks.release(first);
        assert_eq!((pool.slab().stats().in_use(), budget.reserved()), (0, 0));
    }
}
