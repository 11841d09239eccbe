//! What quinn gets of whatever arrives: each datagram once and in order, or counted as truncated; each error
//! once, but none that others cause; and whoever waits is woken.

use crate::HANG;
use crate::kernel::{Arrival, Arrived, install, kernel, uninstall};
use crate::programs::{self, Random};
use quinn::AsyncUdpSocket;
use quinn::udp::RecvMeta;
use slab_net::PacketPool;
use slab_net::udp::{Coalescing, QuinnSocket, UdpReceiver};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

const STEPS: usize = 100;

/// What a call of quinn's has to return, in this order.
#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Datagram(SocketAddr, Vec<u8>),
    Error(i32),
}

struct Program {
    random: Random,
    socket: QuinnSocket,
    is_coalescing: bool,
    /// Whether the socket has a peer, and so is told what others report.
    is_connected: bool,
    /// The length of quinn's buffers.
    room: usize,
    expected: VecDeque<Expected>,
    delivered: (u64, u64),
    /// The datagrams of buffers that were too short.
    truncated: u64,
}

impl Program {
    fn arrive(&mut self, number: u16) {
        if self.random.chance(150) {
            let by_others = [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::EMSGSIZE];
            let own = [libc::ENOMEM, libc::ENETDOWN];
            let code = match self.random.chance(500) {
                true => self.random.pick(&by_others),
                false => self.random.pick(&own),
            };
            if own.contains(&code) || !self.is_connected {
                self.expected.push_back(Expected::Error(code));
            }
            return kernel(|kernel| kernel.arrive(Arrival::Error(code)));
        }
        let size = self.random.pick(&[0, 1, 100, 1200, 1500]);
        let count = 1 + self.random.below(4) as usize;
        let (len, stride) = match self.random.below(4) {
            0 if size > 0 && self.is_coalescing => (size * count, Some(size as i32)),
            // These make no sense, and are one datagram.
            1 if self.is_coalescing => (size, Some(self.random.pick(&[0, -1, i32::MAX]))),
            _ => (size, None),
        };
        let arrived = Arrived {
            bytes: (0..len).map(|_| self.random.next() as u8).collect(),
            stride,
            source: (Ipv4Addr::LOCALHOST, number).into(),
            ecn: 0,
        };
        if len > self.room {
            self.truncated += arrived.datagrams(self.room).len() as u64;
        } else {
            for datagram in arrived.datagrams(len) {
                let expected = Expected::Datagram(arrived.source, datagram.to_vec());
                self.expected.push_back(expected);
            }
        }
        kernel(|kernel| kernel.arrive(Arrival::Datagrams(arrived)));
    }

    /// One call, taken as quinn takes it.
    async fn receive(&mut self) -> io::Result<()> {
        let buffers = self.random.pick(&[1, 2, 3, 32]);
        let mut memory = vec![0; buffers * self.room];
        let mut slices: Vec<_> = memory.chunks_mut(self.room).map(IoSliceMut::new).collect();
        let mut metas = vec![RecvMeta::default(); buffers];
        let socket = &self.socket;
        let read = poll_fn(|cx| socket.poll_recv(cx, &mut slices, &mut metas)).await?;
        assert!(read > 0);
        for (meta, slice) in metas.iter().zip(&slices).take(read) {
            let mut rest = &slice[..meta.len];
            // Not even an empty datagram is one for quinn.
            while !rest.is_empty() {
                assert_ne!(meta.stride, 0, "quinn would not come to an end");
                let (datagram, others) = rest.split_at(meta.stride.min(rest.len()));
                rest = others;
                self.delivered.0 += 1;
                self.delivered.1 += datagram.len() as u64;
                let got = Expected::Datagram(meta.addr, datagram.to_vec());
                assert_eq!(self.next_expected(), Some(got));
            }
        }
        Ok(())
    }

