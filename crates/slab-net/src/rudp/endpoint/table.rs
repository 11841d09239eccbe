//! The sessions of an endpoint, limited in number, by address and conversation.

use super::super::config::DEFAULT_WINDOW;
use super::super::core::{MAX_FRAGMENTS, needs_reminder, not_known};
use super::super::stats::SessionStats;
use super::super::time::Time;
use super::super::wire::{Command, Header, segments};
use super::config::EndpointConfig;
use super::key::Key;
use super::link::Link;
use super::recently_ended::RecentlyEnded;
use super::stats::EndpointStats;
use super::wakers::Wakers;
use crate::udp::SendError;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// The largest window that a peer assumes before it has been told one: C's ikcp and the crate `kcp` assume this, and
/// put several small messages in one datagram.
const LARGEST_ASSUMED_WINDOW: u32 = 128;

/// The only form in which an address is used here. IPv6 sockets report IPv4 addresses mapped into IPv6,
/// applications give either form, and the flow label and scope do not come back with an answer, except for the
/// scope of a link-local address.
pub(super) fn canonical(mut address: SocketAddr) -> SocketAddr {
    address.set_ip(address.ip().to_canonical());
    if let SocketAddr::V6(v6) = &mut address {
        v6.set_flowinfo(0);
        if !v6.ip().is_unicast_link_local() {
            v6.set_scope_id(0);
        }
    }
    address
}

/// The [canonical] form of an address to connect to. The unspecified address becomes loopback, which is where the
/// answers come from.
pub(super) fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = canonical(address);
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

/// The first of the addresses that one owner is assumed to hold together: those with the same 24 bits of IPv4, or 48 of
/// IPv6.
fn prefix(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() >> 8 << 8).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 80 << 80).into(),
    }
}

/// The conversation that a datagram begins, if it begins one: every segment has to be one that a peer sends before
/// it has heard anything, and at least one a question or within `window`, that of a session here. A cookie that is not,
/// or no longer, valid is ignored: if it were refused, its sender would repeat it for ever.
fn opening_conversation(datagram: &[u8], proved: bool, window: u32) -> Option<u32> {
    let (mut conv, mut opens) = (None, false);
    for segment in segments(datagram) {
        let (header, _) = segment.ok()?;
        let fits = match header.cmd {
            Command::Push => {
                header.sn < LARGEST_ASSUMED_WINDOW && u32::from(header.frg) < MAX_FRAGMENTS
            }
            // A peer that goes on after a restart of this end was acknowledged before, though perhaps sent nothing.
            Command::AskWindow => header.sn == 0,
            Command::Cookie => true,
            _ => opens,
        };
        if !fits || header.una != 0 || *conv.get_or_insert(header.conv) != header.conv {
            return None;
        }
        opens |= match header.cmd {
            // What a session here has no room for may be that of a peer that goes on after a restart of this end.
            Command::Push => header.sn < window.min(DEFAULT_WINDOW),
            Command::Cookie => proved,
            _ => true,
        };
    }
    conv.filter(|_| opens)
}

/// Why a session was not opened for a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// No sessions are opened for peers, it is not the beginning of one, or belongs to one that ended a short time ago.
    NotOpening,
    TableFull,
    /// All need one.
    NoCookie,
    HalfOpen,
    Prefix,
    Backlog,
}

/// Addresses are [canonical] here, and wherever else they identify a peer.
#[derive(Debug, Default)]
pub(super) struct Table {
    places: HashMap<Key, u32>,
    links: Vec<Option<Arc<Link>>>,
    free: Vec<u32>,
    recently_ended: RecentlyEnded,
    /// Those whose peers had not proved their address: anybody can have any number of them end, and must not have the
    /// others forgotten.
    recently_ended_unproved: RecentlyEnded,
    /// By [`prefix`].
    half_open: HashMap<IpAddr, usize>,
    half_open_count: usize,
    /// Opened by peers, and not yet accepted.
    pub(super) backlog: VecDeque<Arc<Link>>,
    pub(super) acceptors: Wakers,
    /// The last number of one of their waits.
    pub(super) last_wait: u64,
    /// Are sessions opened for peers?
    pub(super) listening: bool,
    /// No more sessions are opened.
    pub(super) closed: bool,
    /// Why sending failed last, if that has not been logged yet.
    pub(super) send_error: Option<SendError>,
    pub(super) stats: EndpointStats,
    /// The counters of sessions that are gone.
    pub(super) ended_stats: SessionStats,
}

impl Table {
    pub(super) fn get(&self, peer: SocketAddr, conv: u32) -> Option<&Arc<Link>> {
        let place = *self.places.get(&Key(peer, conv))?;
        self.links[place as usize].as_ref()
    }

    pub(super) fn at(&self, place: u32) -> Option<&Arc<Link>> {
        self.links.get(place as usize)?.as_ref()
    }

    /// Datagrams were not sent: because of an error, or because there was no room.
    pub(super) fn count_send_error(&mut self, datagrams: usize, error: Option<SendError>) {
        self.stats.send_errors += datagrams as u64;
        self.send_error = error.or(self.send_error.take());
    }

