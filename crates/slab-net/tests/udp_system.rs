//! What a system does that loopback does not: send buffers that are full, memory that is short,
//! interfaces that go down. In threads with a network, or a filter for system calls, of their own.
//!
//! A network of one's own takes privileges; without them these tests have nothing to test.
#![cfg(target_os = "linux")]

mod udp_common;

use futures_util::SinkExt;
use slab_net::PacketPool;
use slab_net::rudp::{Endpoint, EndpointConfig};
use slab_net::udp::{BindError, Outgoing, SendErrorKind, Transmit, UdpReceiver, UdpSender};
use std::fs::{File, OpenOptions};
#[cfg(feature = "quinn")]
use std::io::Write;
use std::io::{self, Read};
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake};
use std::thread;
use std::time::Duration;
use udp_common::{checked, refuse, refuse_if, skipped};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Only how long a broken test takes to fail.
#[cfg(feature = "quinn")]
const HANG: Duration = Duration::from_secs(20);

fn pool() -> PacketPool {
    PacketPool::builder().max_memory(8 << 20).build().unwrap()
}

/// Runs in a thread of its own, whose end gives back what it changed about itself.
fn apart<F: Future<Output = ()> + 'static>(prepare: fn() -> io::Result<()>, test: fn() -> F) {
    let run = move || {
        if let Err(why) = prepare() {
            return skipped("this thread's system cannot be changed", &why);
        }
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(test());
    };
    std::thread::spawn(run).join().unwrap();
}

/// A network with nothing but a loopback interface that is down.
fn network_of_its_own() -> io::Result<()> {
    // SAFETY: changes what this thread sees of the system, and no memory.
    checked(unsafe { libc::unshare(libc::CLONE_NEWNET) })
}

fn refuse_to_send(code: i32) -> io::Result<()> {
    refuse(libc::SYS_sendmmsg, code)
}

#[test]
fn what_the_system_refuses_has_a_kind_and_the_sink_goes_on_behind_it() {
    async fn no_buffers() {
        let (sender, transmits) = (UdpSender::bind(ANY).unwrap(), [Transmit::new(b"x", ANY)]);
        let error = sender.send_all(&transmits).await.unwrap_err();
        assert!(matches!(error.kind(), SendErrorKind::NoBuffers), "{error}");
        assert_eq!(
            (error.sent(), sender.monitor().stats().sent_datagrams),
            (0, 0)
        );
        // Three packets; each flush reports one of them.
        let mut sink = sender.sink();
        for _ in 0..3 {
            let payload = slab_net::Packet::from_static(b"payload");
            sink.feed(Outgoing::new(payload, ANY)).await.unwrap();
        }
        for left in [2, 1, 0] {
            let error = sink.flush().await.unwrap_err();
            assert!(matches!(error.kind(), SendErrorKind::NoBuffers), "{error}");
            assert_eq!(sink.queued(), left);
        }
        sink.flush().await.unwrap();
    }
    async fn too_large() {
        let sender = UdpSender::bind(ANY).unwrap();
        // Of two segments, then of one alone: this is not about GSO.
        let both = Transmit::new(b"onetwo", ANY).segment_size(3);
        let error = sender.send(&both).await.unwrap_err();
        assert!(
            matches!(error.kind(), SendErrorKind::TooLarge { bytes: 3 }),
            "{error}"
        );
    }
    async fn forbidden() {
        let sender = UdpSender::bind(ANY).unwrap();
        let error = sender.send(&Transmit::new(b"x", ANY)).await.unwrap_err();
        match error.kind() {
            SendErrorKind::Io(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
            other => panic!("{other:?}"),
        }
    }
    apart(|| refuse_to_send(libc::ENOBUFS), no_buffers);
    apart(|| refuse_to_send(libc::EMSGSIZE), too_large);
    apart(|| refuse_to_send(libc::EPERM), forbidden);
}

/// Of older kernels those without checksum offloading do.
#[test]
fn a_device_that_refuses_gso_gets_each_datagram_as_a_message_of_its_own() {
    async fn test() {
        let pool = pool();
        let mut receiver = UdpReceiver::bind(ANY, &pool).unwrap();
        let sender = UdpSender::bind(ANY).unwrap();
        let three = Transmit::new(b"onetwosix", receiver.local_addr()).segment_size(3);
        for round in 1..=2 {
            assert_eq!(sender.send(&three).await.unwrap(), 3);
            for one in [b"one", b"two", b"six"] {
                assert_eq!(receiver.recv_batch().await.unwrap().contents(), one);
            }
            assert_eq!(sender.monitor().stats().send_calls, round);
        }
    }
    // With GSO it is one message, and else three.
    apart(|| refuse_if(libc::SYS_sendmmsg, Some(1), libc::EIO), test);
}

/// An `ifreq` for an interface.
fn request(name: &[u8]) -> libc::ifreq {
    // SAFETY: integers and a union of such, for which zeros are values.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    request
}

fn ioctl<T>(file: &impl AsRawFd, code: libc::c_ulong, argument: &mut T) {
    let argument: *mut T = argument;
    // SAFETY: each call in this file passes the structure that belongs to its code.
    checked(unsafe { libc::ioctl(file.as_raw_fd(), code as _, argument) }).unwrap();
}

fn set_up(name: &[u8], up: bool) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let mut request = request(name);
    let flags = if up { libc::IFF_UP } else { 0 };
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(&socket, libc::SIOCSIFFLAGS, &mut request);
}

