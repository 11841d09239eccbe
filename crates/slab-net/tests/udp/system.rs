//! What a system does and loopback does not: memory that is short, interfaces that go down, addresses that
//! belong to one interface. On threads with a network, or a filter for system calls, of their own.
//!
//! A network of its own takes privileges; without them these tests have nothing to test.

use crate::common::network::{ioctl, request, run_on_own_thread, set_link_up, unshare_network};
use crate::common::warnings::on_event;
use crate::common::{LOOPBACK, checked, fail_sends, fail_syscall_if, pool, skipped};
use futures_util::SinkExt;
use slab_net::Packet;
use slab_net::rudp::{Endpoint, EndpointConfig};
use slab_net::udp::{BindError, Outgoing, SendErrorKind, Transmit, UdpReceiver, UdpSender};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

#[test]
fn send_errors_have_a_kind_and_the_sink_continues_after_them() {
    async fn no_buffers() {
        let (sender, transmits) = (
            UdpSender::bind(LOOPBACK).unwrap(),
            [Transmit::new(b"x", LOOPBACK)],
        );
        let error = sender.send_many(&transmits).await.unwrap_err();
        assert!(
            matches!(error.kind(), SendErrorKind::NoBuffers),
            "{error:?}"
        );
        assert_eq!(
            (error.sent(), sender.monitor().stats().sent_datagrams),
            (0, 0)
        );
        // Three packets; each flush reports one of them.
        let mut sink = sender.sink();
        for _ in 0..3 {
            let payload = slab_net::Packet::from_static(b"payload");
            sink.feed(Outgoing::new(payload, LOOPBACK)).await.unwrap();
        }
        for left in [2, 1, 0] {
            let error = sink.flush().await.unwrap_err();
            assert!(
                matches!(error.kind(), SendErrorKind::NoBuffers),
                "{error:?}"
            );
            assert_eq!(sink.queued(), left);
        }
        sink.flush().await.unwrap();
    }
    async fn too_large() {
        let sender = UdpSender::bind(LOOPBACK).unwrap();
        // Refused as two segments, then as a single datagram: the error is not about GSO.
        let both = Transmit::new(b"onetwo", LOOPBACK).segment_size(3);
        let error = sender.send(&both).await.unwrap_err();
        assert!(
            matches!(error.kind(), SendErrorKind::TooLarge { bytes: 3 }),
            "{error:?}"
        );
    }
    async fn forbidden() {
        let sender = UdpSender::bind(LOOPBACK).unwrap();
        let error = sender
            .send(&Transmit::new(b"x", LOOPBACK))
            .await
            .unwrap_err();
        match error.kind() {
            SendErrorKind::Io(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
            other => panic!("{other:?}"),
        }
    }
    run_on_own_thread(|| fail_sends(libc::ENOBUFS), no_buffers);
    run_on_own_thread(|| fail_sends(libc::EMSGSIZE), too_large);
    run_on_own_thread(|| fail_sends(libc::EPERM), forbidden);
}

/// The system says that there is room in the send buffer again whenever it lets go of a datagram, and nobody waits
/// for that.
#[test]
fn what_was_sent_does_not_wake_the_runtime() {
    let parks = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&parks);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .on_thread_park(move || {
            count.fetch_add(1, Ordering::Relaxed);
        })
        .build()
        .unwrap();
    let peer = UdpSocket::bind(LOOPBACK).unwrap();
    let to = peer.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let (tell, is_sent) = mpsc::channel();
    let server = thread::spawn(move || {
        runtime.block_on(async {
            let sender = UdpSender::bind(LOOPBACK).unwrap();
            sender.send(&Transmit::new(b"x", to)).await.unwrap();
            let before = parks.load(Ordering::Relaxed);
            tell.send(()).unwrap();
            stopped.await.unwrap();
            parks.load(Ordering::Relaxed) - before
        })
    });
    is_sent.recv().unwrap();
    assert_eq!(peer.recv(&mut [0; 9]).unwrap(), 1);
    // For an event to come, if there is one.
    thread::sleep(Duration::from_millis(50));
    stop.send(()).unwrap();
    let parks = server.join().unwrap();
    assert!(parks <= 1, "the runtime went to sleep {parks} times");
}

