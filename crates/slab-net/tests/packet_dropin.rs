//! Three programs written for `BytesMut` and `Bytes` (`dropin/`), each compiled twice with only the `use`
//! line changed. Both versions do the same with good input, broken input and noise.
#![allow(
    unreachable_pub,
    reason = "the programs are written as a library's modules"
)]

use proptest::prelude::*;
use slab_net::PacketPool;
use std::sync::Once;

/// A program over `$use`, the only line that differs.
macro_rules! program {
    ($name:ident, $file:literal, $use:item) => {
        #[allow(dead_code)]
        pub mod $name {
            $use
            include!($file);
        }
    };
}

mod theirs {
    program!(
        length_delimited,
        "dropin/length_delimited.rs",
        use bytes::{Bytes, BytesMut};
    );
    program!(dns, "dropin/dns.rs", use bytes::{Bytes, BytesMut};);
    program!(rtp, "dropin/rtp.rs", use bytes::{Bytes, BytesMut};);
}

mod ours {
    program!(
        length_delimited,
        "dropin/length_delimited.rs",
        use slab_net::{Packet as Bytes, PacketBuf as BytesMut};
    );
    program!(
        dns,
        "dropin/dns.rs",
        use slab_net::{Packet as Bytes, PacketBuf as BytesMut};
    );
    program!(
        rtp,
        "dropin/rtp.rs",
        use slab_net::{Packet as Bytes, PacketBuf as BytesMut};
    );
}

/// Drives the programs, in both modules. The results are text, so that they can be compared.
macro_rules! drivers {
    ($module:ident, $programs:ident, $mutable:ty, $frozen:ty) => {
        mod $module {
            use crate::$programs::{dns, length_delimited, rtp};

            type BytesMut = $mutable;
            type Bytes = $frozen;

            /// Feeds the stream in pieces, and logs everything that comes out.
            pub fn frames(stream: &[u8], pieces: &[usize], max: usize) -> Vec<String> {
                let mut log = Vec::new();
                let mut decoder = length_delimited::FrameDecoder::new(max);
                let mut rest = stream;
                let mut pieces = pieces.iter().cycle();
                while !rest.is_empty() {
                    let n = pieces.next().map_or(1, |&n| n.clamp(1, rest.len()));
                    decoder.buffer().extend_from_slice(&rest[..n]);
                    rest = &rest[n..];
                    loop {
                        match decoder.next_frame() {
                            Ok(Some(frame)) => log.push(format!("{frame:?}")),
                            Ok(None) => break,
                            Err(error) => {
                                log.push(format!("{error:?}"));
                                return log;
                            }
                        }
                    }
                }
                log.push(format!("{:?}", decoder.finish()));
                log
            }

            pub fn encode_frames(frames: &[Vec<u8>]) -> Vec<u8> {
                let mut stream = BytesMut::new();
                for frame in frames {
                    length_delimited::encode_frame(frame, &mut stream);
                }
                stream.to_vec()
            }

            pub fn dns_parse(message: &[u8]) -> String {
                format!("{:?}", dns::parse(&Bytes::copy_from_slice(message)))
            }

            /// Parses, encodes the result, and parses that.
            pub fn dns_again(message: &[u8]) -> (Vec<u8>, String) {
                let parsed = dns::parse(&Bytes::copy_from_slice(message)).unwrap();
                let mut written = BytesMut::from("\0\x2bbehind something else");
                let front = written.len();
                dns::encode(&parsed, &mut written);
                let written = written.split_off(front).freeze();
                assert_eq!(dns::parse(&written).unwrap(), parsed);
                let names = parsed.records.iter().map(|record| record.name.display());
                (written.to_vec(), names.collect())
            }

            /// Sends units by RTP in the given order, and drops some of the packets.
            pub fn rtp(units: &[Vec<u8>], order: &[usize], lost: &[usize]) -> Vec<String> {
                let mut packets = Vec::new();
                for unit in units {
                    for payload in rtp::packetise(Bytes::copy_from_slice(unit), 60) {
                        let mut wire = BytesMut::with_capacity(100);
                        let sequence = (packets.len() as u16).wrapping_sub(3);
                        rtp::RtpPacket {
                            marker: sequence % 2 == 0,
                            payload_type: 96,
                            sequence,
                            timestamp: 90_000,
                            source: 7,
                            contributors: vec![1; packets.len() % 3],
                            extension: (sequence % 3 == 0)
                                .then(|| (0xbede, Bytes::from_static(&[1; 8]))),
                            payload,
                        }
                        .encode(&mut wire);
                        packets.push(wire.freeze());
                    }
                }
                let mut log = Vec::new();
                let mut depacketiser = rtp::Depacketiser::new(8);
                let mut left: Vec<_> = packets.into_iter().enumerate().collect();
                let mut order = order.iter().cycle();
                while !left.is_empty() {
                    // From near the front: reordered within a few packets.
                    let at = order.next().map_or(0, |&n| n % left.len().min(6));
                    let (number, packet) = left.remove(at);
                    if !lost.contains(&number) {
                        let packet = rtp::RtpPacket::parse(packet).unwrap();
                        log.push(format!("{:?}", depacketiser.push(packet)));
                    }
                }
                log.push(format!("{} {}", depacketiser.lost, depacketiser.late));
                log
            }

            pub fn rtp_parse(packets: &[Vec<u8>]) -> Vec<String> {
                let mut depacketiser = rtp::Depacketiser::new(4);
                let parse = |packet: &Vec<u8>| {
                    let packet = rtp::RtpPacket::parse(Bytes::copy_from_slice(packet))?;
                    let text = format!("{packet:?}");
                    depacketiser
                        .push(packet)
                        .map(|units| format!("{text} {units:?}"))
                };
                packets
                    .iter()
                    .map(parse)
                    .map(|done| format!("{done:?}"))
                    .collect()
            }
        }
    };
}

