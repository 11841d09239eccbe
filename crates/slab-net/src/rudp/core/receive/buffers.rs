//! Receive buffers that segments share, and what is charged for them: see [`ReceiveQueue`].

use super::{BatchBuffer, Held, MAX_OVERSIZE, ReceiveQueue, UNSHARED, reservation};
use crate::packet::{Packet, PacketPool};

/// A receive buffer that segments share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffer {
    /// Segments in it that are still held.
    live: u32,
    /// Segments that are in it, or were until they were read.
    count: u32,
    bytes: u32,
    /// What it takes beyond `bytes`, if awaited segments share it.
    oversize: u32,
}

impl Buffer {
    /// The bytes it takes from the reserve.
    fn extra(&self, slot: u32) -> usize {
        (self.bytes as usize).saturating_sub(self.count as usize * slot as usize)
    }
}

impl Held {
    /// A segment in a buffer that is charged as a whole.
    fn shared(packet: Packet, frg: u8, buffer: u32) -> Self {
        Self {
            packet,
            frg,
            buffer,
            charge: 0,
        }
    }
}

impl ReceiveQueue {
    /// Accounts for a segment's memory; `None` if there is none for it. An `awaited` segment may lie in more than
    /// its slot.
    pub(super) fn charge(
        &mut self,
        frg: u8,
        packet: Packet,
        awaited: bool,
        pool: &PacketPool,
        batch: &mut BatchBuffer,
    ) -> Option<Held> {
        let occupied = packet.occupied_bytes();
        if batch.transient && !packet.is_empty() {
            if batch.pool_exhausted && !awaited {
                return None;
            }
            let copy = self.copy(frg, &packet, awaited, pool);
            batch.pool_exhausted = copy.is_none();
            return match copy {
                None if awaited => self.pack(frg, &packet, pool),
                copy => copy,
            };
        }
        if occupied <= self.slot() {
            return Some(self.charge_unshared(frg, packet, occupied));
        }
        let memory = packet.memory();
        // A batch may have several buffers: error correction adds its own.
        if let Some((buffer, open)) = batch.open
            && open == memory
        {
            self.add_to_buffer(buffer);
            return Some(Held::shared(packet, frg, buffer));
        }
        if self.promised() + (occupied - self.slot()) <= self.account.bytes() {
            let buffer = self.push_buffer(Buffer {
                live: 1,
                count: 1,
                bytes: occupied as u32,
                oversize: 0,
            });
            batch.open = Some((buffer, memory));
            return Some(Held::shared(packet, frg, buffer));
        }
        let copy = self.copy(frg, &packet, awaited, pool);
        if copy.is_some() || !awaited {
            return copy;
        }
        if occupied <= self.max_awaited_chunk() {
            return Some(self.charge_unshared(frg, packet, occupied));
        }
        self.pack(frg, &packet, pool)
    }

    /// The largest chunk for an awaited segment, in bytes.
    fn max_awaited_chunk(&self) -> usize {
        self.slot() + MAX_OVERSIZE - self.oversize
    }

    /// Copies a segment into a chunk of its own size; if its class has no chunk, into one of the next class that has: of
    /// a slot at most, for which the session has paid, or larger if the segment is `awaited`.
    fn copy(&mut self, frg: u8, packet: &[u8], awaited: bool, pool: &PacketPool) -> Option<Held> {
        let most = if awaited {
            self.max_awaited_chunk()
        } else {
            self.slot()
        };
        let mut copy = pool.try_alloc_or_larger(packet.len(), most).ok()?;
        copy.extend_from_slice(packet);
        let copy = copy.freeze();
        let occupied = copy.occupied_bytes();
        self.copied += 1;
        Some(self.charge_unshared(frg, copy, occupied))
    }

    /// Copies an awaited segment into one chunk with those before it that lie in more than their slots. In chunks of
    /// their own, a few of them use up what they may take together, and a message of more could never be read.
    #[cold]
    fn pack(&mut self, frg: u8, packet: &[u8], pool: &PacketPool) -> Option<Held> {
        if self.oversize == 0 {
            return None; // Alone, it may take no more than `copy` has tried.
        }
        let (mut count, mut bytes) = (1, packet.len());
        for held in self.oversize_segments() {
            count += 1;
            bytes += held.packet.len();
        }
        let slots = count as usize * self.slot();
        let most = slots + MAX_OVERSIZE;
        let mut chunk = pool.try_alloc_or_larger(bytes, most).ok()?;
        for held in self.oversize_segments() {
            chunk.extend_from_slice(&held.packet);
        }
        chunk.extend_from_slice(packet);
        let mut chunk = chunk.freeze();
        let occupied = chunk.occupied_bytes();
        // The class for so many bytes may be far larger.
        if occupied > most {
            return None;
        }
        let within = occupied.min(slots);
        let buffer = self.push_buffer(Buffer {
            live: count,
            count,
            bytes: within as u32,
            oversize: (occupied - within) as u32,
        });
        self.copied += u64::from(count);
        for n in 0..self.unread() {
            let sn = self.read.wrapping_add(n);
            if self.is_oversize(sn) {
                self.move_to_buffer(sn, &mut chunk, buffer);
            }
        }
        Some(Held::shared(chunk, frg, buffer))
    }

    /// The segments in order that lie in more than their slots.
    fn oversize_segments(&self) -> impl Iterator<Item = &Held> {
        let sns = (0..self.unread()).map(|n| self.read.wrapping_add(n));
        sns.filter(|&sn| self.is_oversize(sn))
            .filter_map(|sn| self.ring.at(sn).as_ref())
    }

