//! [`UdpSender`]: from memory to the socket, many datagrams a call where the system can (GSO).

use super::datagram::Ecn;
use super::error::{BindError, SendError, SendErrorKind};
use super::socket::{Socket, SocketOptions};
use super::stats::SocketMonitor;
use quinn_udp::UdpSockRef;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::io::Interest;

/// The most bytes in one call with GSO: what fits into an IPv4 packet.
const MAX_GSO_BYTES: usize = 65507;

/// What to send and where to: one datagram, or many to one destination that lie one behind the
/// other in memory.
#[derive(Debug, Clone, Copy)]
pub struct Transmit<'a> {
    contents: &'a [u8],
    /// Not zero, and less than the length of the contents.
    segment_size: Option<usize>,
    destination: SocketAddr,
    source_ip: Option<IpAddr>,
    ecn: Option<Ecn>,
}

impl<'a> Transmit<'a> {
    /// One datagram; no contents make an empty one.
    #[must_use]
    pub fn new(contents: &'a [u8], destination: SocketAddr) -> Self {
        Self {
            contents,
            segment_size: None,
            destination,
            source_ip: None,
            ecn: None,
        }
    }

    /// Makes the contents many datagrams of `bytes` each but for the last, which may be shorter.
    /// With zero, or no less than the length of the contents, it is one datagram.
    #[must_use]
    pub fn segment_size(mut self, bytes: usize) -> Self {
        self.segment_size = Some(bytes).filter(|&b| b > 0 && b < self.contents.len());
        self
    }

    /// The local address to send from, for a socket that is bound to all.
    #[must_use]
    pub fn source_ip(mut self, ip: IpAddr) -> Self {
        self.source_ip = Some(ip);
        self
    }

    /// The ECN codepoint to mark the datagrams with.
    #[must_use]
    pub fn ecn(mut self, ecn: Ecn) -> Self {
        self.ecn = Some(ecn);
        self
    }

    /// How many datagrams it is.
    #[must_use]
    pub fn datagrams(&self) -> usize {
        self.segment_size
            .map_or(1, |size| self.contents.len().div_ceil(size))
    }
}

/// Sends datagrams. Clones share one socket and its counters.
#[derive(Debug, Clone)]
pub struct UdpSender {
    socket: Arc<Socket>,
}

impl UdpSender {
    /// A sender with a socket of its own.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O enabled.
    pub fn bind(address: SocketAddr) -> Result<Self, BindError> {
        Socket::bind(address, SocketOptions::default()).map(Self::new)
    }

    pub(super) fn new(socket: Arc<Socket>) -> Self {
        Self { socket }
    }

    /// The address the socket is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.address
    }

    /// Reads the socket's counters while the sender is in use, and after it is gone.
    #[must_use]
    pub fn monitor(&self) -> SocketMonitor {
        SocketMonitor::new(Arc::clone(&self.socket.counters))
    }

    /// Sends all datagrams of a transmit, in as few calls to the kernel as it takes, and returns
    /// how many those datagrams were. Waits while the socket's send buffer is full.
    ///
    /// If the future is dropped, the datagrams up to some boundary are sent.
    ///
    /// # Errors
    /// What the system said to one of the datagrams; those before it are sent, see
    /// [`SendError::sent`].
    pub async fn send(&self, transmit: &Transmit<'_>) -> Result<usize, SendError> {
        let mut progress = Progress::default();
        while let Some(call) = progress.next_call(transmit, self.max_segments()) {
            let result = self
                .socket
                .io
                .async_io(Interest::WRITABLE, || self.call_kernel(transmit, &call))
                .await;
            self.settle(&mut progress, &call, result)?;
        }
        Ok(progress.sent)
    }

    /// As [`send`](Self::send), but does not wait: returns how many datagrams were sent before the
    /// socket's send buffer was full, all of them or fewer.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn try_send(&self, transmit: &Transmit<'_>) -> Result<usize, SendError> {
        let mut progress = Progress::default();
        while let Some(call) = progress.next_call(transmit, self.max_segments()) {
            let result = self
                .socket
                .io
                .try_io(Interest::WRITABLE, || self.call_kernel(transmit, &call));
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                result => self.settle(&mut progress, &call, result)?,
            }
        }
        Ok(progress.sent)
    }

    fn max_segments(&self) -> usize {
        self.socket.state.max_gso_segments()
    }

    fn call_kernel(&self, transmit: &Transmit<'_>, call: &Call) -> io::Result<()> {
        let transmit = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.map(Into::into),
            contents: &transmit.contents[call.start..call.end],
            segment_size: transmit.segment_size.filter(|_| call.datagrams > 1),
            src_ip: transmit.source_ip,
        };
        self.socket
            .state
            .try_send(UdpSockRef::from(&self.socket.io), &transmit)
    }

    /// Counts what was sent, and decides how it goes on after an error.
    fn settle(
        &self,
        progress: &mut Progress,
        call: &Call,
        result: io::Result<()>,
    ) -> Result<(), SendError> {
        match result {
            Ok(()) => {
                let counters = &self.socket.counters.send;
                let bytes = (call.end - call.start) as u64;
                counters
                    .datagrams
                    .fetch_add(call.datagrams as u64, Ordering::Relaxed);
                counters.bytes.fetch_add(bytes, Ordering::Relaxed);
                counters.calls.fetch_add(1, Ordering::Relaxed);
                progress.done(call);
                Ok(())
            }
            Err(error) if call.datagrams > 1 && is_about_the_message(&error) => {
                // Segments that do not fit the path, or a device without GSO. One datagram at a
                // time finds out which. After EINVAL and EIO quinn-udp does not offer GSO for this
                // socket again.
                if !self.socket.gso_refused.swap(true, Ordering::Relaxed) {
                    tracing::info!(%error, "segmentation offload refused, sending one by one");
                }
                progress.one_by_one = true;
                Ok(())
            }
            Err(error) => Err(SendError {
                sent: progress.sent,
                kind: SendErrorKind::from_io(error, call.end - call.start),
            }),
        }
    }
}

