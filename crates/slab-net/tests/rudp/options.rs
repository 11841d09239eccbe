//! What the options of an endpoint make of its socket.

use crate::common::sockets::{any, pool, wait_until};
use slab_net::rudp::{Endpoint, EndpointConfig, SessionConfig};
use slab_net::udp::UdpReceiver;

#[tokio::test]
async fn the_sizes_of_socket_buffers_are_those_of_the_configuration() {
    let pool = pool();
    let (receive, send) = (50_000, 70_000);
    let config = EndpointConfig::default();
    let config = config.receive_buffer_bytes(receive).send_buffer_bytes(send);
    let endpoint = Endpoint::bind(any(), &pool, config).unwrap();
    let default = Endpoint::bind(any(), &pool, EndpointConfig::default()).unwrap();
    // What the system makes of these sizes.
    let plain = |receive, send| {
        let plain = UdpReceiver::builder(&pool).receive_buffer_bytes(receive);
        plain.send_buffer_bytes(send).bind(any()).unwrap()
    };
    let (same, mebibytes) = (plain(receive, send), plain(4 << 20, 4 << 20));
    let sizes = |socket: socket2::SockRef<'_>| {
        [socket.recv_buffer_size(), socket.send_buffer_size()].map(Result::unwrap)
    };
    let [receives, sends] = sizes((&endpoint).into());
    assert_eq!([receives, sends], sizes((&same).into()));
    assert!(receives < sends);
    assert_eq!(sizes((&default).into()), sizes((&mebibytes).into()));
}

/// As other sockets do unless told otherwise: other implementations of KCP use such.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_socket_lets_the_system_fragment() {
    use std::os::fd::{AsFd, AsRawFd};
    let discovery = |socket: &dyn AsFd| {
        let (mut how, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
        let (fd, at) = (socket.as_fd().as_raw_fd(), (&raw mut how).cast());
        let (level, option) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        // SAFETY: `how` is a `c_int`, as the option is, and `len` its length.
        let got = unsafe { libc::getsockopt(fd, level, option, at, &raw mut len) };
        assert_eq!(got, 0);
        how
    };
    let plain = std::net::UdpSocket::bind(any()).unwrap();
    assert_ne!(discovery(&plain), libc::IP_PMTUDISC_PROBE);
    let config = EndpointConfig::default();
    for endpoint in [
        Endpoint::bind(any(), &pool(), config.clone()),
        Endpoint::from_std(std::net::UdpSocket::bind(any()).unwrap(), &pool(), config),
    ] {
        assert_eq!(discovery(&endpoint.unwrap()), discovery(&plain));
    }
}

/// What protection adds is a part of the MTU.
#[tokio::test]
async fn without_offload_datagrams_of_the_mtu_or_of_1500_bytes_are_received() {
    let with_mtu = |mtu| EndpointConfig::new(SessionConfig::fast().mtu(mtu)).offload(false);
    #[cfg(feature = "aes-gcm")]
    let key = slab_net::rudp::crypto::AesGcm::new(&[7; 16]).unwrap();
    let all = [
        (with_mtu(1400), 1500),
        (with_mtu(2000), 2000),
        #[cfg(feature = "aes-gcm")]
        (with_mtu(2000).aes_gcm(key), 2000),
    ];
    let stranger = std::net::UdpSocket::bind(any()).unwrap();
    for (config, longest) in all {
        let endpoint = Endpoint::bind(any(), &pool(), config).unwrap();
        for bytes in [longest, longest + 1] {
            let to = endpoint.local_addr();
            stranger.send_to(&vec![0; bytes], to).unwrap();
        }
        wait_until(&endpoint, "both came", |endpoint| {
            endpoint.socket_monitor().stats().received_datagrams == 2
        })
        .await;
        let stats = endpoint.socket_monitor().stats();
        assert_eq!(stats.dropped_truncated, 1, "{longest}");
    }
}
