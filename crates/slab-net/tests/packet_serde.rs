//! The same serialised form as `bytes` has.
#![cfg(feature = "serde")]

use slab_net::{Packet, PacketBuf};

#[test]
fn packets_go_through_serde_as_byte_arrays() {
    let packet = Packet::from_static(b"\0\x01\xff");
    assert_eq!(serde_json::to_string(&packet).unwrap(), "[0,1,255]");
    let buf: PacketBuf = serde_json::from_str("[0,1,255]").unwrap();
    assert_eq!(buf, packet);
    let packet: Packet = serde_json::from_str("\"text\"").unwrap();
    assert_eq!(packet, "text");
    assert_eq!(serde_json::to_string(&buf).unwrap(), "[0,1,255]");
    for refused in ["[256]", "[-1]", "{}", "1", "[\"a\"]"] {
        assert!(
            serde_json::from_str::<Packet>(refused).is_err(),
            "{refused}"
        );
    }
    let long = vec![7u8; 10_000];
    let text = serde_json::to_string(&long).unwrap();
    assert_eq!(serde_json::from_str::<Packet>(&text).unwrap(), long);
}
