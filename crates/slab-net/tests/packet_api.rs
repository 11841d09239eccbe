//! `PacketBuf` and `Packet` have everything that `BytesMut` and `Bytes` have: the compiler accepts one text
//! for both, and the methods in the text are those in the source of the locked `bytes`. If a new release
//! adds a method, this fails and names it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Compiled once for each pair of types: every method with its signature in `bytes`, and every trait.
macro_rules! surface {
    ($module:ident, $mutable:ty, $frozen:ty) => {
        mod $module {
            #![allow(unused)]

            use std::borrow::{Borrow, BorrowMut};
            use std::fmt::{Debug, LowerHex, UpperHex, Write};
            use std::hash::Hash;
            use std::mem::MaybeUninit;
            use std::ops::{Deref, DerefMut, RangeFull};

            type BytesMut = $mutable;
            type Bytes = $frozen;

            fn mutable_buffer_methods() {
                let _: fn() -> BytesMut = BytesMut::new;
                let _: fn(usize) -> BytesMut = BytesMut::with_capacity;
                let _: fn(usize) -> BytesMut = BytesMut::zeroed;
                let _: fn(&BytesMut) -> usize = BytesMut::len;
                let _: fn(&BytesMut) -> bool = BytesMut::is_empty;
                let _: fn(&BytesMut) -> usize = BytesMut::capacity;
                let _: fn(BytesMut) -> Bytes = BytesMut::freeze;
                let _: fn(&mut BytesMut, usize) -> BytesMut = BytesMut::split_off;
                let _: fn(&mut BytesMut) -> BytesMut = BytesMut::split;
                let _: fn(&mut BytesMut, usize) -> BytesMut = BytesMut::split_to;
                let _: fn(&mut BytesMut, usize) = BytesMut::truncate;
                let _: fn(&mut BytesMut) = BytesMut::clear;
                let _: fn(&mut BytesMut, usize, u8) = BytesMut::resize;
                let _: unsafe fn(&mut BytesMut, usize) = BytesMut::set_len;
                let _: fn(&mut BytesMut, usize) = BytesMut::reserve;
                let _: fn(&mut BytesMut, usize) -> bool = BytesMut::try_reclaim;
                let _: fn(&mut BytesMut, &[u8]) = BytesMut::extend_from_slice;
                let _: fn(&mut BytesMut, RangeFull) = BytesMut::extend_from_within;
                let _: fn(&mut BytesMut, BytesMut) = BytesMut::unsplit;
                let _: fn(&mut BytesMut, BytesMut) -> Result<(), BytesMut> = BytesMut::try_unsplit;
                let _: for<'a> fn(&'a mut BytesMut) -> &'a mut [MaybeUninit<u8>] =
                    BytesMut::spare_capacity_mut;
            }

            fn frozen_buffer_methods() {
                const EMPTY: Bytes = Bytes::new();
                const STATIC: Bytes = Bytes::from_static(b"static");
                const fn const_len(bytes: &Bytes) -> (usize, bool) {
                    (bytes.len(), bytes.is_empty())
                }
                let _: fn([u8; 4]) -> Bytes = Bytes::from_owner;
                let _: fn(&Bytes) -> usize = Bytes::len;
                let _: fn(&Bytes) -> bool = Bytes::is_empty;
                let _: fn(&Bytes) -> bool = Bytes::is_unique;
                let _: fn(&[u8]) -> Bytes = Bytes::copy_from_slice;
                let _: fn(&Bytes, RangeFull) -> Bytes = Bytes::slice;
                let _: fn(&Bytes, &[u8]) -> Bytes = Bytes::slice_ref;
                let _: fn(&mut Bytes, usize) -> Bytes = Bytes::split_off;
                let _: fn(&mut Bytes, usize) -> Bytes = Bytes::split_to;
                let _: fn(&mut Bytes, usize) = Bytes::truncate;
                let _: fn(&mut Bytes) = Bytes::clear;
                let _: fn(Bytes) -> Result<BytesMut, Bytes> = Bytes::try_into_mut;
            }

            fn shared_traits<T>()
            where
                T: Clone + Default + Debug + LowerHex + UpperHex + Eq + Ord + Hash,
                T: Send + Sync + Unpin + 'static,
                T: bytes::Buf + Deref<Target = [u8]> + AsRef<[u8]> + Borrow<[u8]>,
                T: IntoIterator<Item = u8, IntoIter = bytes::buf::IntoIter<T>>,
                for<'a> &'a T: IntoIterator<Item = &'a u8, IntoIter = std::slice::Iter<'a, u8>>,
                T: FromIterator<u8> + Into<Vec<u8>>,
                T: PartialOrd<[u8]> + PartialOrd<str> + PartialOrd<Vec<u8>> + PartialOrd<String>,
                for<'a> T: PartialOrd<&'a [u8]> + PartialOrd<&'a str> + PartialOrd<&'a String>,
                [u8]: PartialOrd<T>,
                str: PartialOrd<T>,
                Vec<u8>: PartialOrd<T>,
                String: PartialOrd<T>,
                for<'a> &'a [u8]: PartialOrd<T>,
                for<'a> &'a str: PartialOrd<T>,
            {
            }

            fn traits() {
                fn mutable<T>()
                where
                    T: bytes::BufMut + Write + DerefMut + AsMut<[u8]> + BorrowMut<[u8]>,
                    T: Extend<u8> + for<'a> Extend<&'a u8> + Extend<Bytes>,
                    T: for<'a> From<&'a [u8]> + for<'a> From<&'a str> + From<Bytes>,
                    T: for<'a> FromIterator<&'a u8> + PartialEq<Bytes>,
                {
                }
                fn frozen<T>()
                where
                    T: From<&'static [u8]> + From<&'static str> + From<Vec<u8>> + From<String>,
                    T: From<Box<[u8]>> + From<BytesMut> + PartialEq<BytesMut>,
                {
                }
                shared_traits::<BytesMut>();
                shared_traits::<Bytes>();
                mutable::<BytesMut>();
                frozen::<Bytes>();
            }

            /// Typical code around `bytes`, mostly relying on type inference.
            pub(super) fn idioms() -> Vec<String> {
                use bytes::{Buf, BufMut};
                use std::collections::{BTreeMap, HashMap};
                use std::io::{BufRead, Read};

                #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
                struct Message {
                    name: Bytes,
                    body: Option<Bytes>,
                    draft: BytesMut,
                }

                fn write_to(mut to: impl BufMut) {
                    to.put_u16(7);
                    to.put(&b"written"[..]);
                }

                fn sum(mut from: impl Buf) -> u32 {
                    let mut sum = 0;
                    while from.has_remaining() {
                        sum += u32::from(from.get_u8());
                    }
                    sum
                }

                let mut out = Vec::new();
                let mut buf = BytesMut::with_capacity(32);
                write_to(&mut buf);
                std::io::Write::write_all(&mut (&mut buf).writer(), b" line\nmore").unwrap();
                write!(buf, " {}", 17).unwrap();
                buf.extend([1u8, 2, 3].iter());
                buf.extend(vec![4u8, 5]);
                buf[0] = 0xff;
                buf.as_mut()[1] = b'x';
                buf.iter_mut().rev().take(2).for_each(|byte| *byte += 1);
                out.push(format!("{buf:?} {buf:x}"));

                let mut line = String::new();
                let mut reader = buf.clone().split_off(2).freeze().reader();
                reader.read_line(&mut line).unwrap();
                let mut rest = Vec::new();
                reader.read_to_end(&mut rest).unwrap();
                out.push(format!("{line} {rest:?}"));

                let frozen: Bytes = buf.split_to(9).into();
                out.push(format!(
                    "{} {}",
                    sum(frozen.clone()),
                    sum(frozen.clone().chain(buf.clone().take(3)))
                ));
                assert!(frozen == frozen[..] && frozen.starts_with(b"\xff") && frozen != "other");
                assert_eq!(Bytes::from("text"), "text");
                assert_eq!("text", Bytes::from_static(b"text"));
                assert_eq!(b"text"[..], BytesMut::from("text"));
                assert_eq!(Bytes::from(String::from("text")), *"text");
                assert_eq!(std::str::from_utf8(&Bytes::from("text")), Ok("text"));
                assert_eq!(
                    String::from_utf8(Bytes::from("text").into()).unwrap(),
                    "text"
                );

                let bytes: Bytes = (0..5).collect();
                let copy: BytesMut = bytes.iter().map(|byte| byte * 2).collect();
                let back = Vec::from(bytes.clone());
                out.push(format!("{copy:?} {back:?} {:?}", bytes.into_iter().max()));

                let message = Message {
                    name: Bytes::copy_from_slice(b"name"),
                    body: Some(copy.freeze()),
                    ..Message::default()
                };
                let mut by_name = HashMap::new();
                by_name.insert(message.name.clone(), message.clone());
                let mut ordered = BTreeMap::from([(Bytes::from("b"), 2), (Bytes::from("a"), 1)]);
                out.push(format!(
                    "{:?} {:?}",
                    by_name.get(&b"name"[..]),
                    ordered.pop_first()
                ));

                let mut boxed: Vec<Box<dyn Buf>> = vec![Box::new(message.name), Box::new(buf)];
                out.push(format!(
                    "{:?}",
                    boxed
                        .iter_mut()
                        .map(|buf| buf.get_u16())
                        .collect::<Vec<_>>()
                ));
                out
            }

            /// What panics say, up to the numbers.
            pub(super) fn panics() -> Vec<String> {
                use bytes::{Buf, BufMut};
                use std::ops::Bound::{Excluded, Unbounded};
                use std::panic::{AssertUnwindSafe, catch_unwind};

                let text = |n: usize| BytesMut::from(&"text of sixteen "[..n]);
                let frozen = |n: usize| text(n).freeze();
                let (whole, whole_mut) = (frozen(16), || text(16));
                let part = whole.slice(4..8);
                let misuses: [&dyn Fn(); 20] = [
                    &|| drop(whole_mut().split_off(1 << 20)),
                    &|| drop(whole_mut().split_to(17)),
                    &|| drop(whole_mut().copy_to_bytes(17)),
                    &|| whole_mut().advance(17),
                    &|| whole_mut().extend_from_within(17..),
                    &|| whole_mut().extend_from_within(..=16),
                    // SAFETY: refused, because there is not so much room.
                    &|| unsafe { whole_mut().advance_mut(1 << 20) },
                    &|| assert_ne!(text(7).get_u64(), 0),
                    &|| drop(frozen(16).split_off(17)),
                    &|| drop(frozen(16).split_to(17)),
                    &|| drop(frozen(16).copy_to_bytes(17)),
                    &|| frozen(16).advance(17),
                    &|| assert_ne!(frozen(7).get_u64(), 0),
                    &|| frozen(7).copy_to_slice(&mut [0; 8]),
                    &|| drop(whole.slice(..17)),
                    &|| drop(whole.slice(17..)),
                    &|| drop(whole.slice(..=usize::MAX)),
                    &|| drop(whole.slice((Excluded(usize::MAX), Unbounded))),
                    &|| drop(part.slice_ref(&whole[..1])),
                    &|| drop(part.slice_ref(&whole[7..9])),
                ];
                let said = |misuse: &&dyn Fn()| {
                    let panic = catch_unwind(AssertUnwindSafe(misuse)).expect_err("misuse");
                    let panic = match panic.downcast::<String>() {
                        Ok(said) => *said,
                        Err(panic) => (*panic.downcast_ref::<&str>().unwrap()).to_owned(),
                    };
                    panic
                        .split_once(|c: char| c.is_ascii_digit())
                        .map_or(panic.clone(), |(words, _)| words.to_owned())
                };
                misuses.iter().map(said).collect()
            }
        }
    };
}