drivers!(on_bytes, theirs, bytes::BytesMut, bytes::Bytes);
drivers!(on_packets, ours, slab_net::PacketBuf, slab_net::Packet);

/// A small process-wide pool, so that the programs reach its cap too.
fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let pool = PacketPool::builder().max_memory(1 << 20);
        pool.install_default().unwrap();
    });
}

/// An answer to `www.example.org A`: an alias, and two addresses with compressed names.
const ANSWER: &[u8] = b"\x12\x34\x81\x80\0\x01\0\x03\0\0\0\x01\
    \x03www\x07example\x03org\0\0\x01\0\x01\
    \xc0\x0c\0\x05\0\x01\0\0\x0e\x10\0\x06\x03web\xc0\x10\
    \xc0\x2d\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01\
    \xc0\x2d\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x02\
    \0\0\x29\x04\xd0\0\0\0\0\0\0";

#[test]
fn dns_answers_parse_the_same() {
    setup();
    let parsed = on_packets::dns_parse(ANSWER);
    assert_eq!(parsed, on_bytes::dns_parse(ANSWER));
    assert!(parsed.starts_with("Ok("), "{parsed}");
    for part in [
        "b\"www\"",
        "b\"web\"",
        "b\"\\xc0\\0\\x02\\x01\"",
        "ttl: 3600",
    ] {
        assert!(parsed.contains(part), "{part} in {parsed}");
    }
    let again = on_packets::dns_again(ANSWER);
    assert_eq!(again, on_bytes::dns_again(ANSWER));
    // Also compressed, but "web" is spelt out once more, since its first occurrence is in data.
    assert_eq!(again.0.len(), ANSWER.len() + 4);
    assert_eq!(again.1, "www.example.org.web.example.org.web.example.org.");
}

