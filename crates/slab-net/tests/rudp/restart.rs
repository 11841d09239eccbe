//! Peers that begin anew with the conversation: of other implementations in the middle of a session, and of this library
//! after its end; and those that go on with a session that began anew here.

use crate::common::pair::{CONV, Pair, datagram, header, push, segments_of, transmit};
use crate::common::sockets::{TIMEOUT, accept, any, fast, pool, recv, wait_until};
use slab_net::rudp::wire::{Command, Header};
use slab_net::rudp::{
    CloseReason, Endpoint, MemoryBudget, Rejection, Session, SessionConfig, Side, Time,
};
use slab_net::{Packet, PacketPool};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::timeout;

const MILLISECOND: Duration = Duration::from_millis(1);

fn open(side: Side) -> Session {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let (budget, config) = (MemoryBudget::new(4 << 20), SessionConfig::fast());
    Session::open(CONV, &config, side, &pool, &budget, 7 << 32, Time::ZERO).unwrap()
}

fn tell(session: &mut Session, now: Time, header: Header) {
    let told = Packet::from(datagram(header, &[]));
    session.handle_datagram(now, told).unwrap();
}

/// Sends what is due, and returns the segments that have contents.
fn sent(session: &mut Session, now: Time) -> Vec<Header> {
    let sent = transmit(session, now);
    let all = sent.iter().flat_map(|datagram| segments_of(datagram));
    all.filter(|header| header.cmd == Command::Push && header.len > 0)
        .collect()
}

/// A client that has sent so many messages, and their segments.
fn client_that_sent(count: u8) -> (Session, Vec<Header>) {
    let mut client = open(Side::Client);
    for message in 0..count {
        client.send_slice(&[message]).unwrap();
    }
    let sent = sent(&mut client, Time::ZERO);
    (client, sent)
}

fn acknowledgement(of: &Header, una: u32) -> Header {
    Header {
        sn: of.sn,
        ts: of.ts,
        una,
        ..header(Command::Ack)
    }
}

/// It waits for the second segment, which only the one before has. Without a window it may be that its reader is slow:
/// then others than this library do not count what they have.
#[test]
fn a_peer_that_lacks_what_it_had_acknowledged_has_begun_anew() {
    for (wnd, ended) in [(0, None), (128, Some(CloseReason::Reset))] {
        let (mut client, sent) = client_that_sent(2);
        tell(&mut client, Time::ZERO, acknowledgement(&sent[1], 0));
        let first = acknowledgement(&sent[0], 1);
        tell(&mut client, Time::ZERO, Header { wnd, ..first });
        assert_eq!((client.ended(), client.is_sent()), (ended, wnd == 0));
    }
}

/// What it has beyond its window waits for its reader, however large the window becomes meanwhile.
#[test]
fn a_peer_whose_window_is_made_larger_has_not_begun_anew() {
    let (mut client, sent) = client_that_sent(3);
    // It has room for one segment, and keeps the second, which it has taken out of its window.
    for of in &sent[..2] {
        let full = acknowledgement(of, 1);
        tell(&mut client, Time::ZERO, Header { wnd: 0, ..full });
    }
    let larger = Header {
        wnd: 128,
        una: 1,
        ..header(Command::TellWindow)
    };
    tell(&mut client, Time::ZERO, larger);
    assert_eq!(client.ended(), None);
    // Once the reader has gone on, it says again what it has.
    tell(&mut client, Time::ZERO, acknowledgement(&sent[2], 3));
    assert_eq!((client.ended(), client.is_sent()), (None, true));
}

/// It waits for the second segment as well, and has it: the one that waited was another. Of one whose window was empty,
/// that may have come late.
#[test]
fn who_has_what_its_former_self_waits_for_has_begun_anew() {
    for (wnd, ended) in [(0, None), (128, Some(CloseReason::Reset))] {
        let (mut client, sent) = client_that_sent(2);
        let first = acknowledgement(&sent[0], 1);
        tell(&mut client, Time::ZERO, Header { wnd, ..first });
        tell(&mut client, Time::ZERO, acknowledgement(&sent[1], 0));
        assert_eq!((client.ended(), client.is_sent()), (ended, wnd == 0));
    }
}