#[test]
fn an_interface_that_goes_down_is_an_error_and_no_end() {
    async fn test() {
        let pool = pool();
        let mut receiver = UdpReceiver::bind((Ipv4Addr::UNSPECIFIED, 0).into(), &pool).unwrap();
        let to = (Ipv4Addr::LOCALHOST, receiver.local_addr().port()).into();
        let sender = UdpSender::bind((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
        let three = Transmit::new(b"onetwosix", to).segment_size(3);
        let error = sender.send(&three).await.unwrap_err();
        assert!(matches!(error.kind(), SendErrorKind::Io(_)), "{error:?}");
        for _ in 0..3 {
            // Down again, some kernels report it and others drop what is sent.
            let _ = sender.send(&three).await;
            assert!(receiver.try_recv_batch().unwrap().is_none());
            set_up(b"lo", true);
            assert_eq!(sender.send(&three).await.unwrap(), 3);
            let batch = receiver.recv_batch().await.unwrap();
            // GSO was not given up for an error that is not about it.
            assert_eq!(
                (batch.contents(), batch.datagrams()),
                (&b"onetwosix"[..], 3)
            );
            // What is in the queue stays when the interface goes.
            sender.send(&three).await.unwrap();
            set_up(b"lo", false);
            assert_eq!(receiver.recv_batch().await.unwrap().datagrams(), 3);
        }
        assert_eq!(receiver.monitor().stats().received_datagrams, 18);
    }
    apart(network_of_its_own, test);
}

/// A port that the system chooses for several sockets is nobody else's: of one user, two servers that
/// share their ports with themselves would get each other's datagrams.
#[test]
fn a_port_to_be_shared_is_not_one_that_others_share() {
    async fn test() {
        set_up(b"lo", true);
        // One port for the system to choose.
        if let Err(why) = std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40000") {
            return skipped("the range of ports cannot be changed", &why);
        }
        let pool = pool();
        let bind = || UdpReceiver::builder(&pool).bind_shards(ANY, 2.try_into().unwrap());
        let shards = bind().unwrap();
        let port = shards[0].local_addr().port();
        assert_eq!((port, shards[1].local_addr().port()), (40_000, 40_000));
        let BindError::Socket { source, .. } = bind().unwrap_err() else {
            panic!("not the system's error");
        };
        assert_eq!(source.kind(), io::ErrorKind::AddrInUse);
        // By its number it can be shared, and the two get what comes.
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
    apart(network_of_its_own, test);
}

/// Drops of which nobody has asked are known when the socket is closed; and a descriptor's number is
/// another file's then.
#[tokio::test]
async fn a_monitor_knows_its_own_sockets_drops_and_no_others() {
    // One above all that other tests use.
    let high = |socket: &UdpSocket| {
        // SAFETY: takes numbers only.
        let fd = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 900) };
        checked(fd.min(0)).unwrap();
        // SAFETY: it was just made, and nobody else knows of it.
        UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let flood = |to: &UdpSocket, count| {
        let from = UdpSocket::bind(ANY).unwrap();
        for _ in 0..count {
            from.send_to(&[1; 1000], to.local_addr().unwrap()).unwrap();
        }
    };
    let pool = pool();
    let socket = UdpSocket::bind(ANY).unwrap();
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
    let other = UdpSocket::bind(ANY).unwrap();
    socket2::SockRef::from(&other)
        .set_recv_buffer_size(1 << 14)
        .unwrap();
    let other = high(&other);
    assert_eq!(other.as_raw_fd(), number);
    flood(&other, 1000);
    assert_eq!(monitor.stats().kernel_dropped_datagrams, before);
}

const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
const OTHER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

/// A network with nothing but a loopback interface that has these two addresses.
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
        // SAFETY: reads the structure that belongs to this code for a socket of IPv6.
        checked(unsafe { libc::ioctl(fd, libc::SIOCSIFADDR as _, &raw const request) })?;
        // It can be used a moment later, when the kernel has seen to it that nobody else has it.
        loop {
            match UdpSocket::bind(SocketAddrV6::new(ip, 0, 0, 1)) {
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    thread::sleep(Duration::from_millis(1));
                }
                bound => return bound.map(drop),
            }
        }
    };
    network_of_its_own()?;
    set_up(b"lo", true);
    add(LINK_LOCAL)?;
    add(OTHER)
}

