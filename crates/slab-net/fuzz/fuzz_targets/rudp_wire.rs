//! What is parsed equals what is written again, and lies within the datagram.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slab_net::rudp::wire::{HEADER_BYTES, segments};

fuzz_target!(|datagram: &[u8]| {
    let mut at = 0;
    for segment in segments(datagram) {
        let Ok((header, payload)) = segment else {
            return;
        };
        assert_eq!(payload.start, at + HEADER_BYTES);
        assert_eq!(payload.len(), header.len as usize);
        let mut again = [0; HEADER_BYTES];
        header.encode(&mut again);
        assert_eq!(again, datagram[at..payload.start]);
        at = payload.end;
    }
    assert_eq!(at, datagram.len());
});
