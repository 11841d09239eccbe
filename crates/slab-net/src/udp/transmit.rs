//! [`Transmit`]: what to send and where; and how it is cut into messages for the kernel.

use super::datagram::Ecn;
use super::error::SendErrorKind;
use super::sys::{MAX_BATCH, Message};
use arrayvec::ArrayVec;
use core::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};

/// The most bytes in one message with GSO: the longest UDP payload of an IPv4 packet.
const MAX_GSO_BYTES: usize = 65507;

/// The most parts of payload in one system call.
pub(super) const MAX_PARTS: usize = 128;

/// What to send and where: one datagram, or many to one destination whose payloads are contiguous in
/// memory.
///
/// ```
/// # use slab_net::PacketPool;
/// # use slab_net::udp::Transmit;
/// use slab_net::udp::{Ecn, UdpReceiver};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
/// # let mut client = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
/// let mut server = UdpReceiver::bind("0.0.0.0:0".parse()?, &pool)?;
/// # let to = ([127, 0, 0, 2], server.local_addr().port()).into();
/// # client.sender().send(&Transmit::new(b"ping", to)).await?;
/// let request = server.recv().await?;
/// // From the address that the request was sent to, by the interface that it came by, with ECN.
/// let answer = request.reply_with(b"pong").interface(request.interface.unwrap_or(0)).ecn(Ecn::Ect0);
/// assert_eq!(answer.destination(), client.local_addr());
/// server.sender().send(&answer).await?;
/// # let received = client.recv_batch().await?;
/// # assert_eq!((received.source(), received.ecn()), (to, Some(Ecn::Ect0)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct Transmit<'a> {
    contents: Contents<'a>,
    /// The length of the contents in bytes.
    len: usize,
    /// Not zero, and less than `len`.
    segment_size: Option<usize>,
    destination: SocketAddr,
    source_ip: Option<IpAddr>,
    /// The interface of an IPv6 source that is only valid on one interface; 0 otherwise.
    source_interface: u32,
    /// The interface that the caller chose; 0 if none.
    interface: u32,
    ecn: Option<Ecn>,
}

#[derive(Clone, Copy)]
enum Contents<'a> {
    Whole(&'a [u8]),
    Parts(&'a [IoSlice<'a>]),
}

impl<'a> Transmit<'a> {
    /// Makes one datagram. Empty contents make an empty datagram.
    ///
    /// On Linux every socket that reaches an IPv4 destination takes it in either form, as it is or mapped into
    /// IPv6.
    #[must_use]
    pub fn new(contents: &'a [u8], destination: SocketAddr) -> Self {
        Self::from_contents(Contents::Whole(contents), contents.len(), destination)
    }

