//! Reading and writing: `Buf`, `BufMut`, `fmt::Write`, slices and iterators, as in `bytes`.

use super::buf::PacketBuf;
use super::frozen::Packet;
use bytes::buf::{IntoIter, UninitSlice};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use core::borrow::{Borrow, BorrowMut};
use core::fmt;
use core::ops::{Deref, DerefMut};

/// The bytes that [`BufMut::chunk_mut`] reserves when there is no room left.
const MIN_GROWTH: usize = 64;

// SAFETY: `chunk_mut` returns the free bytes behind the contents, and `advance_mut` adds that many of
// them to the contents.
unsafe impl BufMut for PacketBuf {
    #[inline]
    fn remaining_mut(&self) -> usize {
        u32::MAX as usize - self.len()
    }

    #[inline]
    unsafe fn advance_mut(&mut self, cnt: usize) {
        let room = self.tailroom();
        assert!(
            cnt <= room,
            "advance out of bounds: the len is {room} but advancing by {cnt}"
        );
        let len = self.len() + cnt;
        // SAFETY: within the capacity; the caller has written the bytes.
        unsafe { self.set_len(len) };
    }

    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn chunk_mut(&mut self) -> &mut UninitSlice {
        if self.tailroom() == 0 {
            // Up to the last byte of the longest buffer; one more is refused as everywhere else.
            self.reserve(MIN_GROWTH.min(self.remaining_mut()).max(1));
        }
        self.spare_capacity_mut().into()
    }

    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn put<T: Buf>(&mut self, mut src: T)
    where
        Self: Sized,
    {
        self.reserve(src.remaining());
        while src.has_remaining() {
            let part = src.chunk();
            let len = part.len();
            self.extend_from_slice(part);
            src.advance(len);
        }
    }

    #[inline]
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn put_slice(&mut self, src: &[u8]) {
        self.extend_from_slice(src);
    }

    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn put_bytes(&mut self, val: u8, cnt: usize) {
        self.reserve(cnt);
        let to = self.spare_capacity_mut().as_mut_ptr();
        // SAFETY: there is room for `cnt` bytes now.
        unsafe { to.write_bytes(val, cnt) };
        // SAFETY: just written.
        unsafe { self.advance_mut(cnt) };
    }
}

impl fmt::Write for PacketBuf {
    /// Returns an error where [`reserve`](PacketBuf::reserve) panics for want of memory. What was written
    /// before stays.
    #[inline]
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.reserve_or_refuse(s.len()).map_err(|_| fmt::Error)?;
        self.put_slice(s.as_bytes());
        Ok(())
    }
}

impl DerefMut for PacketBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl AsMut<[u8]> for PacketBuf {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

impl BorrowMut<[u8]> for PacketBuf {
    fn borrow_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

/// The traits that both types implement.
macro_rules! read_traits {
    ($type:ty) => {
        impl Buf for $type {
            #[inline]
            fn remaining(&self) -> usize {
                self.len()
            }

            #[inline]
            fn chunk(&self) -> &[u8] {
                self.as_slice()
            }

            #[inline]
            fn advance(&mut self, cnt: usize) {
                assert!(
                    cnt <= self.len(),
                    "cannot advance past `remaining`: {cnt} <= {}",
                    self.len()
                );
                // SAFETY: just checked.
                unsafe { self.advance_unchecked(cnt) };
            }

            fn copy_to_bytes(&mut self, len: usize) -> Bytes {
                // The type's own method.
                <$type>::copy_to_bytes(self, len).into()
            }
        }

        impl Deref for $type {
            type Target = [u8];

            #[inline]
            fn deref(&self) -> &[u8] {
                self.as_slice()
            }
        }

        impl AsRef<[u8]> for $type {
            #[inline]
            fn as_ref(&self) -> &[u8] {
                self.as_slice()
            }
        }

        impl Borrow<[u8]> for $type {
            fn borrow(&self) -> &[u8] {
                self.as_slice()
            }
        }

        impl Default for $type {
            #[inline]
            fn default() -> Self {
                Self::new()
            }
        }

        impl IntoIterator for $type {
            type Item = u8;
            type IntoIter = IntoIter<$type>;

            fn into_iter(self) -> Self::IntoIter {
                IntoIter::new(self)
            }
        }

        impl<'a> IntoIterator for &'a $type {
            type Item = &'a u8;
            type IntoIter = core::slice::Iter<'a, u8>;

            fn into_iter(self) -> Self::IntoIter {
                self.as_slice().iter()
            }
        }
    };
}

read_traits!(PacketBuf);
read_traits!(Packet);

impl Extend<u8> for PacketBuf {
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn extend<T: IntoIterator<Item = u8>>(&mut self, iter: T) {
        let iter = iter.into_iter();
        self.reserve(iter.size_hint().0);
        for byte in iter {
            // Not by `put_u8`, whose caller would be a line of `bytes`.
            self.put_slice(&[byte]);
        }
    }
}

impl<'a> Extend<&'a u8> for PacketBuf {
    #[cfg_attr(feature = "leak-tracking", track_caller)]
    fn extend<T: IntoIterator<Item = &'a u8>>(&mut self, iter: T) {
        self.extend(iter.into_iter().copied());
    }
}

/// Implements `extend` by whole buffers.
macro_rules! extend_by {
    ($($part:ty),*) => {$(
        impl Extend<$part> for PacketBuf {
            #[cfg_attr(feature = "leak-tracking", track_caller)]
            fn extend<T: IntoIterator<Item = $part>>(&mut self, iter: T) {
                for part in iter {
                    self.extend_from_slice(&part);
                }
            }
        }
    )*};
}

extend_by!(Packet, Bytes, BytesMut);

impl FromIterator<u8> for PacketBuf {
    fn from_iter<T: IntoIterator<Item = u8>>(iter: T) -> Self {
        let mut buf = Self::new();
        buf.extend(iter);
        buf
    }
}

impl<'a> FromIterator<&'a u8> for PacketBuf {
    fn from_iter<T: IntoIterator<Item = &'a u8>>(iter: T) -> Self {
        iter.into_iter().copied().collect()
    }
}

impl FromIterator<u8> for Packet {
    fn from_iter<T: IntoIterator<Item = u8>>(iter: T) -> Self {
        PacketBuf::from_iter(iter).freeze()
    }
}
