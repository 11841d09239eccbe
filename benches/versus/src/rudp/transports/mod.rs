//! The libraries, each with windows of 1024 segments, an MTU of 1400 and 4 MiB of socket buffers, as far as
//! it has these settings; those that speak KCP use nodelay 1, interval 10, resend 2, nc 1.

mod ours;
mod quinn;
mod tokio_kcp;

pub(super) use self::quinn::Quinn;
pub(super) use self::tokio_kcp::TokioKcp;
pub(super) use ours::{ENCRYPTED, MANY_SESSIONS, Ours, UNENCRYPTED, WITH_FEC};

use std::net::{SocketAddr, UdpSocket};

/// Opens a socket on loopback, non-blocking, with the same buffers for all.
pub(super) fn socket() -> UdpSocket {
    let socket =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).expect("a socket");
    socket.set_recv_buffer_size(4 << 20).expect("a buffer");
    socket.set_send_buffer_size(4 << 20).expect("a buffer");
    socket.set_nonblocking(true).expect("non-blocking");
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&any.into()).expect("an address");
    socket.into()
}
