//! An option that is an address, for all examples.

use std::net::SocketAddr;

/// Parses an address; what the standard library says of one without a port does not help.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "expected an IP address and a port, such as 127.0.0.1:4433".into())
}