/// Who asks by a link-local address, but not from one, gets an answer from it.
#[test]
fn a_reply_from_a_link_local_address_goes_to_any_other() {
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
    }
    apart(network_with_two_addresses, test);
}

/// The same of a session, whichever of the two addresses are its ends.
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
            // An interface that says nothing more of an address is passed over.
            let client = client.connect(to.into()).unwrap();
            client.send_slice(b"hello").await.unwrap();
            let answered = tokio::time::timeout(Duration::from_secs(20), client.ready());
            assert_eq!(answered.await.expect("in time"), Ok(()), "{here} {there}");
            let accepted = server.accept().await.unwrap();
            assert_eq!(accepted.peer_addr().ip(), here);
            assert_eq!(server.stats().send_errors, 0);
        }
    }
    apart(network_with_two_addresses, test);
}

/// An Ethernet whose other end is a file.
struct Tap {
    file: File,
    name: [u8; 5],
}

impl Tap {
    const OURS: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 1);
    const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 2);

    fn open() -> io::Result<Self> {
        const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?;
        let name = *b"slab0";
        let mut make = request(&name);
        make.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        ioctl(&file, TUNSETIFF, &mut make);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let mut address = request(&name);
        address.ifr_ifru.ifru_addr = sockaddr(Self::OURS);
        ioctl(&socket, libc::SIOCSIFADDR, &mut address);
        set_up(&name, true);
        Ok(Self { file, name })
    }

    /// Tells the kernel where the other end is. Until then it keeps what is sent there.
    fn answer_arp(&self) {
        // SAFETY: integers only.
        let mut entry: libc::arpreq = unsafe { zeroed() };
        entry.arp_pa = sockaddr(Self::THEIRS);
        entry.arp_ha.sa_family = libc::ARPHRD_ETHER;
        entry.arp_ha.sa_data[0] = 2;
        entry.arp_flags = libc::ATF_COM | libc::ATF_PERM;
        for (to, from) in entry.arp_dev.iter_mut().zip(self.name) {
            *to = from as libc::c_char;
        }
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        ioctl(&socket, libc::SIOCSARP, &mut entry);
    }

    /// The next packet with a datagram in it.
    #[cfg(feature = "quinn")]
    fn packet(&mut self) -> Vec<u8> {
        let mut frame = [0; 4096];
        loop {
            let len = self.file.read(&mut frame).unwrap();
            if frame[12..14] == [8, 0] && frame[23] == 17 {
                return frame[14..len].to_vec();
            }
        }
    }

    /// Lets the other end answer by a packet of this protocol.
    #[cfg(feature = "quinn")]
    fn answer(&mut self, protocol: u8, body: &[u8]) {
        let len = (20 + body.len()) as u16;
        let mut header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0].to_vec();
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header.extend_from_slice(&Self::THEIRS.octets());
        header.extend_from_slice(&Self::OURS.octets());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum);
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let mut ours = request(&self.name);
        ioctl(&socket, libc::SIOCGIFHWADDR, &mut ours);
        // SAFETY: filled in by the call, and integers in any case.
        let mac = unsafe { ours.ifr_ifru.ifru_hwaddr }.sa_data;
        let mut frame: Vec<u8> = mac[..6].iter().map(|&byte| byte as u8).collect();
        frame.extend_from_slice(&[2, 0, 0, 0, 0, 0, 8, 0]);
        frame.extend_from_slice(&header);
        frame.extend_from_slice(body);
        self.file.write_all(&frame).unwrap();
    }

    /// The payloads of all datagrams that arrived for this port.
    fn datagrams(&mut self, port: u16) -> Vec<Vec<u8>> {
        const ETHERNET: usize = 14;
        let mut frame = [0; 4096];
        let mut payloads = Vec::new();
        while let Ok(len) = self.file.read(&mut frame) {
            let frame = &frame[..len];
            let is_udp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&17);
            let to = frame.get(ETHERNET + 22..ETHERNET + 24);
            if is_udp && to == Some(&port.to_be_bytes()) {
                let len = u16::from_be_bytes([frame[ETHERNET + 24], frame[ETHERNET + 25]]);
                payloads.push(frame[ETHERNET + 28..][..usize::from(len) - 8].to_vec());
            }
        }
        payloads
    }
}