#[test]
fn frames_round_trip() {
    setup();
    let count = if cfg!(miri) { 13 } else { 50 };
    let frames: Vec<Vec<u8>> = (0..count).map(|n| vec![n as u8; n * n]).collect();
    let stream = on_packets::encode_frames(&frames);
    assert_eq!(stream, on_bytes::encode_frames(&frames));
    let log = on_packets::frames(&stream, &[1, 700, 3, 64], 4096);
    assert_eq!(log.len(), count + 1);
    assert_eq!(log.last().unwrap(), "Ok(())");
    assert_eq!(log[2], r#"b"\x02\x02\x02\x02""#);
    let cut = on_packets::frames(&stream[..stream.len() - 1], &[5000], 4096);
    let left = (count - 1).pow(2) - 1;
    assert_eq!(
        *cut.last().unwrap(),
        format!("Err(Truncated {{ left: {left} }})")
    );
    let long = on_packets::frames(&stream, &[5000], 100);
    assert_eq!(long.last().unwrap(), "TooLong { len: 121 }");
}

#[test]
fn reordered_rtp_video_is_delivered_in_order() {
    setup();
    let units: Vec<Vec<u8>> = (1..10).map(|n| vec![n * 2; usize::from(n) * 40]).collect();
    let log = on_packets::rtp(&units, &[0, 3, 2, 1], &[]);
    let whole: Vec<String> = units
        .iter()
        .map(|unit| format!("{:?}", bytes::Bytes::copy_from_slice(unit)))
        .collect();
    let mut rest = log.concat();
    for unit in &whole {
        let at = rest
            .find(unit.as_str())
            .expect("a unit is missing or out of order");
        rest.drain(..at + unit.len());
    }
    assert_eq!(log.last().unwrap(), "0 0");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 100 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn frame_streams(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..12),
        pieces in prop::collection::vec(1..500usize, 0..8),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
        max in prop_oneof![Just(4096usize), 0..300usize],
    ) {
        setup();
        let mut stream = on_packets::encode_frames(&frames);
        prop_assert_eq!(&stream, &on_bytes::encode_frames(&frames));
        if let Some((at, byte)) = damage && !stream.is_empty() {
            let at = at.index(stream.len());
            stream[at] = byte;
        }
        prop_assert_eq!(
            on_packets::frames(&stream, &pieces, max),
            on_bytes::frames(&stream, &pieces, max)
        );
    }

    #[test]
    fn damaged_dns_messages(
        damage in prop::collection::vec((0..ANSWER.len(), any::<u8>()), 0..6),
        len in 0..=ANSWER.len(),
    ) {
        setup();
        let mut message = ANSWER.to_vec();
        for (at, byte) in damage {
            message[at] = byte;
        }
        for message in [&message[..], &message[..len]] {
            prop_assert_eq!(on_packets::dns_parse(message), on_bytes::dns_parse(message));
        }
    }

    #[test]
    fn reordered_and_lost_video(
        units in prop::collection::vec(
            (1..24u8, prop::collection::vec(any::<u8>(), 0..400)), 1..8),
        order in prop::collection::vec(0..6usize, 0..10),
        lost in prop::collection::vec(0..30usize, 0..4),
    ) {
        setup();
        let units: Vec<Vec<u8>> = units
            .into_iter()
            .map(|(header, mut body)| {
                body.insert(0, header);
                body
            })
            .collect();
        prop_assert_eq!(
            on_packets::rtp(&units, &order, &lost),
            on_bytes::rtp(&units, &order, &lost)
        );
    }

    #[test]
    fn rtp_noise(
        packets in prop::collection::vec(
            (any::<u8>(), prop::collection::vec(any::<u8>(), 0..60)), 0..10),
    ) {
        setup();
        let packets: Vec<Vec<u8>> = packets
            .into_iter()
            .map(|(first, mut rest)| {
                // Mostly the right version, since anything else is rejected at once.
                rest.insert(0, if first % 8 == 0 { first } else { 0x80 | first & 0x3f });
                rest
            })
            .collect();
        prop_assert_eq!(on_packets::rtp_parse(&packets), on_bytes::rtp_parse(&packets));
    }
}
