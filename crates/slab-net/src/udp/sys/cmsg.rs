//! Control messages: the metadata that goes to or comes from the kernel with a payload.
//!
//! Their format is a header (length, level, type) and data, each padded to the size of a word. It is
//! read from and written to plain bytes with every bound checked, so that nothing here has to be
//! trusted.

use std::mem::size_of;

const WORD: usize = size_of::<usize>();
/// The size of a `cmsghdr`: the length of header and data, then level and type.
const HEADER: usize = WORD + 2 * size_of::<i32>();

/// The room that a message with `len` bytes of data takes in a buffer.
pub(super) const fn space(len: usize) -> usize {
    HEADER.next_multiple_of(WORD) + len.next_multiple_of(WORD)
}

/// Iterates over control messages that the kernel wrote.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

/// One control message: level, type, data.
pub(super) type Entry<'a> = (i32, i32, &'a [u8]);

impl<'a> Iterator for Reader<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        let (length, rest) = self.rest.split_first_chunk::<WORD>()?;
        let (level, rest) = rest.split_first_chunk()?;
        let (kind, _) = rest.split_first_chunk()?;
        let length = usize::from_ne_bytes(*length);
        let data = self.rest.get(HEADER..length)?;
        let next = length.checked_next_multiple_of(WORD)?;
        self.rest = self.rest.get(next..).unwrap_or_default();
        Some((i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind), data))
    }
}

/// Returns the first `N` bytes of a message's data; `None` if it has fewer.
#[inline]
pub(super) fn first<const N: usize>(data: &[u8]) -> Option<[u8; N]> {
    data.first_chunk().copied()
}

/// Writes control messages for the kernel to read.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Writer<'a> {
    /// `buffer` must be zero, and have [`space`] for the messages that follow.
    pub(super) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    pub(super) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let at = &mut self.buffer[self.used..][..space(data.len())];
        at[..WORD].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        at[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        at[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        at[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.used += space(data.len());
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_messages_are_read_back() {
        let mut buffer = [0; 128];
        let mut writer = Writer::new(&mut buffer);
        writer.push(1, 2, &[7]);
        writer.push(3, 4, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        writer.push(5, 6, &[]);
        let used = writer.used();
        assert_eq!(used, space(1) + space(9) + space(0));
        let read: Vec<Entry<'_>> = Reader::new(&buffer[..used]).collect();
        let nine = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(read, [(1, 2, &[7][..]), (3, 4, &nine), (5, 6, &[])]);
        assert_eq!(first::<4>(read[1].2), Some([1, 2, 3, 4]));
        assert_eq!(first::<4>(read[0].2), None);
    }

    #[test]
    fn the_layout_matches_the_systems() {
        // SAFETY: `CMSG_SPACE` only computes with its argument.
        let system = |len: usize| unsafe { libc::CMSG_SPACE(len as u32) } as usize;
        for len in 0..40 {
            assert_eq!(space(len), system(len));
        }
        assert_eq!(HEADER, size_of::<libc::cmsghdr>());
    }

    #[test]
    fn malformed_messages_end_the_iteration() {
        let message = |length: usize| {
            let mut bytes = [0; 64];
            bytes[..WORD].copy_from_slice(&length.to_ne_bytes());
            bytes
        };
        for length in [0, 1, HEADER - 1, 65, usize::MAX - 1, usize::MAX] {
            assert_eq!(Reader::new(&message(length)).next(), None, "{length}");
        }
        // The last message ends with its data, before the padding.
        let mut one = message(HEADER + 1);
        one[HEADER] = 9;
        let mut reader = Reader::new(&one[..=HEADER]);
        assert_eq!(reader.next(), Some((0, 0, &[9][..])));
        assert_eq!(reader.next(), None);
        for cut in 0..HEADER {
            assert_eq!(Reader::new(&one[..cut]).next(), None);
        }
    }
}