    /// Makes one datagram whose contents lie in several places, such as a header and a payload. On
    /// Linux the kernel gathers them without a copy before; elsewhere they are first copied together.
    ///
    /// At most 128 parts per datagram.
    ///
    /// ```
    /// use slab_net::PacketPool;
    /// use slab_net::udp::{Transmit, UdpReceiver};
    /// use std::io::IoSlice;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    /// let mut socket = UdpReceiver::bind("127.0.0.1:0".parse()?, &pool)?;
    /// let parts = [IoSlice::new(b"header "), IoSlice::new(b"payload")];
    /// let transmit = Transmit::gather(&parts, socket.local_addr());
    /// socket.sender().send(&transmit).await?;
    /// assert_eq!(socket.recv_batch().await?.contents(), b"header payload");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn gather(parts: &'a [IoSlice<'a>], destination: SocketAddr) -> Self {
        let len = parts.iter().map(|part| part.len()).sum();
        Self::from_contents(Contents::Parts(parts), len, destination)
    }

    fn from_contents(contents: Contents<'a>, len: usize, destination: SocketAddr) -> Self {
        Self {
            contents,
            len,
            segment_size: None,
            destination,
            source_ip: None,
            source_interface: 0,
            interface: 0,
            ecn: None,
        }
    }

    /// Divides the contents into datagrams of `bytes` each, except the last, which may be shorter. If
    /// `bytes` is zero, or not less than the length of the contents, they remain one datagram.
    #[must_use]
    pub fn segment_size(mut self, bytes: usize) -> Self {
        self.segment_size = Some(bytes).filter(|&b| b > 0 && b < self.len);
        self
    }

    /// Sets the local address to send from, for a socket that is bound to all addresses: in an answer, the
    /// [destination](super::Datagram::destination_ip) of what it answers. Linux refuses to send from an address
    /// that is not the system's, such as a broadcast address, or not of the socket's family.
    ///
    /// To an IPv4 multicast group, Linux then sends on the interface that has this address, if the socket has
    /// none set for groups (`IP_MULTICAST_IF`). To a link-local group of IPv6 it sends on the interface of the
    /// destination's [`scope_id`](std::net::SocketAddrV6::scope_id). For other groups the [`interface`](Self::interface)
    /// or the option of the socket decides, or the routes.
    #[must_use]
    pub fn source_ip(mut self, ip: IpAddr) -> Self {
        self.source_ip = Some(ip);
        // That of a former source need not have this address.
        self.source_interface = 0;
        self
    }

    /// Sets the interface to send on by its index, such as the [`interface`](super::Datagram::interface) that a request
    /// came by: for multicast and broadcast, and for addresses that mean another host on each link, such as link-local
    /// ones of IPv4. 0 leaves the choice to the routes. Linux only; ignored elsewhere.
    ///
    /// Linux takes a unicast destination to which no route leads by this interface for a host on its link.
    #[must_use]
    pub fn interface(mut self, index: u32) -> Self {
        self.interface = index;
        self
    }

    /// The interface to send on; 0 if the system may choose.
    fn out_interface(&self) -> u32 {
        match self.interface {
            0 => self.source_interface,
            chosen => chosen,
        }
    }

    /// Sets the [`source_ip`](Self::source_ip), if any, and the interface that it belongs to.
    pub(crate) fn source(mut self, from: Option<SocketAddr>) -> Self {
        self.source_ip = from.map(|from| from.ip());
        self.source_interface = match from {
            Some(SocketAddr::V6(v6)) => v6.scope_id(),
            _ => 0,
        };
        self
    }

    /// Sets the ECN codepoint of the datagrams. The system sets it together with the rest of the type
    /// of service, or traffic class: these other bits are zero in these datagrams, whatever the
    /// socket's are.
    #[must_use]
    pub fn ecn(mut self, ecn: Ecn) -> Self {
        self.ecn = Some(ecn);
        self
    }

    /// Where the datagrams go.
    #[must_use]
    pub fn destination(&self) -> SocketAddr {
        self.destination
    }

    /// The number of datagrams.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        self.segment_size.map_or(1, |size| self.len.div_ceil(size))
    }

    /// Appends the parts of a range of the contents; appends nothing if there are too many.
    fn push_parts<const N: usize>(
        &self,
        start: usize,
        end: usize,
        out: &mut ArrayVec<IoSlice<'a>, N>,
    ) -> Result<(), ()> {
        let before = out.len();
        let mut at = 0;
        let parts = match self.contents {
            Contents::Whole(bytes) => {
                let piece = IoSlice::new(&bytes[start..end]);
                return out.try_push(piece).map_err(drop);
            }
            Contents::Parts(parts) => parts,
        };
        for part in parts {
            let (from, to) = (start.max(at), end.min(at + part.len()));
            if from < to {
                let bytes: &'a [u8] = part;
                let piece = IoSlice::new(&bytes[from - at..to - at]);
                if out.try_push(piece).is_err() {
                    out.truncate(before);
                    return Err(());
                }
            }
            at += part.len();
        }
        Ok(())
    }

    /// Returns `true` if `next` can be another segment of the same message.
    fn can_coalesce_with(&self, next: &Self) -> bool {
        next.segment_size.is_none()
            && next.len > 0
            && next.len <= self.len
            && self.destination == next.destination
            && self.source_ip == next.source_ip
            && self.out_interface() == next.out_interface()
            && self.ecn == next.ecn
    }
}

impl fmt::Debug for Transmit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transmit")
            .field("destination", &self.destination)
            .field("datagrams", &self.datagrams())
            .field("bytes", &self.len)
            .field("source_ip", &self.source_ip)
            .field("interface", &self.out_interface())
            .field("ecn", &self.ecn)
            .finish_non_exhaustive()
    }
}

/// How far a list of transmits has been sent.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The first transmit that has not been sent completely.
    transmit: usize,
    /// The number of its bytes that have been sent.
    at: usize,
    /// The number of datagrams sent so far.
    pub(super) sent: usize,
    /// Whether to send the rest without GSO.
    pub(super) without_gso: bool,
    /// The error for a message with GSO, until it is known whether GSO was its cause.
    pub(super) gso_suspect: Option<io::Error>,
}