/// The one before had the first segment by the time that the third was sent again. An answer to what was sent at first
/// may have come late.
#[test]
fn who_acknowledges_what_was_sent_again_has_what_it_had_before_that() {
    for (answers_last, ended) in [(false, None), (true, Some(CloseReason::Reset))] {
        let (mut client, at_first) = client_that_sent(3);
        let mut now = Time::ZERO;
        tell(&mut client, now, acknowledgement(&at_first[0], 1));
        let mut again = Vec::new();
        while again.is_empty() {
            now = client.poll_timeout().unwrap();
            again = sent(&mut client, now);
        }
        assert_eq!((again.len(), again[0].sn), (1, 2));
        let answered = if answers_last { again[0] } else { at_first[2] };
        tell(&mut client, now, acknowledgement(&answered, 0));
        assert_eq!(client.ended(), ended);
        tell(&mut client, now, acknowledgement(&at_first[1], 3));
        assert_eq!((client.ended(), client.is_sent()), (ended, !answers_last));
    }
}

/// A late copy of a session's first datagram opens another at a server that has begun anew, or that knows the client by
/// another address. The end of that is not the end of what the one before had to say.
#[test]
fn who_closes_and_lacks_what_it_had_has_begun_anew() {
    for (una, ended) in [(0, CloseReason::Reset), (1, CloseReason::ClosedByPeer)] {
        let (mut client, sent) = client_that_sent(1);
        tell(&mut client, Time::ZERO, acknowledgement(&sent[0], 1));
        let close = Header {
            ts: 7,
            sn: 0,
            una,
            ..header(Command::Close)
        };
        tell(&mut client, Time::ZERO, close);
        assert_eq!(client.ended(), Some(ended));
    }
}

/// One that has begun anew would take an empty segment in the place of one that the one before had.
#[test]
fn what_asks_for_the_proof_of_an_address_is_never_delivered() {
    let (mut server, mut now) = (open(Side::Server), Time::ZERO);
    let first = Header {
        sn: 0,
        una: 0,
        ..push(&[7; 1000])
    };
    let question = datagram(first, &[7; 1000]);
    server.handle_datagram(now, Packet::from(question)).unwrap();
    server.send_slice(b"answer").unwrap();
    assert_eq!(sent(&mut server, now).len(), 1);
    // The acknowledgement itself is lost.
    tell(&mut server, now, header(Command::AskWindow));
    assert!(server.is_sent() && !server.is_validated());
    let mut asked = Vec::new();
    while asked.is_empty() {
        now = server.poll_timeout().unwrap().max(now + MILLISECOND);
        let sent = transmit(&mut server, now);
        let all = sent.iter().flat_map(|datagram| segments_of(datagram));
        asked.extend(all.filter(|header| header.cmd == Command::Push));
    }
    let is_before_the_first = |asked: &Header| (asked.sn, asked.len) == (u32::MAX, 0);
    assert!(asked.iter().all(is_before_the_first), "{asked:?}");
}

/// It answers whatever is asked in a session that it does not know.
#[test]
fn the_answers_of_a_peer_that_has_lost_everything_do_not_keep_the_session_alive() {
    for (una, ended) in [(1, None), (0, Some(CloseReason::TimedOut))] {
        let (mut client, sent) = client_that_sent(1);
        let mut now = Time::ZERO;
        tell(&mut client, now, acknowledgement(&sent[0], 1));
        while client.ended().is_none() && now.since(Time::ZERO) < Duration::from_secs(300) {
            now = client.poll_timeout().unwrap().max(now + MILLISECOND);
            let sent = transmit(&mut client, now);
            let mut all = sent.iter().flat_map(|datagram| segments_of(datagram));
            if all.any(|header| header.cmd == Command::AskWindow) {
                let answer = header(Command::TellWindow);
                tell(&mut client, now, Header { una, ..answer });
            }
        }
        assert_eq!(client.ended(), ended);
        assert!(client.stats().probes > 2);
    }
}

/// The peer goes on after a restart of this end, where it had nothing to acknowledge: it never sends again what was
/// acknowledged by the one before, and nothing behind that can be read.
#[test]
fn a_session_whose_beginning_never_comes_ends() {
    for (first, ended) in [(0, None), (9, Some(CloseReason::TimedOut))] {
        let (mut server, mut now) = (open(Side::Server), Time::ZERO);
        let mut sn = first;
        while server.ended().is_none() && now.since(Time::ZERO) < Duration::from_secs(300) {
            let next = Header {
                sn,
                una: 0,
                ..push(b"x")
            };
            let next = Packet::from(datagram(next, b"x"));
            server.handle_datagram(now, next).unwrap();
            sn += 1;
            // It answers whatever it is asked.
            for asked in transmit(&mut server, now)
                .iter()
                .flat_map(|sent| segments_of(sent))
            {
                let answer = match asked.cmd {
                    Command::Push => acknowledgement(&asked, 0),
                    Command::AskWindow => Header {
                        una: 0,
                        ..header(Command::TellWindow)
                    },
                    _ => continue,
                };
                tell(&mut server, now, answer);
            }
            assert_eq!(server.recv().is_some(), first == 0);
            now = now + 5000 * MILLISECOND;
        }
        assert_eq!((server.is_validated(), server.ended()), (true, ended));
    }
}