surface!(theirs, bytes::BytesMut, bytes::Bytes);
surface!(ours, slab_net::PacketBuf, slab_net::Packet);

/// The release of `bytes` whose public methods and traits `surface!` lists.
const LISTED_RELEASE: &str = "1.12.";

/// The version of `bytes` that this build uses.
fn locked() -> String {
    let lock = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("Cargo.lock"))
        .find(|file| file.exists())
        .expect("cargo wrote a lock file for this build");
    let lock = std::fs::read_to_string(lock).unwrap();
    let version = lock
        .split("name = \"bytes\"\nversion = \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next());
    version.expect("bytes is a dependency").to_owned()
}

/// Fails when the lock file is updated to a release that may have new traits.
#[test]
fn method_list_matches_the_locked_bytes_release() {
    let version = locked();
    assert!(
        version.starts_with(LISTED_RELEASE),
        "bytes {version} is locked, but `surface!` lists {LISTED_RELEASE}x: \
         add what its changelog calls new to `surface!` and to the packets, then raise LISTED_RELEASE"
    );
}

/// The directory into which cargo unpacked this release of `bytes`.
fn source_of_bytes() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))?;
    let crate_name = format!("bytes-{}", locked());
    let registries = std::fs::read_dir(home.join("registry/src")).ok()?;
    registries
        .filter_map(|registry| Some(registry.ok()?.path().join(&crate_name).join("src")))
        .find(|source| source.exists())
}

