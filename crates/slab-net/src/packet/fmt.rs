//! Formatting, in the same form as `bytes`: byte string literals and plain hexadecimal.

use super::buf::PacketBuf;
use super::frozen::Packet;
use core::fmt::{Debug, Formatter, LowerHex, Result, UpperHex, Write};

/// Writes `bytes` as a byte string literal.
fn literal(bytes: &[u8], f: &mut Formatter<'_>) -> Result {
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

macro_rules! formats {
    ($type:ty) => {
        impl Debug for $type {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                literal(self, f)
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

formats!(PacketBuf);
formats!(Packet);