/// That of IP and ICMP.
#[cfg(feature = "quinn")]
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| {
        let word = [word[0], word.get(1).copied().unwrap_or(0)];
        u32::from(u16::from_be_bytes(word))
    });
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(((sum & 0xffff) + (sum >> 16)) as u16)).to_be_bytes()
}

fn sockaddr(ip: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: integers only.
    let mut address: libc::sockaddr = unsafe { zeroed() };
    address.sa_family = libc::AF_INET as libc::sa_family_t;
    for (to, from) in address.sa_data[2..].iter_mut().zip(ip.octets()) {
        *to = from as libc::c_char;
    }
    address
}

/// Polls once or a few times.
async fn does_wait<T: std::fmt::Debug>(future: &mut (impl Future<Output = T> + Unpin)) {
    tokio::select! {
        biased;
        done = future => panic!("it does not wait: {done:?}"),
        () = tokio::task::yield_now() => {}
    }
}

#[test]
fn a_full_send_buffer_is_waited_for_and_each_datagram_leaves_once() {
    async fn test() {
        let mut tap = match Tap::open() {
            Ok(tap) => tap,
            Err(why) => return skipped("there is no tap device", &why),
        };
        let pool = pool();
        let receiver = UdpReceiver::builder(&pool)
            .send_buffer_bytes(4096)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        let (sender, to) = (receiver.sender(), SocketAddr::from((Tap::THEIRS, 7777)));
        let payloads: Vec<[u8; 1000]> = (0..60_u8).map(|n| [n; 1000]).collect();
        // Different destinations, so that each is a message and the kernel may stop at any.
        let transmits: Vec<Transmit<'_>> =
            payloads.iter().map(|one| Transmit::new(one, to)).collect();
        sender.send(&transmits[0]).await.unwrap();
        let mut sent = 1;
        loop {
            match sender.try_send(&transmits[sent]).unwrap() {
                0 => break,
                count => sent += count,
            }
            assert!(sent < 40, "the send buffer is never full");
        }
        assert_eq!(sender.try_send_all(&transmits[sent..]).unwrap(), 0);
        assert_eq!(sender.monitor().stats().sent_datagrams, sent as u64);

        // One that waits in a task's future, and one in a sink, beside each other.
        let mut rest = Box::pin(sender.send_all(&transmits[sent..50]));
        does_wait(&mut rest).await;
        let mut sink = sender.sink();
        for one in &payloads[50..] {
            let payload = pool.try_copy_from_slice(one).unwrap();
            sink.feed(Outgoing::new(payload, to)).await.unwrap();
        }
        let mut flush = Box::pin(sink.flush());
        does_wait(&mut flush).await;
        tap.answer_arp();
        let (all, flushed) = tokio::join!(rest, flush);
        assert_eq!(all.unwrap(), 50 - sent);
        flushed.unwrap();
        let mut arrived: Vec<u8> = tap.datagrams(7777).iter().map(|one| one[0]).collect();
        arrived.sort_unstable();
        assert_eq!(arrived, (0..60).collect::<Vec<u8>>());
        assert_eq!(sender.monitor().stats().sent_datagrams, 60);
    }
    apart(network_of_its_own, test);
}

