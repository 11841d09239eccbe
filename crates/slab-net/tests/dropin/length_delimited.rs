// Frames behind a length of four bytes (big endian), as `tokio_util::codec::LengthDelimitedCodec`
// has them by default: the decoder is fed whatever a stream brings, and keeps what is incomplete.

use bytes::{Buf, BufMut};

/// Why a stream is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The frame says it is longer than allowed.
    TooLong { len: usize },
    /// The stream ended within a frame.
    Truncated { left: usize },
}

const HEADER: usize = 4;

/// Cuts a stream of bytes into frames, which share the memory they were received in.
pub struct FrameDecoder {
    buffer: BytesMut,
    /// The length of the frame whose header was read already.
    awaited: Option<usize>,
    max_frame: usize,
}

impl FrameDecoder {
    pub fn new(max_frame: usize) -> Self {
        Self {
            buffer: BytesMut::with_capacity(64),
            awaited: None,
            max_frame,
        }
    }

    /// The buffer to read a stream into.
    pub fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The next frame, if it is complete.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let len = match self.awaited {
            Some(len) => len,
            None => {
                if self.buffer.len() < HEADER {
                    return Ok(None);
                }
                let len = self.buffer.get_u32() as usize;
                if len > self.max_frame {
                    return Err(FrameError::TooLong { len });
                }
                self.awaited = Some(len);
                len
            }
        };
        if self.buffer.len() < len {
            // What is missing comes into one piece of memory with what is there.
            self.buffer.reserve(len - self.buffer.len());
            return Ok(None);
        }
        self.awaited = None;
        Ok(Some(self.buffer.split_to(len).freeze()))
    }

    /// The end of the stream.
    pub fn finish(&self) -> Result<(), FrameError> {
        let left = self.buffer.len();
        if left > 0 || self.awaited.is_some() {
            return Err(FrameError::Truncated { left });
        }
        Ok(())
    }
}

/// Appends one frame.
pub fn encode_frame(frame: &[u8], to: &mut BytesMut) {
    to.reserve(HEADER + frame.len());
    to.put_u32(frame.len() as u32);
    to.put_slice(frame);
}