    /// An answer that belongs to no session was not sent: because of an error, or because there was no room.
    pub(super) fn count_unsent_answer(&mut self, error: Option<SendError>) {
        self.stats.unsent_answers += 1;
        self.send_error = error.or(self.send_error.take());
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn half_open(&self) -> usize {
        self.half_open_count
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.links.iter().flatten()
    }

    /// May a session be opened for this datagram? `proved` if its sender has proved its address.
    pub(super) fn may_open(
        &self,
        config: &EndpointConfig,
        peer: SocketAddr,
        datagram: &[u8],
        proved: bool,
        now: Time,
    ) -> Result<(), Refusal> {
        if !self.listening || self.closed {
            return Err(Refusal::NotOpening);
        }
        let window = config.session.recv_window;
        let opens = opening_conversation(datagram, proved, window).is_some_and(|conv| {
            let both = [&self.recently_ended, &self.recently_ended_unproved];
            !both
                .iter()
                .any(|ended| ended.contains(&Key(peer, conv), now))
        });
        if !opens {
            return Err(Refusal::NotOpening);
        }
        if self.len() >= config.max_sessions {
            return Err(Refusal::TableFull);
        }
        if self.backlog.len() >= config.backlog {
            return Err(Refusal::Backlog);
        }
        if proved {
            return Ok(());
        }
        if config.require_cookie {
            return Err(Refusal::NoCookie);
        }
        if self.half_open_count >= config.max_half_open {
            return Err(Refusal::HalfOpen);
        }
        let same = self.half_open.get(&prefix(peer)).copied();
        if same.unwrap_or(0) >= config.max_half_open_per_prefix {
            return Err(Refusal::Prefix);
        }
        Ok(())
    }

    /// Reserves the place of the next session.
    pub(super) fn reserve_place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.links.push(None);
            (self.links.len() - 1) as u32
        })
    }

    pub(super) fn insert(&mut self, link: &Arc<Link>, half_open: bool) {
        self.places.insert(Key(link.peer(), link.conv), link.place);
        self.links[link.place as usize] = Some(Arc::clone(link));
        if half_open {
            *self.half_open.entry(prefix(link.peer())).or_default() += 1;
            self.half_open_count += 1;
        }
        self.stats.opened += 1;
    }

    /// Takes a session out of the backlog; returns whether it was there.
    pub(super) fn remove_from_backlog(&mut self, place: u32) -> bool {
        let at = self.backlog.iter().position(|link| link.place == place);
        at.is_some_and(|at| self.backlog.remove(at).is_some())
    }

    /// A peer has proved its address, or its session is gone.
    pub(super) fn count_half_open_done(&mut self, peer: SocketAddr) {
        let prefix = prefix(peer);
        self.half_open_count -= 1;
        if let Some(count) = self.half_open.get_mut(&prefix) {
            *count -= 1;
            if *count == 0 {
                self.half_open.remove(&prefix);
            }
        }
    }

    /// Removes a session, and remembers it for as long as its peer may go on sending. `proved` if the peer has proved
    /// its address; `notice` tells it of the end.
    pub(super) fn remove(
        &mut self,
        link: &Link,
        proved: bool,
        notice: Option<Header>,
        now: Time,
        config: &EndpointConfig,
    ) {
        let until = now + config.session.idle_timeout;
        let key = Key(link.peer(), link.conv);
        let ended = match proved {
            true => &mut self.recently_ended,
            false => &mut self.recently_ended_unproved,
        };
        let forgotten = ended.add(key, notice, now, until, config.max_sessions);
        self.stats.forgotten += forgotten;
        self.places.remove(&key);
        self.links[link.place as usize] = None;
        self.free.push(link.place);
    }

    /// The answer to a datagram for a session that ended a short time ago, or that is not known, if its sender has not
    /// noticed. One that ended with an unproved address, or before anything had come from its peer that a notice could
    /// prove itself by, or that its peer has opened anew, is as one that is not known: only a question is answered.
    pub(super) fn reminder(
        &mut self,
        peer: SocketAddr,
        conv: u32,
        datagram: &[u8],
        now: Time,
    ) -> Option<Header> {
        let key = Key(peer, conv);
        if !needs_reminder(datagram) {
            return None;
        }
        let reset = not_known(datagram);
        let token = reset.map(|reset| reset.ts);
        let ended = &self.recently_ended;
        match ended.contains(&key, now) && ended.has_notice(&key, token) {
            true => self.recently_ended.reminder(&key, now),
            false => reset,
        }
    }

    pub(super) fn count_refusal(&mut self, refusal: Refusal) {
        let stats = &mut self.stats;
        *match refusal {
            Refusal::NotOpening | Refusal::NoCookie => &mut stats.unknown_session,
            Refusal::TableFull => &mut stats.refused_table_full,
            Refusal::HalfOpen => &mut stats.refused_half_open,
            Refusal::Prefix => &mut stats.refused_prefix,
            Refusal::Backlog => &mut stats.refused_backlog,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::wire::{HEADER_BYTES, OURS};
    use super::*;
    use std::net::SocketAddrV6;

    #[test]
    fn one_owner_has_24_bits_of_ipv4_or_48_of_ipv6() {
        let same =
            |one: &str, other: &str| prefix(one.parse().unwrap()) == prefix(other.parse().unwrap());
        assert!(same("192.0.2.7:1", "192.0.2.200:2"));
        assert!(same("192.0.2.7:1", "[::ffff:192.0.2.200]:2"));
        assert!(!same("192.0.2.7:1", "192.0.3.7:1") && !same("192.0.2.7:1", "193.0.2.7:1"));
        assert!(same("[2001:db8:1:2::1]:1", "[2001:db8:1:3::2]:2"));
        assert!(!same("[2001:db8:1:2::1]:1", "[2001:db8:2:2::1]:1"));
        assert!(!same("[2001:db8:2::1]:1", "[2001:db8:3::1]:1"));
        assert!(!same("[2001:db8:1::1]:1", "[2001:db8:101::1]:1"));
        assert!(!same("[2001:db8:1::1]:1", "[a001:db8:1::1]:1"));
    }

    #[test]
    fn addresses_are_brought_to_canonical_form() {
        let named = |name: &str, address: &dyn Fn(SocketAddr) -> SocketAddr| {
            address(name.parse().unwrap()).to_string()
        };
        for (name, is) in [
            ("192.0.2.7:1", "192.0.2.7:1"),
            ("[::ffff:192.0.2.7]:1", "192.0.2.7:1"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
            ("[fe80::1%3]:1", "[fe80::1%3]:1"),
            ("[2001:db8::1%3]:1", "[2001:db8::1]:1"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("[::ffff:0.0.0.0]:1", "127.0.0.1:1"),
        ] {
            assert_eq!(named(name, &reachable), is);
        }
        let flow = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 7, 0);
        assert_eq!(canonical(flow.into()), "[::1]:1".parse().unwrap());
        assert_eq!(named("0.0.0.0:1", &canonical), "0.0.0.0:1");
    }

    /// A segment, as sent.
    fn segment(cmd: Command, frg: u8, sn: u32) -> [u8; HEADER_BYTES] {
        let mut datagram = [0; HEADER_BYTES];
        let header = Header {
            conv: 7,
            cmd,
            frg,
            wnd: 32,
            ts: 0,
            sn,
            una: 0,
            len: 0,
        };
        header.encode(&mut datagram);
        datagram
    }

    #[test]
    fn a_session_begins_within_its_first_window_and_with_what_any_peer_assumes() {
        let opens = |sns: core::ops::Range<u32>, window| {
            let datagram: Vec<_> = sns.flat_map(|sn| segment(Command::Push, 0, sn)).collect();
            opening_conversation(&datagram, false, window) == Some(7)
        };
        assert!(opens(0..1, 256) && opens(31..32, 256) && opens(0..48, 256) && opens(0..128, 256));
        assert!(!opens(32..48, 256) && !opens(0..129, 256));
        assert!(opens(0..1, 1) && !opens(1..2, 1));
        assert!(opens(15..16, 16) && !opens(16..17, 16));
    }

    /// There are very many prefixes.
    #[test]
    fn a_prefix_without_half_open_sessions_takes_no_memory() {
        let peer = "192.0.2.1:9".parse().unwrap();
        let mut table = Table {
            half_open_count: 2,
            ..Table::default()
        };
        table.half_open.insert(prefix(peer), 2);
        table.count_half_open_done(peer);
        assert_eq!((table.half_open(), table.half_open.len()), (1, 1));
        table.count_half_open_done(peer);
        assert_eq!((table.half_open(), table.half_open.len()), (0, 0));
    }

    /// Two ends that both say so would answer each other for ever.
    #[test]
    fn who_says_that_a_session_has_ended_is_not_answered() {
        let (peer, now) = ("192.0.2.1:9".parse().unwrap(), Time::ZERO);
        let later = now + core::time::Duration::from_secs(1);
        let mut table = Table::default();
        let ask = segment(Command::AskWindow, OURS, 0);
        let notice = not_known(&ask).unwrap();
        let mut told = [0; HEADER_BYTES];
        notice.encode(&mut told);
        let until = later + core::time::Duration::from_secs(1);
        table
            .recently_ended
            .add(Key(peer, 7), Some(notice), now, until, 9);
        assert_eq!(table.reminder(peer, 7, &told, later), None);
        assert_eq!(table.reminder(peer, 7, &ask, later), Some(notice));
        // Nor in a session that is not known.
        let both = [told, ask].concat();
        assert_eq!(table.reminder(peer, 8, &both, later), None);
        assert_eq!(table.reminder(peer, 8, &ask, later), Some(notice));
        table
            .recently_ended_unproved
            .add(Key(peer, 8), Some(notice), now, until, 9);
        // Its address may be forged: no answer that is longer, or that was not asked for.
        assert_eq!(table.reminder(peer, 8, &ask, later), Some(notice));
        let push = segment(Command::Push, 0, 0);
        assert_eq!(table.reminder(peer, 8, &push, later), None);
    }
}
