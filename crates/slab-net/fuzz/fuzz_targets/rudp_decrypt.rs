//! Decryption of arbitrary input: what was sealed opens unchanged, nothing else opens.
//!
//! The first byte says how the input is used: as it is, or to be sealed and then changed in one bit.

#![no_main]

use libfuzzer_sys::fuzz_target;
use slab_net::rudp::crypto::{AesGcm, NONCE_BYTES, TAG_BYTES};
use std::sync::OnceLock;

fuzz_target!(|input: &[u8]| {
    static KEY: OnceLock<AesGcm> = OnceLock::new();
    let key = KEY.get_or_init(|| AesGcm::new(&[7; 16]).unwrap());
    let Some((&[how, bit], input)) = input.split_first_chunk() else {
        return;
    };
    if how % 2 == 0 {
        // Forging a tag by chance takes 2^128 tries.
        assert_eq!(key.open(&mut input.to_vec()), None);
        return;
    }
    let mut datagram = vec![0; NONCE_BYTES + input.len() + TAG_BYTES];
    datagram[NONCE_BYTES..][..input.len()].copy_from_slice(input);
    key.seal(&mut datagram);
    let mut changed = datagram.clone();
    let at = (usize::from(bit) * 8 + usize::from(how / 32)) % (changed.len() * 8);
    changed[at / 8] ^= 1 << (at % 8);
    assert_eq!(key.open(&mut changed), None);
    let opened = key.open(&mut datagram).expect("it is unchanged");
    assert_eq!(&datagram[opened], input);
});
