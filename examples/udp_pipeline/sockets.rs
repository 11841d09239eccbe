//! Sockets as a program without this library opens them, for the modes without a pool.

use crate::options::Options;
use crate::server::RECEIVE_BUFFER_BYTES;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// Opens one socket per shard, all at one address.
///
/// # Errors
/// The system's error, with the address.
pub(crate) fn bind_shards(options: &Options) -> Result<Vec<UdpSocket>, String> {
    let several = options.shards > 1;
    let mut address = options.listen;
    let bind_error = |error| format!("cannot bind UDP {}: {error}", options.listen);
    if several {
        // SO_REUSEPORT would share the address with other programs, so try without it first.
        address = UdpSocket::bind(address)
            .and_then(|socket| socket.local_addr())
            .map_err(bind_error)?;
    }
    let bind = |_| bind(address, several).map_err(bind_error);
    (0..options.shards).map(bind).collect()
}

fn bind(address: SocketAddr, reuse_port: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::DGRAM,
        Some(Protocol::UDP),
    )?;
    socket.set_nonblocking(true)?;
    #[cfg(unix)]
    socket.set_reuse_port(reuse_port)?;
    #[cfg(not(unix))]
    let _ = reuse_port;
    socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}
