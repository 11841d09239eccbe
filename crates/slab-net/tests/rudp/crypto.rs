//! Encryption, without sockets: what was sealed is opened, everything else is refused.

use crate::common::Random;
use slab_net::rudp::crypto::{AesGcm, KeyError, NONCE_BYTES, TAG_BYTES};
use slab_net::rudp::{Connection, EndpointConfig, SessionConfig};
use slab_net::{Packet, PacketPool};
use std::collections::HashSet;

fn sealed(key: &AesGcm, contents: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; NONCE_BYTES];
    datagram.extend_from_slice(contents);
    datagram.extend_from_slice(&[0; TAG_BYTES]);
    key.seal(&mut datagram);
    datagram
}

#[test]
fn only_the_same_key_opens_a_sealed_datagram() {
    let mut random = Random::new(1);
    for bytes in [16, 32] {
        let secret: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
        let (key, same) = (AesGcm::new(&secret).unwrap(), AesGcm::new(&secret).unwrap());
        let other = AesGcm::new(&vec![1; bytes]).unwrap();
        for len in [0, 1, 15, 16, 17, 1372, 9000] {
            let contents: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            let datagram = sealed(&key, &contents);
            assert!(len < 16 || !datagram.windows(len).any(|part| part == contents));
            let opened = same.open(&mut datagram.clone()).unwrap();
            let mut copy = datagram.clone();
            same.open(&mut copy).unwrap();
            assert_eq!(copy[opened], contents);
            assert_eq!(other.open(&mut datagram.clone()), None);
        }
    }
}

#[test]
fn a_datagram_with_any_bit_changed_is_refused() {
    let key = AesGcm::new(&[7; 16]).unwrap();
    let datagram = sealed(&key, b"twenty-four bytes of it.");
    for bit in 0..datagram.len() * 8 {
        let mut changed = datagram.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(key.open(&mut changed), None, "bit {bit}");
    }
    for len in 0..datagram.len() {
        assert_eq!(key.open(&mut datagram[..len].to_vec()), None, "{len} bytes");
    }
    let mut longer = datagram.clone();
    longer.push(0);
    assert_eq!(key.open(&mut longer), None);
}

#[test]
fn garbage_is_refused() {
    let mut random = Random::new(3);
    let key = AesGcm::new(&[7; 32]).unwrap();
    for _ in 0..5000 {
        let len = random.below(200);
        let mut garbage: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        assert_eq!(key.open(&mut garbage), None);
    }
}

#[test]
fn no_nonce_repeats_among_clones_and_threads() {
    let key = AesGcm::new(&[7; 16]).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let key = key.clone();
            std::thread::spawn(move || {
                let nonce = |_| sealed(&key, b"")[..NONCE_BYTES].to_vec();
                (0..500).map(nonce).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut seen = HashSet::new();
    for thread in threads {
        for nonce in thread.join().unwrap() {
            assert!(seen.insert(nonce));
        }
    }
    // Another user of the same key begins elsewhere.
    let other = AesGcm::new(&[7; 16]).unwrap();
    for _ in 0..500 {
        assert!(seen.insert(sealed(&other, b"")[..NONCE_BYTES].to_vec()));
    }
}

/// Otherwise the first datagrams sealed with one key on both sides of a fork would share a nonce, and each would
/// disclose the other.
#[cfg(target_os = "linux")]
#[test]
#[allow(unsafe_code)]
fn no_nonce_repeats_across_a_fork() {
    use std::io::{Read, Write};
    let key = AesGcm::new(&[7; 16]).unwrap();
    let mut seen = HashSet::from([sealed(&key, b"")]);
    let nonces = || (0..100).map(|_| sealed(&key, b""));
    for _ in 0..3 {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        // SAFETY: the child only seals, writes to the pipe and exits; the C library keeps its allocator usable in
        // the child of a fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let done = std::panic::catch_unwind(move || {
                let bytes: Vec<u8> = nonces().flatten().collect();
                writer.write_all(&bytes)
            });
            // SAFETY: `_exit` only ends the process.
            unsafe { libc::_exit(i32::from(!matches!(done, Ok(Ok(()))))) };
        }
        drop(writer);
        let mut theirs = Vec::new();
        reader.read_to_end(&mut theirs).unwrap();
        let mut status = -1;
        // SAFETY: `status` is valid for the call's write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((status, theirs.len()), (0, 100 * (NONCE_BYTES + TAG_BYTES)));
        let theirs = theirs.chunks(NONCE_BYTES + TAG_BYTES);
        for datagram in theirs.map(<[u8]>::to_vec).chain(nonces()) {
            assert!(seen.insert(datagram), "one nonce, two datagrams");
        }
    }
}

/// Nor of an endpoint, whose child goes on sending in its sessions.
#[cfg(target_os = "linux")]
#[test]
#[allow(unsafe_code)]
fn no_nonce_of_an_endpoint_repeats_across_a_fork() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    // Nothing but this thread sends: the endpoint's task never runs.
    let runtime = { runtime }.enable_all().build().unwrap();
    let _inside = runtime.enter();
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let config = EndpointConfig::new(SessionConfig::fast());
    let config = config.aes_gcm(AesGcm::new(&[7; 16]).unwrap());
    let client = Connection::connect(peer.local_addr().unwrap(), &pool, config).unwrap();
    let send = || client.try_send(Packet::from_static(b"x"));
    send().unwrap();
    // SAFETY: the child only sends, and exits; the C library keeps its allocator usable in the child of a fork, and
    // no other thread uses the session or the pool.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let send = std::panic::AssertUnwindSafe(send);
        let done = std::panic::catch_unwind(|| send().is_ok());
        // SAFETY: `_exit` only ends the process.
        unsafe { libc::_exit(i32::from(!matches!(done, Ok(true)))) };
    }
    let mut status = -1;
    // SAFETY: `status` is valid for the call's write.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    send().unwrap();
    let (mut seen, mut buf) = (HashSet::new(), [0; 2000]);
    for _ in 0..3 {
        peer.recv(&mut buf).unwrap();
        assert!(seen.insert(buf[..NONCE_BYTES].to_vec()), "twice");
    }
}

#[test]
fn keys_of_other_lengths_are_refused_and_debug_shows_no_key() {
    for bytes in [0, 1, 15, 17, 24, 31, 33] {
        let error = AesGcm::new(&vec![0; bytes]).unwrap_err();
        assert_eq!(error, KeyError::Length { bytes });
        assert!(error.to_string().contains(&bytes.to_string()));
    }
    let key = AesGcm::new(b"sixteen secret b").unwrap();
    assert_eq!(format!("{key:?}"), "AesGcm { .. }");
}