/// What ICMP told once about a connected socket is no end of it: others run while it waits for room.
#[test]
fn who_was_refused_once_waits_for_room_as_everybody_does() {
    async fn test() {
        let tap = match Tap::open() {
            Ok(tap) => tap,
            Err(why) => return skipped("there is no tap device", &why),
        };
        set_up(b"lo", true);
        let pool = pool();
        let nobody = UdpSocket::bind((Tap::OURS, 0)).unwrap();
        let refusing = nobody.local_addr().unwrap();
        drop(nobody);
        let receiver = UdpReceiver::builder(&pool)
            .send_buffer_bytes(4096)
            .connect(refusing)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        let (sender, to) = (receiver.sender(), SocketAddr::from((Tap::THEIRS, 7777)));
        sender
            .send(&Transmit::new(b"hello", refusing))
            .await
            .unwrap();
        let mut refused = false;
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let again = sender.send(&Transmit::new(b"hello", refusing)).await;
            refused |= again.is_err_and(|e| matches!(e.kind(), SendErrorKind::Refused));
        }
        assert!(refused);

        let payload = [7; 1000];
        let transmits: Vec<_> = (0..40).map(|_| Transmit::new(&payload, to)).collect();
        let mut sink = sender.sink();
        let answer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(300));
            tap.answer_arp();
            tap
        });
        let mut ticks = 0;
        let all = async {
            while sender.send_all(&transmits).await.is_err() {}
            for _ in 0..40 {
                let payload = pool.try_copy_from_slice(&payload).unwrap();
                let _ = sink.feed(Outgoing::new(payload, to)).await;
            }
            sink.flush().await
        };
        let ticking = async {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                ticks += 1;
            }
        };
        tokio::select! {
            sent = all => sent.unwrap(),
            () = ticking => {}
        }
        assert!(ticks > 10, "{ticks}");
        drop(answer.join().unwrap());
    }
    apart(network_of_its_own, test);
}

/// As the test before, where what polls is not tokio's: only the socket is.
#[test]
fn who_was_refused_once_waits_for_room_outside_of_a_runtime_too() {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    fn test() {
        let tap = match Tap::open() {
            Ok(tap) => tap,
            Err(why) => return skipped("there is no tap device", &why),
        };
        set_up(b"lo", true);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_io()
            .build()
            .unwrap();
        let inside = runtime.enter();
        let nobody = UdpSocket::bind((Tap::OURS, 0)).unwrap();
        let refusing = nobody.local_addr().unwrap();
        drop(nobody);
        let receiver = UdpReceiver::builder(&pool())
            .send_buffer_bytes(4096)
            .connect(refusing)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        drop(inside);
        let sender = receiver.sender();
        let hello = Transmit::new(b"hello", refusing);
        // Tokio has to hear of a refusal.
        for _ in 0..100 {
            let _ = sender.try_send(&hello);
            thread::sleep(Duration::from_millis(1));
        }
        let payload = [7; 1000];
        let transmit = Transmit::new(&payload, (Tap::THEIRS, 7777).into());
        while !matches!(sender.try_send(&transmit), Ok(0)) {}
        let mut waiting = pin!(sender.send(&transmit));
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut cx = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        tap.answer_arp();
        while waiting.as_mut().poll(&mut cx).is_pending() {
            thread::park();
        }
        drop(tap);
    }
    let run = || match network_of_its_own() {
        Ok(()) => test(),
        Err(why) => skipped("this thread's system cannot be changed", &why),
    };
    thread::spawn(run).join().unwrap();
}

#[cfg(feature = "quinn")]
#[test]
fn quinn_waits_for_room_and_may_ask_again() {
    async fn test() {
        use quinn::AsyncUdpSocket;

        let tap = match Tap::open() {
            Ok(tap) => tap,
            Err(why) => return skipped("there is no tap device", &why),
        };
        let receiver = UdpReceiver::builder(&pool())
            .send_buffer_bytes(4096)
            .bind((Tap::OURS, 0).into())
            .unwrap();
        let socket = Arc::new(receiver.into_quinn());
        let transmit = quinn::udp::Transmit {
            destination: (Tap::THEIRS, 7777).into(),
            ecn: None,
            contents: &[7; 1000],
            segment_size: None,
            src_ip: None,
        };
        let full = (0..40).find_map(|_| socket.try_send(&transmit).err());
        let full = full.expect("the send buffer is never full");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        let mut poller = Arc::clone(&socket).create_io_poller();
        let mut room = std::future::poll_fn(|cx| poller.as_mut().poll_writable(cx));
        does_wait(&mut room).await;
        tap.answer_arp();
        for _ in 0..2 {
            let room = tokio::time::timeout(HANG, &mut room).await;
            room.expect("hangs").unwrap();
        }
        socket.try_send(&transmit).unwrap();
        assert_eq!(socket.monitor().stats().send_lost_datagrams, 0);
    }
    apart(network_of_its_own, test);
}