/// Older kernels refuse it on devices without checksum offloading.
#[test]
fn a_device_without_gso_gets_one_message_per_datagram() {
    async fn test() {
        let logged = Arc::new(AtomicUsize::new(0));
        let events = Arc::clone(&logged);
        let _watching = on_event(tracing::Level::INFO, move |_| {
            events.fetch_add(1, Ordering::Relaxed);
        });
        let pool = pool();
        let mut receiver = UdpReceiver::bind(LOOPBACK, &pool).unwrap();
        let sender = UdpSender::bind(LOOPBACK).unwrap();
        let three = Transmit::new(b"onetwosix", receiver.local_addr()).segment_size(3);
        for round in 1..=2 {
            assert_eq!(sender.send(&three).await.unwrap(), 3);
            for one in [b"one", b"two", b"six"] {
                assert_eq!(receiver.recv_batch().await.unwrap().contents(), one);
            }
            assert_eq!(sender.monitor().stats().send_calls, round);
            assert_eq!(logged.load(Ordering::Relaxed), 1);
        }
    }
    // With GSO it is one message, without it three.
    run_on_own_thread(
        || fail_syscall_if(libc::SYS_sendmmsg, Some(1), libc::EIO),
        test,
    );
}

/// As under qemu's user mode.
#[test]
fn a_system_without_timestamps_refuses_only_those_who_ask_for_them() {
    async fn test() {
        let pool = pool();
        UdpReceiver::bind(LOOPBACK, &pool).unwrap();
        let error = UdpReceiver::builder(&pool)
            .timestamps(true)
            .bind(LOOPBACK)
            .unwrap_err();
        let BindError::Socket { error, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT));
    }
    run_on_own_thread(
        || {
            fail_syscall_if(
                libc::SYS_setsockopt,
                Some(libc::SO_TIMESTAMPNS as u32),
                libc::ENOPROTOOPT,
            )
        },
        test,
    );
}

/// Whichever step it refuses, the receiver works without, and no memory meant for the kernel is lost.
#[cfg(feature = "io-uring")]
#[test]
fn a_system_that_refuses_io_uring_costs_no_memory() {
    async fn test() {
        let pool = pool();
        let off = slab_net::udp::Coalescing::Off { max_datagram: 1500 };
        let builder = UdpReceiver::builder(&pool).coalescing(off).io_uring(true);
        let mut receiver = builder.bind(LOOPBACK).unwrap();
        assert!(!receiver.uses_io_uring());
        assert_eq!(pool.slab().stats().in_use(), 0);
        let hello = Transmit::new(b"hello", receiver.local_addr());
        receiver.sender().send(&hello).await.unwrap();
        let batch = receiver.recv_batch().await.unwrap();
        assert_eq!(batch.contents(), b"hello");
    }
    fn refuse(step: libc::c_long) -> io::Result<()> {
        crate::common::fail_syscall(step, libc::EAGAIN)
    }
    run_on_own_thread(|| refuse(libc::SYS_io_uring_setup), test);
    run_on_own_thread(|| refuse(libc::SYS_io_uring_register), test);
    run_on_own_thread(|| refuse(libc::SYS_io_uring_enter), test);
}

