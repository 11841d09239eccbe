//! Formatting, in the same form as `bytes`: byte string literals and plain hexadecimal.

use super::buf::PacketBuf;
use super::frozen::Packet;
use core::fmt::{Debug, Formatter, LowerHex, Result, UpperHex, Write};

/// Writes `bytes` as a byte string literal.
fn write_literal(bytes: &[u8], f: &mut Formatter<'_>) -> Result {
    f.write_str("b\"")?;
    for &byte in bytes {
        match byte {
            b'\n' => f.write_str("\\n")?,
            b'\r' => f.write_str("\\r")?,
            b'\t' => f.write_str("\\t")?,
            b'\0' => f.write_str("\\0")?,
            b'\\' | b'"' => write!(f, "\\{}", char::from(byte))?,
            b' '..=b'~' => f.write_char(char::from(byte))?,
            _ => write!(f, "\\x{byte:02x}")?,
        }
    }
    f.write_str("\"")
}

macro_rules! impl_formatting {
    ($type:ty) => {
        impl Debug for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                write_literal(self, f)
            }
        }

        impl LowerHex for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl UpperHex for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                self.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
            }
        }
    };
}

impl_formatting!(PacketBuf);
impl_formatting!(Packet);