/// A firewall's "administratively prohibited", which anybody on the way may send, is told of the
/// datagram before. quinn takes any error for the socket's end.
#[cfg(feature = "quinn")]
#[test]
fn what_icmp_says_of_an_earlier_datagram_is_no_end_of_quinns_socket() {
    async fn test() {
        use quinn::AsyncUdpSocket;

        let mut tap = match Tap::open() {
            Ok(tap) => tap,
            Err(why) => return skipped("there is no tap device", &why),
        };
        tap.answer_arp();
        let peer = SocketAddr::from((Tap::THEIRS, 7777));
        // Of each kind that ends the wait of a connected socket, from ICMP's list.
        for (kind, code) in [
            (3, 2),
            (3, 3),
            (3, 6),
            (3, 7),
            (3, 8),
            (3, 10),
            (3, 13),
            (12, 0),
        ] {
            let receiver = UdpReceiver::builder(&pool())
                .connect(peer)
                .bind((Tap::OURS, 0).into())
                .unwrap();
            let ours = receiver.local_addr();
            let hello = Transmit::new(b"hello", peer);
            receiver.sender().send(&hello).await.unwrap();
            let socket = receiver.into_quinn();
            let mut icmp = vec![kind, code, 0, 0, 0, 0, 0, 0];
            icmp.extend_from_slice(&tap.packet()[..28]);
            let sum = checksum(&icmp);
            icmp[2..4].copy_from_slice(&sum);
            tap.answer(1, &icmp);
            let mut udp = [peer.port(), ours.port(), 8 + 2, 0]
                .map(u16::to_be_bytes)
                .concat();
            udp.extend_from_slice(b"hi");
            tap.answer(17, &udp);
            let (mut buffer, mut meta) = ([0; 64 << 10], [quinn::udp::RecvMeta::default()]);
            let read = std::future::poll_fn(|cx| {
                let mut buffers = [io::IoSliceMut::new(&mut buffer)];
                socket.poll_recv(cx, &mut buffers, &mut meta)
            });
            let read = tokio::time::timeout(HANG, read).await.expect("hangs");
            assert_eq!(read.map_err(|e| (kind, code, e)).unwrap(), 1);
            assert_eq!((meta[0].addr, &buffer[..meta[0].len]), (peer, &b"hi"[..]));
        }
    }
    apart(network_of_its_own, test);
}

/// A device's MTU is below the segments: EMSGSIZE, told as what it is, and smaller ones go.
#[test]
fn a_datagram_above_the_mtu_is_too_large_and_those_before_it_are_sent() {
    async fn test() {
        let mut tap = match Tap::open() {
            Ok(tap) => tap,
            Err(why) => return skipped("there is no tap device", &why),
        };
        tap.answer_arp();
        let sender = UdpSender::bind((Tap::OURS, 0).into()).unwrap();
        let to = SocketAddr::from((Tap::THEIRS, 7777));
        let bytes = [7; 4000];
        let transmits = [
            Transmit::new(&bytes[..2000], to).segment_size(1000),
            Transmit::new(&bytes[..1473], to),
            Transmit::new(&bytes[..1], to),
        ];
        let error = sender.send_all(&transmits).await.unwrap_err();
        assert_eq!(error.sent(), 2);
        assert!(
            matches!(error.kind(), SendErrorKind::TooLarge { bytes: 1473 }),
            "{error}"
        );
        let segments = Transmit::new(&bytes, to).segment_size(1900);
        let error = sender.send(&segments).await.unwrap_err();
        assert!(
            matches!(error.kind(), SendErrorKind::TooLarge { bytes: 1900 }),
            "{error}"
        );
        assert_eq!(sender.send(&transmits[0]).await.unwrap(), 2);
        let lens: Vec<usize> = tap.datagrams(7777).iter().map(Vec::len).collect();
        assert_eq!(lens, [1000; 4]);
    }
    apart(network_of_its_own, test);
}

/// Whatever the addresses that the socket and the datagram have.
#[test]
fn no_datagram_is_fragmented_by_either_family() {
    async fn test() {
        set_up(b"lo", true);
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
                "{from} {to}: {error}"
            );
        }
    }
    apart(network_of_its_own, test);
}