/// The names of the public functions in the `impl`s of a file.
fn public_functions(file: &Path) -> BTreeSet<String> {
    let source = std::fs::read_to_string(file).unwrap();
    let name = |line: &str| {
        // Only in an outermost `impl`: deeper ones are examples, or inside functions.
        let declared = line.strip_prefix("    pub ")?;
        let declared = declared.trim_start_matches("const ");
        let declared = declared.trim_start_matches("unsafe ").strip_prefix("fn ")?;
        let end = declared.find(['(', '<'])?;
        Some(declared[..end].to_owned())
    };
    source.lines().filter_map(name).collect()
}

/// The methods of `of` that `surface!` names.
fn listed(of: &str) -> BTreeSet<String> {
    let this = include_str!("packet_api.rs");
    let text = &this[this.find("macro_rules! surface").unwrap()..];
    let text = &text[..text.find("fn shared_traits").unwrap()];
    let path = format!(" {of}::");
    let named = text.split(&path).skip(1);
    let end = |name: &str| name.find(|c: char| !c.is_alphanumeric() && c != '_');
    named
        .filter_map(|rest| Some(rest[..end(rest)?].to_owned()))
        .collect()
}

#[test]
fn every_public_method_of_bytes_is_listed() {
    let Some(source) = source_of_bytes() else {
        // Vendored, or not built by cargo: only the release can be compared.
        return method_list_matches_the_locked_bytes_release();
    };
    for (file, of) in [("bytes_mut.rs", "BytesMut"), ("bytes.rs", "Bytes")] {
        let theirs = public_functions(&source.join(file));
        assert!(theirs.contains("split_to"), "{file} is not understood");
        let listed = listed(of);
        let missing: Vec<_> = theirs.difference(&listed).collect();
        assert!(
            missing.is_empty(),
            "{of} has {missing:?}, which `surface!` lacks"
        );
        let gone: Vec<_> = listed.difference(&theirs).collect();
        assert!(
            gone.is_empty(),
            "`surface!` lists {gone:?}, which {of} lacks"
        );
    }
}