#[test]
fn sending_recovers_when_the_interface_comes_up_again() {
    async fn test() {
        let pool = pool();
        let mut receiver = UdpReceiver::bind((Ipv4Addr::UNSPECIFIED, 0).into(), &pool).unwrap();
        let to = (Ipv4Addr::LOCALHOST, receiver.local_addr().port()).into();
        let sender = UdpSender::bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let three = Transmit::new(b"onetwosix", to).segment_size(3);
        let error = sender.send(&three).await.unwrap_err();
        assert!(matches!(error.kind(), SendErrorKind::Io(_)), "{error:?}");
        for _ in 0..3 {
            // When it goes down again, some kernels report it and others drop what is sent.
            let _ = sender.send(&three).await;
            assert!(receiver.try_recv_batch().unwrap().is_none());
            set_link_up(b"lo", true);
            assert_eq!(sender.send(&three).await.unwrap(), 3);
            let batch = receiver.recv_batch().await.unwrap();
            // GSO was not given up because of an unrelated error.
            assert_eq!(
                (batch.contents(), batch.datagrams()),
                (&b"onetwosix"[..], 3)
            );
            // Queued datagrams stay when the interface goes down.
            sender.send(&three).await.unwrap();
            set_link_up(b"lo", false);
            assert_eq!(receiver.recv_batch().await.unwrap().datagrams(), 3);
        }
        assert_eq!(receiver.monitor().stats().received_datagrams, 18);
    }
    run_on_own_thread(unshare_network, test);
}

/// A port that the system chooses for several sockets must belong to nobody else: otherwise two servers of
/// the same user, each of which shares its port among its own sockets, would get each other's datagrams.
#[test]
fn shards_get_a_port_that_no_other_socket_shares() {
    async fn test() {
        set_link_up(b"lo", true);
        // One port for the system to choose from.
        if let Err(why) = std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000") {
            return skipped("the range of ports cannot be changed", &why);
        }
        let pool = pool();
        let bind = || UdpReceiver::builder(&pool).bind_shards(LOOPBACK, 2.try_into().unwrap());
        let shards = bind().unwrap();
        let port = shards[0].local_addr().port();
        assert_eq!((port, shards[1].local_addr().port()), (40_000, 40_000));
        let BindError::Socket { error, .. } = bind().unwrap_err() else {
            panic!("not the system's error");
        };
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        // By its number the port can be shared, and all sockets get datagrams.
        let mut both: Vec<_> = shards.into_iter().map(|s| s.start().unwrap()).collect();
        let third = UdpReceiver::builder(&pool).reuse_port(true);
        both.push(third.bind((Ipv4Addr::LOCALHOST, port).into()).unwrap());
        let mut got = vec![0; both.len()];
        for from in 1..=64 {
            let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, from), 50_000));
            let sender = UdpSender::bind(from).unwrap();
            let to = (Ipv4Addr::LOCALHOST, port).into();
            sender.send(&Transmit::new(b"x", to)).await.unwrap();
        }
        for (receiver, got) in both.iter_mut().zip(&mut got) {
            while receiver.try_recv_batch().unwrap().is_some() {
                *got += 1;
            }
        }
        assert_eq!(got.iter().sum::<i32>(), 64);
        assert!(got.iter().all(|&got| got > 0), "{got:?}");
    }
    run_on_own_thread(unshare_network, test);
}

/// Drops that nobody has asked about are read when the socket is closed; afterwards the descriptor's number
/// belongs to another file.
#[tokio::test]
async fn a_monitor_counts_only_its_own_sockets_drops() {
    // Higher than any descriptor of the other tests.
    let high = |socket: &UdpSocket| {
        // SAFETY: takes only numbers.
        let fd = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 900) };
        checked(fd.min(0)).unwrap();
        // SAFETY: the descriptor was just made, and nobody else knows it.
        UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let flood = |to: &UdpSocket, count| {
        let from = UdpSocket::bind(LOOPBACK).unwrap();
        for _ in 0..count {
            from.send_to(&[1; 1000], to.local_addr().unwrap()).unwrap();
        }
    };
    let pool = pool();
    let socket = UdpSocket::bind(LOOPBACK).unwrap();
    let same = high(&socket);
    let number = same.as_raw_fd();
    let receiver = UdpReceiver::builder(&pool)
        .receive_buffer_bytes(1 << 14)
        .from_std(same)
        .unwrap();
    let monitor = receiver.monitor();
    flood(&socket, 100);
    drop(receiver);
    let before = monitor.stats().kernel_dropped_datagrams;
    assert!((1..100).contains(&before), "{before}");
    let other = UdpSocket::bind(LOOPBACK).unwrap();
    socket2::SockRef::from(&other)
        .set_recv_buffer_size(1 << 14)
        .unwrap();
    let other = high(&other);
    assert_eq!(other.as_raw_fd(), number);
    flood(&other, 1000);
    assert_eq!(monitor.stats().kernel_dropped_datagrams, before);
}

