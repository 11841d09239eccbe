//! Comparison and hashing by contents, with all types that `bytes` compares with, and with `bytes`
//! itself.

use super::buf::PacketBuf;
use super::frozen::Packet;
use bytes::{Bytes, BytesMut};
use core::cmp::Ordering;
use core::hash::{Hash, Hasher};

/// Compares `$type` with itself, and with everything that it compares to behind a reference.
macro_rules! compare_with_self {
    ($type:ty) => {
        impl PartialEq for $type {
            #[inline]
            fn eq(&self, other: &Self) -> bool {
                self.as_slice() == other.as_slice()
            }
        }

        impl Eq for $type {}

        impl PartialOrd for $type {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $type {
            fn cmp(&self, other: &Self) -> Ordering {
                self.as_slice().cmp(other.as_slice())
            }
        }

        impl Hash for $type {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.as_slice().hash(state);
            }
        }

        impl<'a, T: ?Sized> PartialEq<&'a T> for $type
        where
            $type: PartialEq<T>,
        {
            fn eq(&self, other: &&'a T) -> bool {
                *self == **other
            }
        }

        impl<'a, T: ?Sized> PartialOrd<&'a T> for $type
        where
            $type: PartialOrd<T>,
        {
            fn partial_cmp(&self, other: &&'a T) -> Option<Ordering> {
                self.partial_cmp(*other)
            }
        }
    };
}

/// Compares `$a` with `$b` and `$b` with `$a`, as byte slices.
macro_rules! compare_both_ways {
    ($($a:ty, $b:ty);* $(;)?) => {$(
        compare_one_way!($a, $b);
        compare_one_way!($b, $a);
    )*};
}

macro_rules! compare_one_way {
    ($a:ty, $b:ty) => {
        impl PartialEq<$b> for $a {
            fn eq(&self, other: &$b) -> bool {
                let (a, b): (&[u8], &[u8]) = (self.as_ref(), other.as_ref());
                a == b
            }
        }

        impl PartialOrd<$b> for $a {
            fn partial_cmp(&self, other: &$b) -> Option<Ordering> {
                let (a, b): (&[u8], &[u8]) = (self.as_ref(), other.as_ref());
                a.partial_cmp(b)
            }
        }
    };
}

compare_with_self!(PacketBuf);
compare_with_self!(Packet);

compare_both_ways! {
    PacketBuf, [u8];
    PacketBuf, str;
    PacketBuf, Vec<u8>;
    PacketBuf, String;
    PacketBuf, Bytes;
    PacketBuf, BytesMut;
    Packet, [u8];
    Packet, str;
    Packet, Vec<u8>;
    Packet, String;
    Packet, Bytes;
    Packet, BytesMut;
    Packet, PacketBuf;
}

// `PacketBuf == &[u8]` is covered by the blanket implementation.
compare_one_way!(&[u8], PacketBuf);
compare_one_way!(&str, PacketBuf);
compare_one_way!(&[u8], Packet);
compare_one_way!(&str, Packet);