#[test]
fn common_idioms_give_the_same_results() {
    assert_eq!(ours::idioms(), theirs::idioms());
}

/// As far as tests may expect it: `#[should_panic(expected = "split_to out of bounds")]`.
#[test]
fn misuse_panics_with_the_same_words() {
    assert_eq!(ours::panics(), theirs::panics());
}

/// In addition, the two families compare and convert with each other.
#[test]
fn packets_compare_and_convert_with_bytes() {
    use bytes::{Bytes, BytesMut};
    use slab_net::{Packet, PacketBuf};
    use std::borrow::{Borrow, BorrowMut};

    let (buf, packet) = (PacketBuf::from("abc"), Packet::from("abc"));
    let (theirs_mut, theirs) = (BytesMut::from("abc"), Bytes::from("abc"));
    macro_rules! equal_both_ways {
        ($($a:ident, $b:ident);*) => {$(
            assert_eq!($a, $b);
            assert_eq!($b, $a);
        )*};
    }
    equal_both_ways! {
        buf, packet; buf, theirs; buf, theirs_mut; packet, theirs; packet, theirs_mut
    }
    let later = Bytes::from("abd");
    for less in [buf < later, later > buf, packet < later, later > packet] {
        assert!(less);
    }
    let (later_buf, later_packet) = (PacketBuf::from("abd"), Packet::from("abd"));
    assert!(buf != later_buf && buf < later_buf);
    assert!(packet != later_packet && packet < later_packet);
    let later: &[u8] = &later;
    assert!(buf != later && buf < later && packet < later);
    assert!(packet != later && buf != later && packet < "abd" && "abb" < packet);

    assert_eq!(Bytes::from(buf.clone()), "abc");
    assert_eq!(Bytes::from(packet.clone()), "abc");
    assert_eq!(Packet::from(theirs.clone()), "abc");
    assert_eq!(Packet::from(theirs_mut), "abc");
    assert_eq!(
        (Vec::from(buf.clone()), Vec::from(packet)),
        (b"abc".to_vec(), b"abc".to_vec())
    );
    let mut buf = buf;
    buf.extend([theirs]);
    buf.extend([later_packet]);
    buf.extend([BytesMut::from("x")]);
    assert_eq!(buf, "abcabcabdx");
    let bytes: &mut [u8] = buf.borrow_mut();
    bytes[0] = b'-';
    let bytes: &[u8] = buf.borrow();
    assert_eq!(bytes, b"-bcabcabdx");
    assert_eq!(Packet::from(&b"abc"[..]), "abc");
}
