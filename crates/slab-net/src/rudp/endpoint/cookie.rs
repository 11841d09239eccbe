//! Cookies: a peer proves its address before a session is opened for it.
//!
//! If there is no room for more sessions of unproved addresses, a WASK that would open one is answered by a keyed
//! hash of the address, the conversation and the time, and nothing is stored. A peer that receives the hash at that
//! address sends it along with its next attempt and gets a session whose address is proved, as with TCP's SYN
//! cookies and QUIC's Retry (RFC 9000, 8.1.2). So a flood of forged addresses takes the half-open sessions from
//! other implementations, but not from this one.

use super::super::time::Time;
use super::super::wire::{Command, HEADER_BYTES, Header, OURS, segments};
use super::secret::Secret;
use core::time::Duration;
use std::net::SocketAddr;

/// A cookie is valid for at least this long, and for less than twice as long.
const PERIOD: Duration = Duration::from_secs(30);

/// The length of an answer with a cookie: less than twice that of the shortest question.
pub(super) const ANSWER_BYTES: usize = HEADER_BYTES + size_of::<u64>();

/// The cookie of a conversation for the period of `now`, or for the one `ago` periods earlier; never zero.
fn cookie(secret: &Secret, peer: SocketAddr, conv: u32, now: Time, ago: u64) -> u64 {
    let period = now.as_micros() / PERIOD.as_micros() as u64;
    let hash = secret.hash(("cookie", peer, conv, period.wrapping_sub(ago)));
    hash.max(1)
}

/// Does a datagram begin with a cookie that was sent to its sender's address?
pub(super) fn proves_address(
    secret: &Secret,
    peer: SocketAddr,
    datagram: &[u8],
    now: Time,
) -> bool {
    let Some(Ok((header, payload))) = segments(datagram).next() else {
        return false;
    };
    let Ok(given) = datagram[payload].try_into().map(u64::from_le_bytes) else {
        return false;
    };
    header.cmd == Command::Cookie
        && (0..2).any(|ago| cookie(secret, peer, header.conv, now, ago) == given)
}

/// The answer to a datagram that may be this library's first: one with a WASK, whose `ts` the answer has to echo.
pub(super) fn answer(
    secret: &Secret,
    peer: SocketAddr,
    datagram: &[u8],
    now: Time,
) -> Option<[u8; ANSWER_BYTES]> {
    let (asked, _) = segments(datagram)
        .flatten()
        .find(|(header, _)| header.cmd == Command::AskWindow)?;
    if asked.frg != OURS {
        return None;
    }
    let mut answer = [0; ANSWER_BYTES];
    let header = Header {
        conv: asked.conv,
        cmd: Command::Cookie,
        frg: 0,
        wnd: 0,
        ts: asked.ts,
        sn: 0,
        una: 0,
        len: size_of::<u64>() as u32,
    };
    header.encode(&mut answer);
    let cookie = cookie(secret, peer, asked.conv, now, 0);
    answer[HEADER_BYTES..].copy_from_slice(&cookie.to_le_bytes());
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_valid_for_its_address_conversation_and_period() {
        let secret = Secret::new();
        let peer: SocketAddr = "192.0.2.1:9".parse().unwrap();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let mut question = [0; HEADER_BYTES];
        let ask = Header {
            conv: 7,
            cmd: Command::AskWindow,
            frg: OURS,
            wnd: 32,
            ts: 99,
            sn: 0,
            una: 0,
            len: 0,
        };
        ask.encode(&mut question);
        let answer = answer(&secret, peer, &question, at(100)).unwrap();
        assert!(proves_address(&secret, peer, &answer, at(100)));
        assert!(proves_address(&secret, peer, &answer, at(130)));
        assert!(!proves_address(&secret, peer, &answer, at(160)), "too late");
        let other: SocketAddr = "192.0.2.2:9".parse().unwrap();
        assert!(!proves_address(&secret, other, &answer, at(100)));
        assert!(!proves_address(&Secret::new(), peer, &answer, at(100)));
        let mut forged = answer;
        forged[0] = 8;
        assert!(
            !proves_address(&secret, peer, &forged, at(100)),
            "another session"
        );
        assert!(!proves_address(&secret, peer, &question, at(100)));
        assert!(!proves_address(&secret, peer, &answer[..30], at(100)));
    }
}