/// Where no route leads to a group, the interface alone says where to send: with GSO and without, from a sink, and from a
/// socket of either family. (To a group of IPv6 the loopback interface has no route at all.)
#[test]
fn a_datagram_leaves_by_the_interface_that_was_chosen() {
    async fn test() {
        let (pool, group) = (pool(), Ipv4Addr::new(239, 1, 2, 3));
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let socket = UdpSocket::bind(any).unwrap();
        let lo = socket2::InterfaceIndexOrAddress::Index(1);
        let joining = socket2::SockRef::from(&socket);
        joining.join_multicast_v4_n(&group, &lo).unwrap();
        let mut receiver = UdpReceiver::builder(&pool).from_std(socket).unwrap();
        let to = SocketAddr::from((group, receiver.local_addr().port()));
        for from in [any, (Ipv6Addr::UNSPECIFIED, 0).into()] {
            let sender = UdpSender::bind(from).unwrap();
            let two = Transmit::new(b"onetwo", to).segment_size(3);
            assert!(sender.send(&two).await.is_err(), "no route leads to {to}");
            assert_eq!(sender.send(&two.interface(1)).await.unwrap(), 2);
            let packet = Outgoing::new(Packet::from_static(b"six"), to).interface(1);
            sender.sink().send(packet).await.unwrap();
            for contents in ["one", "two", "six"] {
                let datagram = receiver.recv().await.unwrap();
                assert_eq!(datagram.packet, contents);
                assert_eq!(datagram.interface, Some(1));
            }
        }
    }
    run_on_own_thread(network_with_two_addresses, test);
}

const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
const OTHER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

/// A network with only a loopback interface that has these two addresses.
fn network_with_two_addresses() -> io::Result<()> {
    let add = |ip: Ipv6Addr| {
        let request = libc::in6_ifreq {
            ifr6_addr: libc::in6_addr {
                s6_addr: ip.octets(),
            },
            ifr6_prefixlen: 64,
            ifr6_ifindex: 1,
        };
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
        let fd = socket.as_raw_fd();
        // SAFETY: reads the structure that belongs to this request on an IPv6 socket.
        checked(unsafe { libc::ioctl(fd, libc::SIOCSIFADDR as _, &raw const request) })?;
        // The address becomes usable a moment later, after duplicate address detection.
        loop {
            match UdpSocket::bind(SocketAddrV6::new(ip, 0, 0, 1)) {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    thread::sleep(Duration::from_millis(1));
                }
                bound => return bound.map(drop),
            }
        }
    };
    unshare_network()?;
    set_link_up(b"lo", true);
    add(LINK_LOCAL)?;
    add(OTHER)
}

