//! Whatever the kernel does, the datagrams that it has are the first of those that were to be sent, each once
//! and as it was, and their number is the one that is returned.

use crate::HANG;
use crate::kernel::{Path, Sent, install, kernel, uninstall};
use crate::programs::{self, Random};
use futures_util::SinkExt;
use slab_net::PacketPool;
use slab_net::udp::{
    Ecn, Outgoing, SendError, SendErrorKind, Transmit, UdpReceiver, UdpSender, UdpSink,
};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};

/// Steps of a program.
const STEPS: usize = 60;

const LENGTHS: [usize; 8] = [0, 1, 8, 100, 100, 1200, 1473, 3000];

/// What a transmit is made of.
struct Planned {
    /// The contents, cut into parts if there is more than one.
    bytes: Vec<u8>,
    cuts: Vec<usize>,
    segment: usize,
    to: SocketAddr,
    from: Option<IpAddr>,
    ecn: Option<Ecn>,
}

fn ecn_bits(ecn: Option<Ecn>) -> u8 {
    match ecn {
        None => 0,
        Some(Ecn::Ect1) => 1,
        Some(Ecn::Ect0) => 2,
        Some(Ecn::Ce) => 3,
    }
}

impl Planned {
    fn new(random: &mut Random) -> Self {
        let size = random.pick(&LENGTHS);
        let (len, segment) = match random.below(4) {
            0 if size > 0 => {
                let segments = 1 + random.below(140) as usize;
                let len = size * segments - random.below(size as u64) as usize;
                (len.min(90_000), size)
            }
            // No segments: no less than the length.
            1 => (size, size + random.below(2) as usize),
            _ => (size, 0),
        };
        let bytes = (0..len).map(|_| random.next() as u8).collect();
        let parts = match random.below(5) {
            0 => random.below(300),
            1 => random.below(4),
            _ => 0,
        };
        let mut cuts: Vec<usize> = (0..parts)
            .map(|_| random.below(len as u64 + 1) as usize)
            .collect();
        cuts.sort_unstable();
        Self {
            bytes,
            cuts,
            segment,
            to: (Ipv4Addr::LOCALHOST, random.pick(&[9, 9, 9, 10])).into(),
            from: random.chance(100).then_some(Ipv4Addr::LOCALHOST.into()),
            ecn: random.pick(&[None, None, None, None, Some(Ecn::Ect0), Some(Ecn::Ce)]),
        }
    }

    fn parts(&self) -> Vec<IoSlice<'_>> {
        let mut from = 0;
        let ends = self.cuts.iter().copied().chain([self.bytes.len()]);
        ends.map(|to| {
            let part = IoSlice::new(&self.bytes[from..to]);
            from = to;
            part
        })
        .collect()
    }

    fn transmit<'a>(&'a self, parts: &'a [IoSlice<'a>]) -> Transmit<'a> {
        let transmit = match self.cuts.is_empty() {
            true => Transmit::new(&self.bytes, self.to),
            false => Transmit::gather(parts, self.to),
        };
        let mut transmit = transmit.segment_size(self.segment);
        if let Some(from) = self.from {
            transmit = transmit.source_ip(from);
        }
        if let Some(ecn) = self.ecn {
            transmit = transmit.ecn(ecn);
        }
        transmit
    }

    fn datagrams(&self) -> Vec<Sent> {
        let one = |bytes: &[u8]| Sent {
            to: self.to,
            from: self.from,
            ecn: ecn_bits(self.ecn),
            bytes: bytes.to_vec(),
        };
        if self.bytes.is_empty() || self.segment == 0 {
            return vec![one(&self.bytes)];
        }
        self.bytes.chunks(self.segment).map(one).collect()
    }

    /// The parts, none of them empty, of its datagram number `number`.
    fn parts_of(&self, number: usize) -> usize {
        let size = if self.segment == 0 {
            usize::MAX
        } else {
            self.segment
        };
        let from = number.saturating_mul(size);
        let to = from.saturating_add(size).min(self.bytes.len());
        let mut inside: Vec<usize> = self.cuts.clone();
        inside.retain(|&cut| cut > from && cut < to);
        inside.dedup();
        inside.len() + 1
    }
}

