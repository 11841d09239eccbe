//! io_uring: one multishot recvmsg, and a ring of buffers from which the kernel takes one for each
//! datagram or each run of coalesced datagrams.
//!
//! The buffers are chunks of the pool. A *lent* chunk belongs to the kernel until a completion names
//! it, or until the request has ended; only then may it be touched or freed. In each buffer the kernel
//! writes, from the front: a header, the sender's address, control messages, and at [`PREFIX_BYTES`]
//! the payload.

use super::Received;
use super::address::Address;
use super::linux::RECEIVE_CONTROL_BYTES;
use arrayvec::ArrayVec;
use core::alloc::Layout;
use core::mem::zeroed;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, Ordering};
use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, Probe, cqueue, opcode};
use libc::{c_int, msghdr};
use slab_core::Chunk;
use std::alloc::{alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The size of `io_uring_recvmsg_out`: four 32-bit words.
const HEADER_BYTES: usize = 16;
/// Room for an address, a multiple of the word size.
const NAME_BYTES: usize = 32;
/// Room for control messages, chosen so that the payload begins at a multiple of 64.
const CONTROL_BYTES: usize = (HEADER_BYTES + NAME_BYTES + RECEIVE_CONTROL_BYTES)
    .next_multiple_of(64)
    - HEADER_BYTES
    - NAME_BYTES;

/// The offset of the payload in its buffer.
pub(in crate::udp) const PREFIX_BYTES: usize = HEADER_BYTES + NAME_BYTES + CONTROL_BYTES;

/// The most buffers that the kernel has at a time; a power of two.
pub(in crate::udp) const MAX_LENT: usize = 32;

/// The only buffer group of a ring.
const BUFFER_GROUP: u16 = 0;
const RECEIVE_TAG: u64 = 1;
const CANCEL_TAG: u64 = 2;

/// A buffer that the kernel has written to and returned.
pub(in crate::udp) struct Filled {
    chunk: Chunk,
    received: Received,
}

impl Filled {
    /// `len` is the number of bytes that the kernel reports, including those in front of the payload.
    fn new(chunk: Chunk, len: usize) -> Self {
        let payload = len.min(chunk.capacity()).saturating_sub(PREFIX_BYTES);
        // SAFETY: no lent chunk is shorter than `PREFIX_BYTES`, nobody writes to this one any more, and
        // `lend` has zeroed whatever the kernel did not write.
        let front = unsafe { chunk.as_ptr().cast::<[u8; PREFIX_BYTES]>().as_ref() };
        let received = decode(front, payload);
        Self { chunk, received }
    }

    pub(in crate::udp) fn received(&self) -> &Received {
        &self.received
    }

    pub(in crate::udp) fn payload(&self) -> &[u8] {
        // SAFETY: the payload lies within the chunk.
        let at = unsafe { self.chunk.as_ptr().add(PREFIX_BYTES) };
        // SAFETY: the kernel has written that many bytes, and nobody writes to the chunk any more.
        unsafe { core::slice::from_raw_parts(at.as_ptr(), self.received.len) }
    }

    pub(in crate::udp) fn chunk_bytes(&self) -> usize {
        self.chunk.capacity()
    }

    pub(in crate::udp) fn into_chunk(self) -> Chunk {
        self.chunk
    }
}

/// A receiver's ring.
pub(in crate::udp) struct Ring {
    ring: IoUring,
    socket: RawFd,
    /// The layout of what the kernel writes in front of a payload. It reads this when the request is
    /// made.
    header: Box<msghdr>,
    buffer_ring: BufferRing,
    /// The lent chunks, by buffer id.
    lent: [Option<Chunk>; MAX_LENT],
    ids: ArrayVec<u16, MAX_LENT>,
    buffer_bytes: usize,
    /// Whether a request is under way.
    is_armed: bool,
    /// Whether it is to be cancelled.
    is_cancelled: bool,
    /// An error that followed datagrams, to be returned before the next ones.
    pub(in crate::udp) deferred_error: Option<io::Error>,
}

// SAFETY: the pointers in `header` are null, and that in `buffer_ring` points to memory that this ring
// owns; system calls on a ring may come from any thread.
unsafe impl Send for Ring {}
// SAFETY: nothing is modified through a shared reference.
unsafe impl Sync for Ring {}

impl Ring {
    /// Creates a ring with buffers of `buffer_bytes`, if the kernel supports what it needs: multishot
    /// recvmsg (Linux 6.0) and buffer rings (5.19).
    pub(in crate::udp) fn new(socket: &impl AsRawFd, buffer_bytes: usize) -> io::Result<Self> {
        // One completion for each buffer, one for the end of the request, and one for its cancellation.
        let ring = IoUring::builder()
            .setup_cqsize(2 * MAX_LENT as u32)
            // No interrupt of the thread for each datagram: it is asleep, enters the kernel soon by itself, or,
            // if it computes while the receiver's task runs elsewhere, does so with the next tick of its clock.
            .setup_coop_taskrun()
            .build(4)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::SendZc::CODE) {
            // It came with the same release as multishot recvmsg, which cannot be probed itself.
            return Err(io::ErrorKind::Unsupported.into());
        }
        let buffer_ring = BufferRing::new()?;
        let at = buffer_ring.at.as_ptr() as u64;
        let submitter = ring.submitter();
        // SAFETY: there are `MAX_LENT` entries, and they are freed after the ring is closed.
        unsafe { submitter.register_buf_ring_with_flags(at, MAX_LENT as u16, BUFFER_GROUP, 0) }?;
        // SAFETY: a `msghdr` consists of integers and pointers, for which zeros are valid.
        let mut header: Box<msghdr> = Box::new(unsafe { zeroed() });
        header.msg_namelen = NAME_BYTES as _;
        header.msg_controllen = CONTROL_BYTES as _;
        Ok(Self {
            ring,
            socket: socket.as_raw_fd(),
            header,
            buffer_ring,
            lent: [const { None }; MAX_LENT],
            ids: (0..MAX_LENT as u16).collect(),
            buffer_bytes,
            is_armed: false,
            is_cancelled: false,
            deferred_error: None,
        })
    }

    /// The ring's descriptor, for a runtime to wait for.
    pub(in crate::udp) fn fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    /// The size of each buffer, in bytes.
    pub(in crate::udp) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// The number of buffers that the kernel has.
    pub(in crate::udp) fn lent(&self) -> usize {
        MAX_LENT - self.ids.len()
    }

    /// The size of their chunks, in bytes.
    pub(in crate::udp) fn lent_bytes(&self) -> usize {
        self.lent.iter().flatten().map(Chunk::capacity).sum()
    }

    /// Lends the kernel a buffer to write to. Drops the chunk if the kernel already has the most it can
    /// have.
    pub(in crate::udp) fn lend(&mut self, chunk: Chunk) {
        debug_assert!(chunk.capacity() >= self.buffer_bytes && self.buffer_bytes > PREFIX_BYTES);
        let Some(id) = self.ids.pop() else {
            return;
        };
        let at = chunk.as_ptr().as_ptr();
        // The kernel writes its metadata there, perhaps less than the whole prefix.
        // SAFETY: the chunk is ours alone and longer than `PREFIX_BYTES`.
        unsafe { at.write_bytes(0, PREFIX_BYTES) };
        self.buffer_ring
            .push(at as u64, self.buffer_bytes as u32, id);
        self.lent[usize::from(id)] = Some(chunk);
    }

    /// Makes the request, if none is under way and the kernel has buffers for it. Returns `false` if the kernel has no
    /// memory for it at the moment.
    ///
    /// # Errors
    /// The kernel does not accept the request. In both cases the next call submits it again.
    pub(in crate::udp) fn arm(&mut self) -> io::Result<bool> {
        if !self.is_armed && self.lent() > 0 {
            let header: *const msghdr = &raw const *self.header;
            let request = opcode::RecvMsgMulti::new(Fd(self.socket), header, BUFFER_GROUP)
                .build()
                .user_data(RECEIVE_TAG);
            self.push(&request)?;
            self.is_armed = true;
        }
        if self.ring.submission().is_empty() {
            return Ok(true);
        }
        match self.ring.submit() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns `true` if a request is under way.
    pub(in crate::udp) fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Lets the kernel run deferred work, such as completions for this thread.
    pub(in crate::udp) fn run_deferred_work(&self) {
        let submitter = self.ring.submitter();
        // SAFETY: nothing is submitted or waited for, and there is no argument. An error is of no
        // consequence: the call had nothing to do.
        let _ = unsafe { submitter.enter::<libc::sigset_t>(0, 0, GET_EVENTS, None) };
    }

    /// Returns the next completion, if there is one: a buffer, or a system error, after which receiving goes on.
    pub(in crate::udp) fn next(&mut self) -> Option<io::Result<Filled>> {
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() != RECEIVE_TAG {
                continue;
            }
            if !cqueue::more(entry.flags()) {
                self.is_armed = false;
            }
            let id = cqueue::buffer_select(entry.flags()).map(usize::from);
            let chunk = id.and_then(|id| self.take_lent(id));
            match (usize::try_from(entry.result()), chunk) {
                (Ok(len), Some(chunk)) => return Some(Ok(Filled::new(chunk, len))),
                (Ok(_), None) => {}
                (Err(_), _) => match -entry.result() {
                    // No buffer was left, or the request was ended, by us or with its thread.
                    libc::ENOBUFS | libc::ECANCELED | libc::EINTR => {}
                    code => return Some(Err(io::Error::from_raw_os_error(code))),
                },
            }
        }
    }

    /// Ends the request, and waits until the kernel has returned all buffers. Appends those that it has filled to
    /// `out`, also if the request cannot be ended.
    pub(in crate::udp) fn stop(&mut self, out: &mut Vec<Filled>) -> io::Result<()> {
        if self.is_armed && !self.is_cancelled {
            if self.ring.submission().is_empty() {
                let cancel = opcode::AsyncCancel::new(RECEIVE_TAG)
                    .build()
                    .user_data(CANCEL_TAG);
                self.push(&cancel)?;
                self.is_cancelled = true;
            } else {
                // The kernel has not accepted the request, and is not asked again.
                self.is_armed = false;
            }
        }
        let mut waited = Ok(());
        while self.is_armed && waited.is_ok() {
            waited = match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
                _ => Ok(()),
            };
            out.extend(std::iter::from_fn(|| self.next()).flatten());
        }
        match self.is_armed {
            true => waited,
            false => Ok(()),
        }
    }

    fn take_lent(&mut self, id: usize) -> Option<Chunk> {
        let chunk = self.lent.get_mut(id)?.take()?;
        self.ids.push(id as u16);
        Some(chunk)
    }

    fn push(&mut self, request: &io_uring::squeue::Entry) -> io::Result<()> {
        // SAFETY: the request points to the header, which lives as long as the ring; and the socket
        // stays open as long as the ring, since `Drop` waits for the end of the request.
        unsafe { self.ring.submission().push(request) }
            .map_err(|_| io::Error::from(io::ErrorKind::StorageFull))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.stop(&mut Vec::new()).is_err() {
            // The kernel may still read the entries, and write to the buffers that they name, so leak
            // both.
            for chunk in self.lent.iter_mut().filter_map(Option::take) {
                core::mem::forget(chunk);
            }
            self.buffer_ring.is_leaked = true;
        }
    }
}