/// A peer that sends to a link-local address, but not from one, gets its answer from that address.
#[test]
fn a_reply_from_a_link_local_address_reaches_other_addresses() {
    async fn test() {
        let pool = pool();
        let mut server = UdpReceiver::bind((Ipv6Addr::UNSPECIFIED, 0).into(), &pool).unwrap();
        let to = SocketAddrV6::new(LINK_LOCAL, server.local_addr().port(), 0, 1).into();
        let mut client = UdpReceiver::bind((OTHER, 0).into(), &pool).unwrap();
        let two = Transmit::new(b"onetwo", to).segment_size(3);
        client.sender().send(&two).await.unwrap();
        let batch = server.recv_batch().await.unwrap();
        assert_eq!(batch.source(), client.local_addr());
        assert_eq!(server.sender().send(&batch.reply()).await.unwrap(), 2);
        assert_eq!(client.recv_batch().await.unwrap().source(), to);
        let datagram = batch.iter().next().unwrap();
        let reply = Outgoing::reply_to(&datagram, Packet::from_static(b"sink"));
        server.sender().sink().send(reply).await.unwrap();
        let mut contents = [0; 4];
        while contents != *b"sink" {
            let answer = client.recv_batch().await.unwrap();
            assert_eq!(answer.source(), to);
            contents = answer.contents().try_into().unwrap_or_default();
        }
    }
    run_on_own_thread(network_with_two_addresses, test);
}

/// The same for a session, whichever of the two addresses its ends have.
#[test]
fn a_session_with_a_link_local_address_is_answered_from_it() {
    async fn test() {
        for (here, there) in [
            (OTHER, LINK_LOCAL),
            (LINK_LOCAL, OTHER),
            (LINK_LOCAL, LINK_LOCAL),
        ] {
            let (pool, config) = (pool(), EndpointConfig::default());
            let all = (Ipv6Addr::UNSPECIFIED, 0).into();
            let server = Endpoint::bind(all, &pool, config.clone()).unwrap();
            let to = SocketAddrV6::new(there, server.local_addr().port(), 0, 1);
            let from = SocketAddrV6::new(here, 0, 0, 1).into();
            let client = Endpoint::bind(from, &pool, config).unwrap();
            // An interface that adds nothing to an address is ignored.
            let client = client.connect(to.into()).unwrap();
            client.send_slice(b"hello").await.unwrap();
            let answered = tokio::time::timeout(Duration::from_secs(20), client.ready());
            assert_eq!(answered.await.expect("timed out"), Ok(()), "{here} {there}");
            let accepted = server.accept().await.unwrap();
            assert_eq!(accepted.peer_addr().ip(), here);
            assert_eq!(server.stats().send_errors, 0);
        }
    }
    run_on_own_thread(network_with_two_addresses, test);
}

/// Whatever the address families of the socket and the datagram.
#[test]
fn datagrams_are_never_fragmented_in_either_family() {
    async fn test() {
        set_link_up(b"lo", true);
        let mut mtu = request(b"lo");
        mtu.ifr_ifru.ifru_mtu = 1500;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        ioctl(&socket, libc::SIOCSIFMTU, &mut mtu);
        let pool = pool();
        for (from, to, longest) in [
            ("0.0.0.0:0", "127.0.0.1:0", 1500 - 20 - 8),
            ("[::]:0", "127.0.0.1:0", 1500 - 20 - 8),
            ("[::]:0", "[::1]:0", 1500 - 40 - 8),
        ] {
            let Ok(mut receiver) = UdpReceiver::bind(to.parse().unwrap(), &pool) else {
                skipped("IPv6", &io::ErrorKind::Unsupported.into());
                continue;
            };
            let sender = UdpSender::bind(from.parse().unwrap()).unwrap();
            let (bytes, to) = ([7; 1500], receiver.local_addr());
            let fits = Transmit::new(&bytes[..longest], to);
            sender.send(&fits).await.unwrap();
            assert_eq!(
                receiver.recv_batch().await.unwrap().contents().len(),
                longest
            );
            let above = Transmit::new(&bytes[..=longest], to);
            let error = sender.send(&above).await.unwrap_err();
            assert!(
                matches!(error.kind(), SendErrorKind::TooLarge { bytes } if *bytes == longest + 1),
                "{from} {to}: {error:?}"
            );
        }
    }
    run_on_own_thread(unshare_network, test);
}