fn random_path(random: &mut Random) -> Path {
    Path {
        most: random.pick(&[65_507, 65_507, 1472, 1472, 50]),
        refuses_gso: random.pick(&[0, 0, 0, 0, libc::EIO, libc::EINVAL]),
        too_long_segment: random.pick(&[libc::EMSGSIZE, libc::EINVAL]),
        faults: random.pick(&[0, 20, 100, 300]),
    }
}

/// Takes the datagrams that the kernel has got; returns its path and the last error besides.
fn take_sent() -> (Vec<Sent>, Path, i32) {
    kernel(|kernel| {
        let sent = std::mem::take(&mut kernel.sent);
        (sent, kernel.path, kernel.last_error)
    })
}

fn is_of(kind: &SendErrorKind, code: i32, refused: &Sent) -> bool {
    match kind {
        SendErrorKind::TooLarge { bytes } => {
            code == libc::EMSGSIZE && *bytes == refused.bytes.len()
        }
        SendErrorKind::NoBuffers => code == libc::ENOBUFS,
        SendErrorKind::Refused => code == libc::ECONNREFUSED,
        SendErrorKind::Io(error) => error.raw_os_error() == Some(code) && code == libc::EPERM,
        _ => false,
    }
}

struct Program {
    random: Random,
    sender: UdpSender,
    sink: UdpSink,
    in_sink: VecDeque<Sent>,
    pool: PacketPool,
    datagrams: u64,
    bytes: u64,
}

impl Program {
    fn sent(&mut self, sent: &[Sent]) {
        self.datagrams += sent.len() as u64;
        self.bytes += sent.iter().map(|one| one.bytes.len() as u64).sum::<u64>();
        let stats = self.sender.monitor().stats();
        assert_eq!(stats.sent_datagrams, self.datagrams);
        assert_eq!(stats.sent_bytes, self.bytes);
        assert_eq!(stats.send_calls, kernel(|kernel| kernel.send_calls));
    }

    async fn step(&mut self) {
        if self.random.chance(100) {
            let path = random_path(&mut self.random);
            kernel(|kernel| kernel.path = path);
        }
        match self.random.below(10) {
            0..=2 => self.feed().await,
            3 => self.flush().await,
            _ => self.send().await,
        }
    }

    async fn send(&mut self) {
        let count = self.random.pick(&[1, 1, 2, 3, 10, 70]);
        let planned: Vec<Planned> = (0..count).map(|_| Planned::new(&mut self.random)).collect();
        let parts: Vec<Vec<IoSlice<'_>>> = planned.iter().map(Planned::parts).collect();
        let transmits: Vec<Transmit<'_>> = planned
            .iter()
            .zip(&parts)
            .map(|(one, parts)| one.transmit(parts))
            .collect();
        let counted: usize = transmits.iter().map(Transmit::datagrams).sum();
        let all: Vec<Sent> = planned.iter().flat_map(Planned::datagrams).collect();
        assert_eq!(counted, all.len());
        let may_stop_early = self.random.chance(400);
        let outcome = match (may_stop_early, count) {
            (true, 1) => Some(self.sender.try_send(&transmits[0])),
            (true, _) => Some(self.sender.try_send_many(&transmits)),
            (false, _) => {
                let sending = self.sender.send_many(&transmits);
                tokio::pin!(sending);
                if self.random.chance(200) {
                    tokio::select! {
                        biased;
                        outcome = &mut sending => Some(outcome),
                        () = tokio::task::yield_now() => None,
                    }
                } else {
                    let outcome = tokio::time::timeout(HANG, sending).await;
                    Some(outcome.expect("hangs"))
                }
            }
        };
        let (sent, path, code) = take_sent();
        self.sent(&sent);
        assert!(sent.len() <= all.len());
        assert!(sent == all[..sent.len()], "not the first of them");
        let complete = sent.len() == all.len();
        match outcome {
            None => {}
            Some(Ok(told)) => {
                assert_eq!(told, sent.len());
                // Of a single transmit, it is an error.
                assert!(complete || may_stop_early && count > 1);
            }
            Some(Err(error)) => {
                assert_eq!(error.sent(), sent.len());
                let refused = &all[sent.len()];
                match error.kind() {
                    SendErrorKind::TooManyParts { most } => {
                        let mut before = sent.len();
                        let of = planned.iter().find(|one| {
                            let count = one.datagrams().len();
                            let is_here = before < count;
                            before -= if is_here { 0 } else { count };
                            is_here
                        });
                        let parts = of.expect("there is one").parts_of(before);
                        assert!(parts > *most, "{parts} parts");
                    }
                    SendErrorKind::WouldBlock => {
                        assert!(may_stop_early && count == 1);
                        assert_eq!(error.destination(), Some(refused.to));
                    }
                    kind => {
                        assert!(is_of(kind, code, refused), "{error:?} for {code}");
                        let is_too_large = matches!(kind, SendErrorKind::TooLarge { .. });
                        assert!(!is_too_large || refused.bytes.len() > path.most);
                    }
                }
            }
        }
    }