/// Did the system refuse this message rather than the socket as a whole?
fn is_about_the_message(error: &io::Error) -> bool {
    quinn_udp::is_msg_size_err(error)
        || error.kind() == io::ErrorKind::InvalidInput
        || is_device_error(error)
}

#[cfg(target_os = "linux")]
fn is_device_error(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EIO)
}

#[cfg(not(target_os = "linux"))]
fn is_device_error(_: &io::Error) -> bool {
    false
}

/// Part of a transmit that goes to the kernel in one call.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    start: usize,
    end: usize,
    datagrams: usize,
}

/// How far a transmit is.
#[derive(Debug, Default)]
struct Progress {
    at: usize,
    sent: usize,
    one_by_one: bool,
}

impl Progress {
    fn next_call(&self, transmit: &Transmit<'_>, max_segments: usize) -> Option<Call> {
        let len = transmit.contents.len();
        let size = transmit.segment_size.unwrap_or(len);
        // An empty datagram is sent once, too.
        if self.sent == transmit.datagrams() {
            return None;
        }
        let most = match self.one_by_one {
            true => 1,
            false => max_segments.min(MAX_GSO_BYTES / size.max(1)).max(1),
        };
        let end = self.at.saturating_add(size.saturating_mul(most)).min(len);
        Some(Call {
            start: self.at,
            end,
            datagrams: (end - self.at).div_ceil(size.max(1)).max(1),
        })
    }

    fn done(&mut self, call: &Call) {
        self.at = call.end;
        self.sent += call.datagrams;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// The lengths of the calls that a transmit becomes.
    fn calls(len: usize, segment: usize, max_segments: usize, one_by_one: bool) -> Vec<usize> {
        let contents = vec![0; len];
        let transmit =
            Transmit::new(&contents, (Ipv4Addr::LOCALHOST, 1).into()).segment_size(segment);
        let mut progress = Progress {
            one_by_one,
            ..Progress::default()
        };
        let mut lens = Vec::new();
        while let Some(call) = progress.next_call(&transmit, max_segments) {
            lens.push(call.end - call.start);
            progress.done(&call);
        }
        assert_eq!(lens.iter().sum::<usize>(), len);
        assert_eq!(progress.sent, transmit.datagrams());
        lens
    }

    #[test]
    fn a_transmit_is_cut_at_segments_and_limits() {
        assert_eq!(calls(0, 0, 64, false), [0]);
        assert_eq!(calls(0, 10, 64, false), [0]);
        assert_eq!(calls(10, 0, 64, false), [10]);
        assert_eq!(calls(10, 10, 64, false), [10]);
        assert_eq!(calls(10, 4, 64, false), [10]);
        assert_eq!(calls(10, 4, 2, false), [8, 2]);
        assert_eq!(calls(10, 4, 1, false), [4, 4, 2]);
        assert_eq!(calls(10, 4, 64, true), [4, 4, 2]);
        // 54 * 1200 = 64800 fits into a packet, 55 do not.
        assert_eq!(calls(60 * 1200, 1200, 64, false), [64800, 7200]);
        assert_eq!(calls(70, 1, 64, false), [64, 6]);
        // Too long for any datagram: the system is to say so.
        assert_eq!(calls(70_000, 0, 64, false), [70_000]);
    }
}