/// That is a sign of life, although nothing was one since what came first.
#[test]
fn a_session_whose_beginning_comes_late_goes_on() {
    let mut server = open(Side::Server);
    let end = Time::ZERO + Duration::from_secs(10);
    for (sn, millis) in [(1, 0), (0, 9999)] {
        let next = Header {
            sn,
            una: 0,
            ..push(b"x")
        };
        let next = Packet::from(datagram(next, b"x"));
        let now = Time::ZERO + millis * MILLISECOND;
        server.handle_datagram(now, next).unwrap();
    }
    server.handle_timeout(end);
    assert_eq!((server.ended(), server.recv().is_some()), (None, true));
}

/// Short datagrams arrive, and long ones do not, as where a path takes no such packets for a while.
#[test]
fn a_peer_of_this_library_is_not_gone_while_its_beginning_is_lost() {
    let (idle, step) = (Duration::from_secs(1), 10 * MILLISECOND);
    let config = SessionConfig::fast().idle_timeout(idle);
    let mut pair = Pair::with_config(config.keepalive(idle / 4));
    pair.client.send_slice(&[1; 1300]).unwrap();
    pair.client.send_slice(&[2; 300]).unwrap();
    let mut read = Vec::new();
    while pair.now.since(Time::ZERO) < 4 * idle {
        pair.now = pair.now + step;
        let (pool, now) = (&pair.pool, pair.now);
        pair.client.handle_timeout(now);
        pair.server.handle_timeout(now);
        let longest = match now.since(Time::ZERO) < 3 * idle {
            true => 1000,
            false => 2000,
        };
        for sent in transmit(&mut pair.client, now) {
            if sent.len() < longest {
                let sent = pool.try_copy_from_slice(&sent).unwrap();
                pair.server.handle_datagram(now, sent).unwrap();
            }
        }
        for sent in transmit(&mut pair.server, now) {
            let sent = pool.try_copy_from_slice(&sent).unwrap();
            pair.client.handle_datagram(now, sent).unwrap();
        }
        read.extend(pair.server.recv().map(|message| message.len()));
    }
    assert_eq!((pair.client.ended(), pair.server.ended()), (None, None));
    assert_eq!(read, [1300, 300]);
}

/// Is the peer's first segment taken, with this `una`, and delivered? It is refused otherwise.
fn takes_first(client: &mut Session, now: Time, una: u32) -> bool {
    let first = Header {
        sn: 0,
        una,
        ..push(b"x")
    };
    let handled = client.handle_datagram(now, Packet::from(datagram(first, b"x")));
    assert!(matches!(
        handled,
        Ok(()) | Err(Rejection::OtherConversation)
    ));
    assert_eq!(client.recv().is_some(), handled.is_ok());
    handled.is_ok()
}

/// Its first segments are where the session has had others, and the next ones would be read behind those. What is late
/// by less than a time-out is taken.
#[test]
fn nothing_is_delivered_of_what_is_sent_by_a_peer_that_has_begun_anew() {
    for (una, waited, is_taken) in [(0, 0, true), (0, 1000, false), (1, 1000, true)] {
        let (mut client, sent) = client_that_sent(1);
        tell(&mut client, Time::ZERO, acknowledgement(&sent[0], 1));
        let now = Time::ZERO + waited * MILLISECOND;
        assert_eq!(takes_first(&mut client, now, una), is_taken);
        let acknowledged = transmit(&mut client, now + 20 * MILLISECOND)
            .iter()
            .any(|datagram| segments_of(datagram)[0].cmd == Command::Ack);
        assert_eq!(acknowledged, is_taken);
    }
}

/// However long before that the session began.
#[test]
fn what_a_peer_sent_before_it_had_anything_is_taken_if_it_is_late() {
    let (mut client, now) = (open(Side::Client), Time::ZERO + 1000 * MILLISECOND);
    client.send_slice(b"first").unwrap();
    let first = sent(&mut client, now);
    tell(&mut client, now, acknowledgement(&first[0], 1));
    assert!(takes_first(&mut client, now, 0));
}