    /// Offload that was never refused is still used; if it is refused, then once.
    async fn check_offload(&mut self) {
        let was_refused = kernel(|kernel| {
            let refuses_gso = match kernel.gso_refusals {
                0 => 0,
                _ => libc::EIO,
            };
            kernel.path = Path {
                most: 1472,
                refuses_gso,
                too_long_segment: libc::EMSGSIZE,
                faults: 0,
            };
            refuses_gso != 0
        });
        let two = Transmit::new(b"onetwo", (Ipv4Addr::LOCALHOST, 9).into()).segment_size(3);
        assert_eq!(self.sender.send(&two).await.unwrap(), 2);
        let before = kernel(|kernel| kernel.gso_messages);
        assert_eq!(self.sender.send(&two).await.unwrap(), 2);
        let after = kernel(|kernel| kernel.gso_messages);
        assert_eq!(after - before, u64::from(!was_refused));
        let (sent, ..) = take_sent();
        assert_eq!(sent.len(), 4);
        self.sent(&sent);
    }

    /// Takes what the sink has sent, and what it reports as refused, out of the model.
    fn settle(&mut self, outcome: &Result<(), SendError>) {
        let (sent, _, code) = take_sent();
        self.sent(&sent);
        let expected: Vec<Sent> = self.in_sink.drain(..sent.len()).collect();
        assert!(sent == expected, "not the first of them");
        if let Err(error) = outcome {
            let refused = self.in_sink.pop_front().expect("it was queued");
            assert!(is_of(error.kind(), code, &refused), "{error:?} for {code}");
        }
    }

    async fn feed(&mut self) {
        for _ in 0..self.random.pick(&[1, 5, 40]) {
            let len = self.random.pick(&LENGTHS);
            let bytes: Vec<u8> = (0..len).map(|_| self.random.next() as u8).collect();
            let header = self.random.below(len as u64 + 1) as usize;
            let header = if self.random.chance(500) { header } else { 0 };
            let to = (Ipv4Addr::LOCALHOST, self.random.pick(&[9, 9, 10])).into();
            let copy = |bytes: &[u8]| self.pool.try_copy_from_slice(bytes).unwrap();
            let item = Outgoing::new(copy(&bytes[header..]), to).header(copy(&bytes[..header]));
            let fed = tokio::time::timeout(HANG, self.sink.feed(item)).await;
            self.settle(&fed.expect("hangs"));
            self.in_sink.push_back(Sent {
                to,
                from: None,
                ecn: 0,
                bytes,
            });
            assert_eq!(self.sink.queued(), self.in_sink.len());
        }
    }

    async fn flush(&mut self) {
        if self.random.chance(300) {
            // Given up when it first waits.
            let outcome = tokio::select! {
                biased;
                outcome = self.sink.flush() => outcome,
                () = tokio::task::yield_now() => Ok(()),
            };
            self.settle(&outcome);
        } else {
            let flushed = tokio::time::timeout(HANG, self.sink.flush()).await;
            let flushed = flushed.expect("hangs");
            self.settle(&flushed);
            assert!(flushed.is_err() || self.in_sink.is_empty());
        }
        assert_eq!(self.sink.queued(), self.in_sink.len());
    }
}