    fn is_oversize(&self, sn: u32) -> bool {
        self.ring
            .at(sn)
            .as_ref()
            .is_some_and(|held| match held.buffer {
                UNSHARED => held.packet.occupied_bytes() > self.slot(),
                shared => self.buffers[shared as usize].oversize > 0,
            })
    }

    /// A segment moves from where it lies to the front of `chunk`, which is charged already as this buffer.
    fn move_to_buffer(&mut self, sn: u32, chunk: &mut Packet, buffer: u32) {
        let slot = self.slot();
        let Some(held) = self.ring.at_mut(sn) else {
            return;
        };
        let part = chunk.split_to(held.packet.len());
        let from = core::mem::replace(&mut held.packet, part);
        let shared = core::mem::replace(&mut held.buffer, buffer);
        let charge = core::mem::replace(&mut held.charge, 0);
        if shared == UNSHARED {
            self.charged -= charge as usize;
            self.oversize -= from.occupied_bytes() - slot;
        } else {
            self.take_out_of_buffer(shared);
        }
    }

    fn charge_unshared(&mut self, frg: u8, packet: Packet, occupied: usize) -> Held {
        let bytes = occupied.min(self.slot());
        self.oversize += occupied - bytes;
        self.charged += bytes;
        Held {
            packet,
            frg,
            buffer: UNSHARED,
            charge: bytes as u32,
        }
    }

    fn push_buffer(&mut self, buffer: Buffer) -> u32 {
        self.charged += buffer.bytes as usize;
        self.extra += buffer.extra(self.slot);
        self.oversize += buffer.oversize as usize;
        match self.free_buffers.pop() {
            Some(index) => {
                self.buffers[index as usize] = buffer;
                index
            }
            None => {
                if self.buffers.len() == self.buffers.capacity() {
                    self.buffers.reserve(1);
                    // All buffers may be free at once.
                    self.free_buffers.reserve_exact(self.buffers.capacity());
                }
                self.buffers.push(buffer);
                (self.buffers.len() - 1) as u32
            }
        }
    }

    /// One more segment lies in a buffer.
    fn add_to_buffer(&mut self, index: u32) {
        let buffer = &mut self.buffers[index as usize];
        self.extra -= buffer.extra(self.slot);
        buffer.live += 1;
        buffer.count += 1;
        self.extra += buffer.extra(self.slot);
    }

    /// A segment leaves the buffer it shared; the buffer goes with the last one. Until then the segment's slot
    /// stays with the buffer.
    pub(super) fn remove_from_buffer(&mut self, index: u32) {
        let buffer = &mut self.buffers[index as usize];
        buffer.live -= 1;
        if buffer.live == 0 {
            self.charged -= buffer.bytes as usize;
            self.oversize -= buffer.oversize as usize;
            self.extra -= buffer.extra(self.slot);
            self.deferred -= buffer.count;
            self.free_buffers.push(index);
        }
    }

    /// Call where the window may have become full. If a message fills it that cannot be read before the rest of it
    /// is here, and that rest cannot be promised because of buffers that the message itself keeps in use, copies
    /// the message's segments out of them.
    #[inline]
    pub(in super::super) fn make_room(&mut self, pool: &PacketPool, batch: &mut BatchBuffer) {
        if self.deferred > 0 && self.advertised() == 0 {
            self.copy_out_of_buffers(pool);
            // The open buffer may be gone.
            batch.open = None;
        }
    }

    #[cold]
    pub(super) fn copy_out_of_buffers(&mut self, pool: &PacketPool) {
        if self.complete > 0 || self.deferred == 0 {
            return;
        }
        for n in 0..self.ring.capacity() {
            let sn = self.read.wrapping_add(n);
            let buffer = self
                .ring
                .at(sn)
                .as_ref()
                .map_or(UNSHARED, |held| held.buffer);
            if buffer == UNSHARED {
                continue;
            }
            if !self.can_do_with_fewer(buffer) {
                break;
            }
            let Some(held) = self.ring.at_mut(sn) else {
                continue;
            };
            let Ok(copy) = pool.try_copy_from_slice(&held.packet) else {
                break;
            };
            let bytes = copy.occupied_bytes();
            held.buffer = UNSHARED;
            held.packet = copy;
            held.charge = bytes as u32;
            self.charged += bytes;
            self.copied += 1;
            self.take_out_of_buffer(buffer);
        }
        self.release_surplus();
        self.check();
    }

    /// A segment that leaves the buffer it shared for another chunk takes its slot along.
    fn take_out_of_buffer(&mut self, index: u32) {
        let shared = &mut self.buffers[index as usize];
        self.extra -= shared.extra(self.slot);
        shared.count -= 1;
        self.extra += shared.extra(self.slot);
        self.remove_from_buffer(index);
    }

    /// A buffer that gives up a slot takes more from the reserve, until its last segment has left it. Others may
    /// have used that up, and there may be no memory to copy the last one: so it is reserved first, if need be.
    fn can_do_with_fewer(&mut self, index: u32) -> bool {
        let buffer = self.buffers[index as usize];
        let fewer = Buffer {
            count: buffer.count - 1,
            ..buffer
        };
        let more = match buffer.live {
            1 => 0,
            _ => fewer.extra(self.slot) - buffer.extra(self.slot),
        };
        let missing = (self.promised() + more).saturating_sub(self.account.bytes());
        missing == 0 || (self.may_grow && self.account.reserve(missing))
    }

    /// Gives back what was reserved beyond the window's own reserve and is no longer needed.
    pub(super) fn release_surplus(&mut self) {
        let needed = reservation(self.window, self.slot()).max(self.promised());
        self.account
            .release(self.account.bytes().saturating_sub(needed));
    }
}