/// The one before acknowledged something only a moment ago, and what is late lacks that, too. But nothing is late for
/// as long as the peer has had anything.
#[test]
fn nothing_is_delivered_of_a_peer_that_begins_anew_while_much_is_acknowledged() {
    for (una, is_taken) in [(0, false), (1, true), (2, true)] {
        let (mut client, first) = client_that_sent(1);
        tell(&mut client, Time::ZERO, acknowledgement(&first[0], 1));
        let now = Time::ZERO + 1000 * MILLISECOND;
        client.send_slice(b"more").unwrap();
        let more = sent(&mut client, now);
        tell(&mut client, now, acknowledgement(&more[0], 2));
        assert_eq!(takes_first(&mut client, now, una), is_taken);
    }
}

/// It may come from an honest peer: by a longer way, or restored by error correction long after it was sent again. But
/// it may be that of a peer that has begun anew, which must not take it for delivered.
#[test]
fn what_is_late_and_here_already_is_a_duplicate() {
    let (mut client, sent) = client_that_sent(1);
    let first = Header {
        sn: 0,
        una: 0,
        ..push(b"x")
    };
    // The second one waits for one before it.
    let pushes = [first, Header { sn: 2, ..first }].map(|push| datagram(push, b"x"));
    for push in &pushes {
        let push = Packet::from(push.clone());
        client.handle_datagram(Time::ZERO, push).unwrap();
    }
    tell(&mut client, Time::ZERO, acknowledgement(&sent[0], 1));
    assert!(client.recv().is_some());
    let now = Time::ZERO + 1000 * MILLISECOND;
    transmit(&mut client, now);
    let before = client.stats();
    for push in pushes {
        let handled = client.handle_datagram(now, Packet::from(push));
        assert_eq!(handled, Ok(()));
    }
    let after = client.stats();
    assert_eq!(after.duplicates - before.duplicates, 2);
    assert_eq!(after.received_segments - before.received_segments, 2);
    assert_eq!(after.received_datagrams - before.received_datagrams, 2);
    assert_eq!(after.rejected_datagrams(), 0);
    assert!(transmit(&mut client, now + 20 * MILLISECOND).is_empty());
}

/// It asks with a token of its own. The notice for the one before has that one's, so it would be refused as forged for as
/// long as the session is remembered.
#[tokio::test]
async fn who_opens_a_remembered_session_anew_is_told_that_it_is_not_known() {
    const TOKENS: [u32; 2] = [5, 6];
    let peer = UdpSocket::bind(any()).await.unwrap();
    let endpoint = Endpoint::bind(any(), &pool(), fast()).unwrap();
    peer.connect(endpoint.local_addr()).await.unwrap();
    let client = endpoint.connect(peer.local_addr().unwrap()).unwrap();
    let conv = client.conv();
    // With the `frg` of this library.
    let say = async |cmd, ts| {
        let said = Header {
            conv,
            frg: 1,
            ts,
            una: 0,
            ..header(cmd)
        };
        peer.send(&datagram(said, &[])).await.unwrap();
    };
    let heard = async |cmd| {
        let mut buf = [0; 2000];
        loop {
            let len = timeout(TIMEOUT, peer.recv(&mut buf)).await.unwrap();
            let headers = segments_of(&buf[..len.unwrap()]);
            if let Some(header) = headers.into_iter().find(|header| header.cmd == cmd) {
                break header;
            }
        }
    };
    let (ready, ()) = tokio::join!(client.ready(), async {
        let token = heard(Command::AskWindow).await.ts;
        say(Command::TellWindow, token).await;
        say(Command::AskWindow, TOKENS[0]).await;
    });
    ready.unwrap();
    client.abort();
    drop(client);
    assert_eq!(heard(Command::Close).await.ts, TOKENS[0]);
    say(Command::AskWindow, TOKENS[1]).await;
    assert_eq!(heard(Command::Close).await.ts, TOKENS[1]);
}

/// Its peer still remembers the session that had the number before.
#[tokio::test]
async fn a_session_that_takes_a_number_again_too_soon_is_reset() {
    let open = || Endpoint::bind(any(), &pool(), fast()).unwrap();
    let (server, clients) = (open(), open());
    let connect = || clients.connect_as(server.local_addr(), 7).unwrap();
    let first = connect();
    first.send_slice(b"x").await.unwrap();
    let accepted = accept(&server).await;
    assert_eq!(recv(&accepted).await, b"x");
    let (closed, _) = tokio::join!(first.close(), accepted.close());
    closed.unwrap();
    drop((first, accepted));
    wait_until(&clients, "gone", |ends| ends.stats().sessions == 0).await;
    wait_until(&server, "gone", |ends| ends.stats().sessions == 0).await;
    let again = timeout(TIMEOUT, connect().ready()).await.unwrap();
    assert_eq!(again, Err(CloseReason::Reset));
}