/// IORING_ENTER_GETEVENTS.
const GET_EVENTS: u32 = 1;

/// Decodes the metadata in front of a payload of this many bytes.
fn decode(front: &[u8; PREFIX_BYTES], payload: usize) -> Received {
    let word = |at: usize| {
        let bytes = front.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    };
    let (name_len, control_len, flags) = (word(0) as usize, word(4) as usize, word(12));
    let mut name = Address::EMPTY;
    let bytes = &front[HEADER_BYTES..HEADER_BYTES + name.0.len()];
    name.0.copy_from_slice(bytes);
    let control = &front[HEADER_BYTES + NAME_BYTES..];
    let control = &control[..control_len.min(control.len())];
    let mut received = Received::NOTHING;
    received.decode(payload, &name, name_len, control, flags as c_int);
    received
}

/// The buffer ring as the kernel sees it: an array of entries, the first of which also holds the index
/// of the next entry to be written.
#[derive(Debug)]
struct BufferRing {
    at: NonNull<BufRingEntry>,
    tail: u16,
    /// Whether it is leaked, since the kernel may still use it.
    is_leaked: bool,
}

impl BufferRing {
    /// The kernel takes it at the beginning of a page, which has at most 64 KiB (on some ARM and POWER).
    const LAYOUT: Layout = match Layout::from_size_align(MAX_LENT * 16, 64 << 10) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    };

    fn new() -> io::Result<Self> {
        const { assert!(size_of::<BufRingEntry>() == 16) };
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc_zeroed(Self::LAYOUT) };
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            at: at.cast(),
            tail: 0,
            is_leaked: false,
        })
    }

    fn push(&mut self, addr: u64, len: u32, id: u16) {
        let index = usize::from(self.tail) % MAX_LENT;
        // SAFETY: the index is less than the number of entries.
        let entry = unsafe { self.at.add(index) };
        // SAFETY: the entry was allocated zeroed, and is ours: the kernel has read its previous
        // contents, or their buffer would not have been returned. The kernel never reads the tail
        // through this.
        let entry = unsafe { &mut *entry.as_ptr() };
        entry.set_addr(addr);
        entry.set_len(len);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the address of the first entry.
        let tail = unsafe { BufRingEntry::tail(self.at.as_ptr()) };
        // SAFETY: the tail is aligned, valid, and written only here.
        let tail = unsafe { AtomicU16::from_ptr(tail.cast_mut()) };
        // The kernel reads the entry after it has seen the new tail.
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for BufferRing {
    fn drop(&mut self) {
        if self.is_leaked {
            return;
        }
        // SAFETY: allocated with this layout. The ring, a field before this one, is already closed.
        unsafe { dealloc(self.at.as_ptr().cast(), Self::LAYOUT) };
    }
}