#[test]
fn each_datagram_is_sent_once_or_reported() {
    programs::run(60, |seed| async move {
        let mut random = Random::new(seed);
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let any: SocketAddr = match random.chance(300) {
            true => "[::]:0".parse().unwrap(),
            false => "127.0.0.1:0".parse().unwrap(),
        };
        let Ok(socket) = UdpSocket::bind(any) else {
            // There is no IPv6.
            return;
        };
        let receiver = UdpReceiver::builder(&pool)
            .from_std(socket.try_clone().unwrap())
            .unwrap();
        let sender = receiver.sender();
        install(sender.as_fd().as_raw_fd(), socket, random.clone());
        let path = random_path(&mut random);
        kernel(|kernel| kernel.path = path);
        let mut program = Program {
            random,
            sink: sender.sink(),
            sender,
            in_sink: VecDeque::new(),
            pool: pool.clone(),
            datagrams: 0,
            bytes: 0,
        };
        for _ in 0..STEPS {
            program.step().await;
        }
        while program.sink.queued() > 0 {
            program.flush().await;
        }
        program.check_offload().await;
        #[cfg(feature = "quinn")]
        quinn(program, receiver);
        #[cfg(not(feature = "quinn"))]
        drop((program, receiver));
        assert_eq!(pool.slab().stats().in_use(), 0);
        uninstall();
    });
}

/// Before Linux 6.14, EINVAL is also what segments get that one path has to fragment: it ends offload only where
/// nothing is fragmented. EIO is about a device.
#[tokio::test]
async fn a_path_that_fragments_does_not_end_offload_to_others() {
    for (fragment, code, ends) in [
        (false, libc::EINVAL, true),
        (true, libc::EINVAL, false),
        (true, libc::EIO, true),
    ] {
        let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let receiver = UdpReceiver::builder(&pool)
            .fragment(fragment)
            .from_std(socket.try_clone().unwrap())
            .unwrap();
        let sender = receiver.sender();
        install(sender.as_fd().as_raw_fd(), socket, Random::new(1));
        let two = Transmit::new(b"onetwo", (Ipv4Addr::LOCALHOST, 9).into()).segment_size(3);
        kernel(|kernel| kernel.path.refuses_gso = code);
        assert_eq!(sender.send(&two).await.unwrap(), 2);
        assert_eq!(kernel(|kernel| kernel.gso_messages), 1);
        kernel(|kernel| kernel.path.refuses_gso = 0);
        assert_eq!(sender.send(&two).await.unwrap(), 2);
        let with_offload = kernel(|kernel| kernel.gso_messages) - 1;
        assert_eq!(with_offload, u64::from(!ends), "{fragment} {code}");
        uninstall();
    }
}

/// What quinn is not told of is counted.
#[cfg(feature = "quinn")]
fn quinn(mut program: Program, receiver: UdpReceiver) {
    use quinn::AsyncUdpSocket;

    let socket = receiver.into_quinn();
    let mut lost = 0;
    for _ in 0..20 {
        let planned = Planned::new(&mut program.random);
        let transmit = quinn::udp::Transmit {
            destination: planned.to,
            ecn: planned.ecn.map(|ecn| match ecn {
                Ecn::Ect0 => quinn::udp::EcnCodepoint::Ect0,
                Ecn::Ect1 => quinn::udp::EcnCodepoint::Ect1,
                Ecn::Ce => quinn::udp::EcnCodepoint::Ce,
            }),
            contents: &planned.bytes,
            segment_size: Some(planned.segment).filter(|&bytes| bytes > 0),
            src_ip: planned.from,
        };
        let outcome = socket.try_send(&transmit);
        let (sent, ..) = take_sent();
        program.sent(&sent);
        let all = planned.datagrams();
        assert!(sent == all[..sent.len()], "not the first of them");
        match outcome {
            Ok(()) => lost += (all.len() - sent.len()) as u64,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                assert!(sent.is_empty());
            }
        }
        assert_eq!(socket.monitor().stats().send_lost_datagrams, lost);
    }
}