/// A planned message.
#[derive(Debug)]
pub(super) struct PlannedMessage {
    /// The index of the transmit that determines the destination.
    transmit: usize,
    /// The number of its parts of payload.
    parts: usize,
    segment_size: Option<u16>,
    pub(super) datagrams: usize,
    pub(super) bytes: usize,
    /// The position in the list after this message: transmit and byte.
    next: (usize, usize),
}

/// The plan of one system call. Filled in place: it has several KiB, which would be copied on each way out of a
/// function.
#[derive(Debug, Default)]
pub(super) struct Plan<'a> {
    parts: ArrayVec<IoSlice<'a>, MAX_PARTS>,
    pub(super) planned: ArrayVec<PlannedMessage, MAX_BATCH>,
}

impl<'a> Plan<'a> {
    /// Plans as much as fits into one system call; nothing when everything has been sent. The plan is empty before.
    pub(super) fn fill(
        &mut self,
        transmits: &[Transmit<'a>],
        progress: &Progress,
        max_segments: usize,
    ) -> Result<(), SendErrorKind> {
        let max_segments = match progress.without_gso {
            true => 1,
            false => max_segments,
        };
        let (mut index, mut at) = (progress.transmit, progress.at);
        while index < transmits.len() && !self.planned.is_full() {
            let Some(planned) = self.push_message(transmits, index, at, max_segments) else {
                break;
            };
            (index, at) = planned.next;
            self.planned.push(planned);
        }
        match self.planned.is_empty() && index < transmits.len() {
            true => Err(SendErrorKind::TooManyParts { most: MAX_PARTS }),
            false => Ok(()),
        }
    }

    /// Plans the message that begins at this byte of this transmit, if its parts fit.
    fn push_message(
        &mut self,
        transmits: &[Transmit<'a>],
        index: usize,
        at: usize,
        max_segments: usize,
    ) -> Option<PlannedMessage> {
        let first = &transmits[index];
        let before = self.parts.len();
        let size = first.segment_size.unwrap_or(first.len);
        let most = max_segments.min(MAX_GSO_BYTES / size.max(1)).max(1);
        let mut end = at.saturating_add(size.saturating_mul(most)).min(first.len);
        if first.push_parts(at, end, &mut self.parts).is_err() {
            // Too many parts for that many segments, but perhaps not for one.
            end = at.saturating_add(size).min(first.len);
            first.push_parts(at, end, &mut self.parts).ok()?;
        }
        let mut planned = PlannedMessage {
            transmit: index,
            parts: 0,
            segment_size: None,
            // An empty datagram counts too.
            datagrams: (end - at).div_ceil(size.max(1)).max(1),
            bytes: end - at,
            next: (index, end),
        };
        if end == first.len {
            planned.next = (index + 1, 0);
            if first.segment_size.is_none() {
                self.coalesce(transmits, &mut planned, most);
            }
        }
        if planned.datagrams > 1 {
            planned.segment_size = u16::try_from(size).ok();
        }
        planned.parts = self.parts.len() - before;
        Some(planned)
    }

    /// Adds following datagrams with the same destination and length to the message as segments: as many as
    /// `most`, which are no more bytes than a message takes, because none is longer than the first.
    fn coalesce(&mut self, transmits: &[Transmit<'a>], planned: &mut PlannedMessage, most: usize) {
        let first = &transmits[planned.transmit];
        while let Some(next) = transmits.get(planned.next.0) {
            if planned.datagrams >= most || !first.can_coalesce_with(next) {
                return;
            }
            if next.push_parts(0, next.len, &mut self.parts).is_err() {
                return;
            }
            planned.next.0 += 1;
            planned.datagrams += 1;
            planned.bytes += next.len;
            debug_assert!(planned.bytes <= MAX_GSO_BYTES);
            if next.len < first.len {
                // Only the last segment may be shorter.
                return;
            }
        }
    }

    /// Adds the plan to `to`, which is empty, in the form that the system call takes.
    pub(super) fn write_messages<'p>(
        &'p self,
        transmits: &[Transmit<'a>],
        to: &mut ArrayVec<Message<'p>, MAX_BATCH>,
    ) {
        let mut rest = &self.parts[..];
        let message = |planned: &PlannedMessage| {
            let (parts, others) = rest.split_at(planned.parts);
            rest = others;
            let transmit = &transmits[planned.transmit];
            Message {
                parts,
                destination: transmit.destination,
                source_ip: transmit.source_ip,
                interface: transmit.out_interface(),
                ecn: transmit.ecn,
                segment_size: planned.segment_size,
            }
        };
        to.extend(self.planned.iter().map(message));
    }
}

impl Progress {
    /// Where the next datagram goes.
    pub(super) fn next_destination(&self, transmits: &[Transmit<'_>]) -> Option<SocketAddr> {
        Some(transmits.get(self.transmit)?.destination)
    }

    pub(super) fn is_complete(&self, transmits: &[Transmit<'_>]) -> bool {
        self.transmit == transmits.len()
    }

    pub(super) fn advance_past(&mut self, planned: &PlannedMessage) {
        (self.transmit, self.at) = planned.next;
        self.sent += planned.datagrams;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6};

    const TO: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

    #[test]
    fn what_is_printed_says_where_to_and_how_but_not_what() {
        let transmit = Transmit::new(b"secret", TO).ecn(Ecn::Ect0).segment_size(4);
        let text = format!("{transmit:?}");
        for part in ["127.0.0.1:1", "datagrams: 2", "bytes: 6", "Ect0"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("secret") && !text.contains("115"), "{text}");
    }

    #[test]
    fn a_source_does_not_keep_the_interface_of_a_former_one() {
        let link_local = SocketAddrV6::new("fe80::1".parse().unwrap(), 0, 0, 3);
        let reply = Transmit::new(b"reply", TO).source(Some(link_local.into()));
        assert_eq!(reply.source_interface, 3);
        let other = reply.source_ip("2001:db8::1".parse().unwrap());
        assert_eq!(other.source_interface, 0);
    }

    /// Plans until everything is sent, and returns each message's length and datagrams.
    fn messages(
        transmits: &[Transmit<'_>],
        max_segments: usize,
        without_gso: bool,
    ) -> Vec<(usize, usize)> {
        let mut progress = Progress {
            without_gso,
            ..Progress::default()
        };
        let mut all = Vec::new();
        let mut bytes = Vec::new();
        loop {
            let mut plan = Plan::default();
            plan.fill(transmits, &progress, max_segments).unwrap();
            if plan.planned.is_empty() {
                break;
            }
            let mut messages = ArrayVec::new();
            plan.write_messages(transmits, &mut messages);
            for (planned, message) in plan.planned.iter().zip(&messages) {
                let len: usize = message.parts.iter().map(|part| part.len()).sum();
                assert_eq!(len, planned.bytes);
                assert_eq!(message.segment_size.is_some(), planned.datagrams > 1);
                bytes.extend(message.parts.iter().flat_map(|part| part.to_vec()));
                all.push((planned.bytes, planned.datagrams));
                progress.advance_past(planned);
            }
        }
        let datagrams: usize = transmits.iter().map(Transmit::datagrams).sum();
        assert_eq!(progress.sent, datagrams);
        let mut whole: ArrayVec<IoSlice<'_>, 1000> = ArrayVec::new();
        for transmit in transmits {
            transmit.push_parts(0, transmit.len, &mut whole).unwrap();
        }
        let expected: Vec<u8> = whole.iter().flat_map(|part| part.to_vec()).collect();
        assert_eq!(bytes, expected);
        all
    }

    fn lens(len: usize, segment: usize, max_segments: usize, without_gso: bool) -> Vec<usize> {
        let contents: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let transmit = Transmit::new(&contents, TO).segment_size(segment);
        let messages = messages(&[transmit], max_segments, without_gso);
        messages.into_iter().map(|(bytes, _)| bytes).collect()
    }

    #[test]
    fn a_log_line_about_a_transmit_has_no_contents() {
        let parts = [IoSlice::new(b"header"), IoSlice::new(&[7; 3000])];
        let destination = "192.0.2.1:53".parse().unwrap();
        let whole = Transmit::new(&[7; 3000], destination).segment_size(1000);
        for transmit in [whole, Transmit::gather(&parts, destination)] {
            let line = format!("{transmit:?}");
            assert!(line.len() < 300 && line.contains("192.0.2.1:53"), "{line}");
        }
    }

    #[test]
    fn a_transmit_is_split_at_segments_and_limits() {
        assert_eq!(lens(0, 0, 64, false), [0]);
        assert_eq!(lens(0, 10, 64, false), [0]);
        assert_eq!(lens(10, 0, 64, false), [10]);
        assert_eq!(lens(10, 10, 64, false), [10]);
        assert_eq!(lens(10, 4, 64, false), [10]);
        assert_eq!(lens(10, 4, 2, false), [8, 2]);
        assert_eq!(lens(10, 4, 1, false), [4, 4, 2]);
        assert_eq!(lens(10, 4, 64, true), [4, 4, 2]);
        // 54 * 1200 = 64800 fits into a packet, 55 * 1200 does not.
        assert_eq!(lens(60 * 1200, 1200, 64, false), [64800, 7200]);
        assert_eq!(lens(70, 1, 64, false), [64, 6]);
        // Too long for any datagram: the system is to refuse it.
        assert_eq!(lens(70_000, 0, 64, false), [70_000]);
    }

    #[test]
    fn equal_datagrams_to_one_destination_share_a_message() {
        let bytes = [7; 100];
        let of = |len: usize| Transmit::new(&bytes[..len], TO);
        let elsewhere = Transmit::new(&bytes[..10], (Ipv4Addr::LOCALHOST, 2).into());
        let same = [of(10), of(10), of(10), of(4), of(4), of(10)];
        assert_eq!(messages(&same, 64, false), [(34, 4), (4, 1), (10, 1)]);
        assert_eq!(
            messages(&same, 2, false),
            [(20, 2), (14, 2), (4, 1), (10, 1)]
        );
        assert_eq!(
            messages(&same, 64, true),
            [(10, 1), (10, 1), (10, 1), (4, 1), (4, 1), (10, 1)]
        );
        let mixed = [
            of(10),
            elsewhere,
            of(10),
            of(0),
            of(0),
            of(10).ecn(Ecn::Ce),
            of(10),
        ];
        assert_eq!(
            messages(&mixed, 64, false),
            [(10, 1); 3]
                .into_iter()
                .chain([(0, 1), (0, 1), (10, 1), (10, 1)])
                .collect::<Vec<_>>()
        );
        // Each keeps its own source.
        let from = |by| Some(SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, by).into());
        let mixed = [of(10), of(10).source(from(0)), of(10).source(from(1))];
        assert_eq!(messages(&mixed, 64, false), [(10, 1); 3]);
        // And its own interface.
        let mixed = [of(10), of(10).interface(2), of(10).interface(2), of(10)];
        assert_eq!(messages(&mixed, 64, false), [(10, 1), (20, 2), (10, 1)]);
        // A transmit with segments of its own is not joined with others.
        let segmented = [of(10), of(100).segment_size(10), of(10)];
        assert_eq!(
            messages(&segmented, 64, false),
            [(10, 1), (100, 10), (10, 1)]
        );
        // More than fits into one packet.
        let long = vec![0; 1200];
        let long = Transmit::new(&long, TO);
        assert_eq!(messages(&[long; 60], 64, false), [(64800, 54), (7200, 6)]);
        // More than fits into one system call.
        assert_eq!(messages(&[of(0); 50], 64, false), [(0, 1); 50]);
        let long = vec![0; 40_000];
        let long = Transmit::new(&long, TO);
        assert_eq!(messages(&[long; 3], 64, false), [(40_000, 1); 3]);
    }

    #[test]
    fn parts_are_gathered_and_split_anywhere() {
        let bytes: Vec<u8> = (0..=255).collect();
        let cuts = [0, 3, 3, 4, 50, 51, 200, 256, 256];
        let parts: Vec<IoSlice<'_>> = cuts
            .windows(2)
            .map(|cut| IoSlice::new(&bytes[cut[0]..cut[1]]))
            .collect();
        for segment in [0, 1, 2, 3, 7, 50, 100, 255, 256, 300] {
            for max_segments in [1, 3, 64] {
                let transmit = Transmit::gather(&parts, TO).segment_size(segment);
                messages(&[transmit, transmit], max_segments, false);
            }
        }
        assert_eq!(messages(&[Transmit::gather(&[], TO)], 64, false), [(0, 1)]);
    }

    #[test]
    fn too_many_parts_are_refused_only_within_one_datagram() {
        let one = [IoSlice::new(b"x")];
        let many = vec![one[0]; MAX_PARTS + 1];
        let transmit = Transmit::gather(&many, TO);
        let mut plan = Plan::default();
        assert!(matches!(
            plan.fill(&[transmit], &Progress::default(), 64),
            Err(SendErrorKind::TooManyParts { most: MAX_PARTS })
        ));
        // Behind others, it is refused when its turn comes.
        let both = [Transmit::new(b"a", TO), transmit];
        plan.fill(&both, &Progress::default(), 64).unwrap();
        assert_eq!(plan.planned.len(), 1);
        let segmented = transmit.segment_size(2);
        let sizes = messages(&[segmented], 64, false);
        assert_eq!(sizes.iter().map(|&(_, n)| n).sum::<usize>(), 65);
    }
}