    fn next_expected(&mut self) -> Option<Expected> {
        while let Some(Expected::Datagram(_, bytes)) = self.expected.front()
            && bytes.is_empty()
        {
            self.expected.pop_front();
            self.delivered.0 += 1;
        }
        self.expected.pop_front()
    }

    /// Receives until everything that is to be returned was.
    async fn receive_all(&mut self) {
        while kernel(|kernel| !kernel.arrivals.is_empty()) || !self.expected.is_empty() {
            let received = match tokio::time::timeout(HANG, self.receive()).await {
                Ok(received) => received,
                Err(_) => panic!("nobody woke who waits for {:?}", self.expected),
            };
            if let Err(error) = received {
                let code = error.raw_os_error().unwrap();
                assert_eq!(self.next_expected(), Some(Expected::Error(code)));
            }
        }
    }
}

#[test]
fn quinn_gets_each_datagram_once_and_no_error_that_others_cause() {
    programs::run(40, |seed| async move {
        let mut random = Random::new(seed);
        let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let is_coalescing = random.chance(500);
        let coalescing = match is_coalescing {
            true => Coalescing::On,
            false => Coalescing::Off { max_datagram: 1500 },
        };
        let receiver = UdpReceiver::builder(&pool)
            .coalescing(coalescing)
            .source_only(random.chance(500))
            .from_std(socket.try_clone().unwrap())
            .unwrap();
        install(receiver.as_fd().as_raw_fd(), socket, random.clone());
        let is_connected = random.chance(500);
        kernel(|kernel| {
            kernel.interrupts = 50;
            if is_connected {
                kernel.connect();
            }
        });
        let monitor = receiver.monitor();
        let mut program = Program {
            is_coalescing,
            is_connected,
            room: random.pick(&[100, 65_536]),
            random,
            socket: receiver.into_quinn(),
            expected: VecDeque::new(),
            delivered: (0, 0),
            truncated: 0,
        };
        for step in 0..STEPS {
            for arrival in 0..program.random.below(8) {
                program.arrive(1 + (step * 8) as u16 + arrival as u16);
            }
            // Something that is delivered, so that who waits has something to wait for.
            kernel(|kernel| {
                let last = Arrived {
                    bytes: vec![7],
                    stride: None,
                    source: (Ipv4Addr::LOCALHOST, u16::MAX).into(),
                    ecn: 0,
                };
                let expected = Expected::Datagram(last.source, last.bytes.clone());
                program.expected.push_back(expected);
                kernel.arrive(Arrival::Datagrams(last));
            });
            program.receive_all().await;
            let stats = monitor.stats();
            let received = kernel(|kernel| kernel.received);
            assert_eq!((stats.received_datagrams, stats.received_bytes), received);
            assert_eq!(stats.dropped(), program.truncated);
            assert_eq!(stats.dropped_truncated, program.truncated);
            assert_eq!(program.delivered.0 + stats.dropped(), received.0);
            assert_eq!(program.delivered.1 + stats.dropped_bytes(), received.1);
        }
        uninstall();
    });
}

/// By a security module, for example, whose number an error has that others cause.
#[tokio::test]
async fn quinn_is_told_if_receiving_is_refused_for_good() {
    let pool = PacketPool::builder().max_memory(2 << 20).build().unwrap();
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let receiver = UdpReceiver::builder(&pool)
        .from_std(socket.try_clone().unwrap())
        .unwrap();
    install(receiver.as_fd().as_raw_fd(), socket, Random::new(0));
    kernel(|kernel| kernel.refuse(libc::EACCES));
    let socket = receiver.into_quinn();
    let mut memory = vec![0; 65_536];
    let mut metas = [RecvMeta::default()];
    let received = poll_fn(|cx| {
        let mut slices = [IoSliceMut::new(&mut memory)];
        socket.poll_recv(cx, &mut slices, &mut metas)
    });
    let received = tokio::time::timeout(HANG, received).await;
    let error = received.expect("tries for ever").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES));
    uninstall();
}
