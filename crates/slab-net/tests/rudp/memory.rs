//! What goes on without memory: acknowledgements and retransmissions need none, so that what is in flight arrives
//! and gives its memory back.

use crate::common::pair::{Pair, datagram, push};
use crate::common::sockets::any;
use slab_net::rudp::wire::Header;
use slab_net::rudp::{
    CloseReason, Connection, Endpoint, EndpointConfig, MemoryBudget, SendError, Session,
    SessionConfig, Side, Time, TryRecvError,
};
use slab_net::{Packet, PacketPool};
use std::time::Duration;

/// Takes everything that the pool has left, in chunks of this size.
fn exhaust(pool: &PacketPool) -> Vec<Packet> {
    let chunk = || pool.try_alloc(1000).ok().map(|chunk| chunk.freeze());
    std::iter::from_fn(chunk).collect()
}

/// Takes everything that the pool has left, in chunks of all sizes.
pub(crate) fn exhaust_all(pool: &PacketPool) -> Vec<Packet> {
    let room = pool.headroom() + pool.tailroom();
    let sizes = pool.slab().size_classes().sizes().to_vec();
    let of_size = |size: usize| {
        let chunk = move || Some(pool.try_alloc(size.checked_sub(room)?).ok()?.freeze());
        std::iter::from_fn(chunk)
    };
    sizes.into_iter().rev().flat_map(of_size).collect()
}

/// A pool that takes nothing from the heap.
pub(crate) fn strict(bytes: usize) -> PacketPool {
    PacketPool::builder()
        .max_memory(bytes)
        .headroom(24)
        .max_heap_memory(0)
        .build()
        .unwrap()
}

async fn connected(pool: &PacketPool) -> [Connection; 2] {
    // A missed wake-up must not be repaired by a sign of life.
    let session = SessionConfig::fast()
        .keepalive(Duration::from_secs(600))
        .idle_timeout(Duration::from_secs(6000));
    let config = EndpointConfig::new(session);
    let server = Endpoint::bind(any(), pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), pool, config).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let accepted = server.accept().await.unwrap();
    assert_eq!(accepted.recv().await.unwrap().unwrap(), b"hello"[..]);
    client.ready().await.unwrap();
    [client, accepted]
}

pub(crate) async fn within_a_minute<T>(what: impl Future<Output = T>) -> T {
    let limited = tokio::time::timeout(Duration::from_secs(60), what);
    limited.await.expect("within a minute")
}

#[test]
fn acks_and_retransmissions_need_no_pool_memory() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut ends = [Side::Client, Side::Server]
        .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
    for n in 0..30_u8 {
        ends[0].send_slice(&[n; 1000]).unwrap();
    }
    let rest = exhaust(&pool);
    assert!(pool.try_alloc(1).is_err(), "nothing is left");
    // Only the rest of the last block can still be filled.
    let mut sent: Vec<u8> = (0..30).collect();
    let refused = loop {
        match ends[0].send_slice(&[99; 1000]) {
            Ok(()) => sent.push(99),
            Err(reason) => break reason,
        }
    };
    assert_eq!(refused, SendError::NoMemory);

    let mut scratch = vec![0; 64 << 10];
    let (mut received, mut lost) = (Vec::new(), 0);
    for turn in 0..2000 {
        now = now + Duration::from_millis(1);
        for end in 0..2 {
            if ends[end].poll_timeout().is_some_and(|at| at <= now) {
                ends[end].handle_timeout(now);
            }
            let mut datagrams = Vec::new();
            while let Some(out) = ends[end].poll_transmit(now, &mut scratch, 4) {
                // From the heap: what the kernel receives lies in buffers that were there before.
                let parts = out.contents().chunks(out.segment_size());
                datagrams.extend(parts.map(|part| Packet::from(part.to_vec())));
            }
            for datagram in datagrams {
                if turn < 20 && end == 0 {
                    lost += 1;
                } else {
                    ends[1 - end].handle_datagram(now, datagram).unwrap();
                }
            }
        }
        received.extend(std::iter::from_fn(|| ends[1].recv()).map(|message| message[0]));
    }
    assert!(lost >= 15, "{lost} datagrams");
    assert_eq!(received, sent);
    assert!(ends[0].is_sent(), "all is acknowledged");
    assert!(pool.try_alloc(1000).is_ok(), "and its memory is back");
    drop((ends, rest));
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The sessions' budget is used up, and then the application uses up the pool. What was sent still arrives, once
/// there is memory to receive it.
#[tokio::test]
async fn a_session_survives_an_exhausted_pool() {
    let pool = PacketPool::builder()
        .max_memory(8 << 20)
        .headroom(24)
        .build()
        .unwrap();
    let config = EndpointConfig::new(SessionConfig::fast()).max_memory(1 << 20);
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    client.send_slice(b"hello").await.unwrap();
    let accepted = server.accept().await.unwrap();
    assert_eq!(accepted.recv().await.unwrap().unwrap(), b"hello"[..]);
    let mut sent = 0;
    while accepted.stats().received_segments < 20 {
        for _ in 0..5 {
            client.send_slice(&[1; 1000]).await.unwrap();
            sent += 1;
        }
        // Few enough that none of them has to wait for a reader.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let rest = exhaust(&pool);
    let refused = (0..5000).any(|_| match client.try_send(Packet::from(vec![1; 1000])) {
        Ok(()) => {
            sent += 1;
            false
        }
        Err(_) => true,
    });
    assert!(refused, "there is a limit");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stats = server.stats();
    assert!(stats.reserved_bytes <= stats.reserve_limit_bytes);
    drop(rest);
    for _ in 0..sent {
        let received = tokio::time::timeout(Duration::from_secs(20), accepted.recv());
        let message = received.await.unwrap().unwrap().unwrap();
        assert_eq!(message, [1; 1000][..]);
    }
    assert_eq!((client.ended(), accepted.ended()), (None, None));
}

/// A reader waits for memory to join a message in, if it has none: the peer decides how long the message is.
#[tokio::test]
async fn recv_waits_for_memory_to_join_a_message_of_many_segments() {
    let pool = strict(8 << 20);
    let [client, accepted] = connected(&pool).await;
    let message: Vec<u8> = (0..5000_u32).map(|n| n as u8).collect();
    client.send_slice(&message).await.unwrap();
    // Also acknowledged, so that the sender frees nothing later.
    while accepted.stats().received_segments < 5 || !client.is_sent() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut rest = exhaust_all(&pool);
    assert_eq!(
        accepted.try_recv(),
        Err(TryRecvError::NoMemory { bytes: 5000 }),
        "there is nothing to join it in"
    );
    let mut receiving = Box::pin(accepted.recv());
    let waits = tokio::time::timeout(Duration::from_millis(50), &mut receiving);
    assert!(waits.await.is_err(), "and so it waits");
    rest.clear();
    assert!(within_a_minute(receiving).await.unwrap().unwrap() == message[..]);

    // A larger chunk than it needs will do.
    client.send_slice(&message).await.unwrap();
    while accepted.stats().received_segments < 9 || !client.is_sent() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rest = exhaust_all(&pool);
    let mut receiving = Box::pin(accepted.recv());
    let waits = tokio::time::timeout(Duration::from_millis(50), &mut receiving);
    assert!(waits.await.is_err(), "all are held");
    let (mut largest, others): (Vec<_>, Vec<_>) = rest
        .into_iter()
        .partition(|packet| packet.len() + packet.pinned_bytes() > 60_000);
    // One chunk, and not the whole slab, which would serve any class.
    drop(largest.pop());
    assert!(within_a_minute(receiving).await.unwrap().unwrap() == message[..]);
    drop((largest, others));

    // Or the reader takes the segments as they are.
    client.send_slice(&message).await.unwrap();
    while accepted.stats().received_segments < 13 || !client.is_sent() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rest = exhaust_all(&pool);
    let mut segments = Vec::new();
    let count = within_a_minute(accepted.recv_segments(&mut segments))
        .await
        .unwrap();
    assert_eq!(count, Some(segments.len()));
    assert!(segments.iter().flat_map(|s| s.iter()).eq(&message));
    drop((segments, rest));

    // The message is not lost if the peer closes meanwhile.
    client.send_slice(&message).await.unwrap();
    while accepted.stats().received_segments < 13 || !client.is_sent() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut rest = exhaust_all(&pool);
    within_a_minute(client.close()).await.unwrap();
    while accepted.ended().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut receiving = Box::pin(accepted.recv());
    let waits = tokio::time::timeout(Duration::from_millis(50), &mut receiving);
    assert!(waits.await.is_err(), "it waits for memory as before");
    rest.clear();
    assert!(within_a_minute(receiving).await.unwrap().unwrap() == message[..]);
    assert_eq!(within_a_minute(accepted.recv()).await, Ok(None));
}

/// Two tasks receive. The first waits for memory to join a message; the other takes its segments as they are.
#[tokio::test]
async fn recv_waiting_for_memory_notices_that_another_task_took_the_message() {
    let pool = strict(8 << 20);
    for last in [true, false] {
        let [client, accepted] = connected(&pool).await;
        let before = accepted.stats().received_segments;
        client.send_slice(&[7; 5000]).await.unwrap();
        if !last {
            client.send_slice(b"of one segment").await.unwrap();
        }
        let segments = before + 4 + u64::from(!last);
        while accepted.stats().received_segments < segments || !client.is_sent() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let rest = exhaust_all(&pool);
        if last {
            let finishing = client.clone();
            tokio::spawn(async move { finishing.finish().await });
            drop(rest);
            while accepted.stats().received_segments <= segments {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let rest = exhaust_all(&pool);
        let first = accepted.clone();
        let first = tokio::spawn(async move { first.recv().await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!first.is_finished());
        let mut taken = Vec::new();
        assert_eq!(
            within_a_minute(accepted.recv_segments(&mut taken)).await,
            Ok(Some(4))
        );
        let got = within_a_minute(first).await.unwrap().unwrap();
        let expected = (!last).then_some(&b"of one segment"[..]);
        assert_eq!(got.as_deref(), expected);
        drop((rest, taken));
    }
}

/// No message of ours has no bytes, but another implementation may send one, in any number of segments.
#[test]
fn a_message_without_bytes_needs_no_memory() {
    let mut pair = Pair::new();
    for (sn, frg) in [(0, 2), (1, 1), (2, 0)] {
        let header = Header {
            sn,
            frg,
            una: 0,
            ..push(b"")
        };
        pair.server_receives(&datagram(header, b"")).unwrap();
    }
    let rest = exhaust_all(&pair.pool);
    assert_eq!(pair.server.recv(), Some(Packet::new()));
    assert!(!pair.server.has_message());
    drop(rest);
}

/// The budget has nothing left, but what is in flight will free some.
#[tokio::test]
async fn send_waits_for_memory_while_segments_are_in_flight() {
    let pool = strict(32 << 20);
    let config = EndpointConfig::new(SessionConfig::fast());
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let config = config.max_memory(300_000);
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    within_a_minute(client.ready()).await.unwrap();
    let refused = loop {
        if let Err(unsent) = client.try_send(Packet::from(vec![1; 1000])) {
            break unsent.error;
        }
    };
    assert_eq!(refused, SendError::NoMemory);
    assert_eq!(within_a_minute(client.send_slice(&[2; 1000])).await, Ok(()));
}

/// What is queued for peers that read nothing takes neither the memory of new sessions nor that of idle ones.
#[tokio::test]
async fn peers_that_read_nothing_leave_memory_to_others() {
    let pool = strict(64 << 20);
    let config = EndpointConfig::new(SessionConfig::fast());
    let few = config.clone().max_memory(2 << 20);
    let server = Endpoint::bind(any(), &pool, few).unwrap();
    let connect = || Connection::connect(server.local_addr(), &pool, config.clone()).unwrap();
    let begin = async |client: &Connection| {
        client.send_slice(b"hello").await.unwrap();
        let accepted = within_a_minute(server.accept()).await.unwrap();
        within_a_minute(client.ready()).await.unwrap();
        within_a_minute(accepted.ready()).await.unwrap();
        accepted
    };
    let clients: Vec<_> = (0..7).map(|_| connect()).collect();
    let mut accepted = Vec::new();
    for client in &clients {
        accepted.push(begin(client).await);
    }
    let idle = accepted.pop().unwrap();
    // Twice, as more fits when what the peers' windows take has left the queue.
    for _ in 0..2 {
        for slow in &accepted {
            while slow.try_send(Packet::from(vec![1; 1000])).is_ok() {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    idle.send_slice(&[2; 1000]).await.unwrap();
    let new = connect();
    begin(&new).await.send_slice(&[3; 1000]).await.unwrap();
    for (client, first) in [(&clients[6], 2), (&new, 3)] {
        let received = within_a_minute(client.recv()).await.unwrap().unwrap();
        assert_eq!((received.len(), received[0]), (1000, first));
    }
    // Those that begin to read get all.
    let queued: usize = accepted.iter().map(|slow| slow.reserved_bytes()).sum();
    assert!(queued > 1 << 20, "{queued}");
    for (client, slow) in clients.iter().zip(&accepted) {
        let finish = tokio::spawn({
            let slow = slow.clone();
            async move { slow.finish().await }
        });
        while let Some(message) = within_a_minute(client.recv()).await.unwrap() {
            assert_eq!(message.len(), 1000);
        }
        within_a_minute(finish).await.unwrap().unwrap();
    }
}

/// The peer's message ends its session, and nothing else.
#[tokio::test]
async fn a_message_above_the_largest_class_without_heap_ends_the_session() {
    let pool = strict(16 << 20);
    let message = vec![7; 100_000];
    let [client, accepted] = connected(&pool).await;
    within_a_minute(client.send_slice(&message)).await.unwrap();
    let mut segments = Vec::new();
    let count = within_a_minute(accepted.recv_segments(&mut segments))
        .await
        .unwrap();
    assert_eq!(count, Some(segments.len()));
    assert_eq!(segments.concat(), message);

    within_a_minute(client.send_slice(&message)).await.unwrap();
    while !client.is_sent() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Both ends have nothing to say any more, so that only the reader can tell others of the end.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let end = within_a_minute(accepted.recv()).await;
    assert_eq!(end, Err(CloseReason::MessageTooLong));
    assert_eq!(within_a_minute(client.closed()).await, CloseReason::Reset);
    let other = connected(&pool).await;
    assert_eq!((other[0].ended(), other[1].ended()), (None, None));

    // Also if the peer has closed since.
    let [client, accepted] = other;
    within_a_minute(client.send_slice(&message)).await.unwrap();
    within_a_minute(client.close()).await.unwrap();
    let gone = accepted.recv_datagram();
    assert_eq!(within_a_minute(gone).await, Ok(None));
    assert_eq!(accepted.ended(), Some(CloseReason::ClosedByPeer));
    let end = within_a_minute(accepted.recv()).await;
    assert_eq!(end, Err(CloseReason::MessageTooLong));
    assert_eq!(accepted.reserved_bytes(), 0);
}

/// A message fills the window, and the budget has no memory to grow it. The message waits, and arrives once others
/// have freed theirs. If they never do, its session ends in time, and no other.
#[test]
fn a_message_waits_for_memory_to_grow_its_window_but_not_for_ever() {
    for comes_back in [true, false] {
        let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
        let budget = MemoryBudget::new(160_000);
        let config = SessionConfig::fast();
        let of_others = MemoryBudget::new(8 << 20);
        let mut now = Time::ZERO;
        let open = |side, budget| Session::open(1, &config, side, &pool, budget, 5, now).unwrap();
        let mut ends = [open(Side::Client, &of_others), open(Side::Server, &budget)];
        let mut other = Some(open(Side::Server, &budget));
        ends[0].send_slice(b"hello").unwrap();
        let (mut scratch, mut sent, mut got) = ([0; 4096], None, Vec::new());
        let mut wakes = 0;
        let ended = loop {
            let mut said = false;
            for end in 0..2 {
                if ends[end].poll_timeout().is_some_and(|at| at <= now) {
                    ends[end].handle_timeout(now);
                    wakes += 1;
                }
                while let Some(out) = ends[end].poll_transmit(now, &mut scratch, 1) {
                    let datagram = Packet::from(out.contents().to_vec());
                    ends[1 - end].handle_datagram(now, datagram).unwrap();
                    said = true;
                }
            }
            got.extend(ends[1].recv().map(|message| message.len()));
            if sent.is_none() && ends[0].is_peer_window_known() && ends[0].is_sent() {
                ends[0].send_slice(&[7; 60_000]).unwrap();
                sent = Some(now);
            }
            let waited = sent.map_or(Duration::ZERO, |at| now.since(at));
            if comes_back && waited > Duration::from_secs(40) {
                other = None;
            }
            if let Some(reason) = ends[1].ended() {
                break Some((reason, waited.as_secs()));
            }
            if got.len() == 2 {
                assert!(waited < Duration::from_secs(42), "{waited:?}");
                break None;
            }
            if !said {
                let next = ends.iter().filter_map(Session::poll_timeout).min();
                now = next.unwrap().max(now + Duration::from_micros(100));
            }
        };
        assert!(wakes < 400, "{wakes} in a minute");
        assert!(ends[1].stats().window_refused > 0);
        if comes_back {
            assert_eq!((ended, &got[..]), (None, &[5, 60_000][..]));
        } else {
            assert_eq!(ended, Some((CloseReason::MessageTooLong, 60)));
            assert_eq!(other.unwrap().ended(), None);
        }
    }
}

/// The sender's pool has nothing left, not even a buffer to receive in. What it has sent is still acknowledged,
/// over sockets, and so its memory comes back.
#[tokio::test]
async fn acks_are_received_although_the_pool_is_exhausted() {
    let pool = |bytes| {
        let builder = PacketPool::builder().max_memory(bytes).headroom(24);
        builder.build().unwrap()
    };
    let (here, there) = (pool(4 << 20), pool(32 << 20));
    let config = EndpointConfig::new(SessionConfig::fast());
    let server = Endpoint::bind(any(), &there, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &here, config).unwrap();
    client.send_slice(b"hello").await.unwrap();
    within_a_minute(client.ready()).await.unwrap();
    let accepted = within_a_minute(server.accept()).await.unwrap();
    assert_eq!(
        within_a_minute(accepted.recv()).await.unwrap().unwrap(),
        b"hello"[..]
    );

    let mut sent = 0;
    while client.try_send(Packet::from(vec![1; 1000])).is_ok() {
        sent += 1;
    }
    assert!(sent > 100);
    let rest = exhaust_all(&here);
    // There is no room for an answer before something is acknowledged: it is sent again until there is.
    accepted.send_slice(&[2; 1000]).await.unwrap();
    let receiving = async {
        for _ in 0..sent {
            let message = accepted.recv().await.unwrap().unwrap();
            assert_eq!(message, [1; 1000][..]);
        }
    };
    within_a_minute(receiving).await;
    let acknowledged = async {
        while !client.is_sent() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within_a_minute(acknowledged).await;
    // In the memory that this freed, whatever its size.
    let answer = within_a_minute(client.recv()).await.unwrap().unwrap();
    assert_eq!(answer, [2; 1000][..]);
    drop(rest);
    within_a_minute(client.close()).await.unwrap();
}

/// One segment never finds a chunk, while smaller ones behind it do: each of their acknowledgements has it sent
/// again, within a round trip of a millisecond.
#[test]
fn a_peer_that_lacks_memory_for_one_segment_is_no_dead_link() {
    let pool = PacketPool::builder().max_memory(4 << 20).build().unwrap();
    let budget = MemoryBudget::new(4 << 20);
    let config = SessionConfig::fast();
    let mut now = Time::ZERO;
    let mut ends = [Side::Client, Side::Server]
        .map(|side| Session::open(1, &config, side, &pool, &budget, 5, now).unwrap());
    ends[0].send_slice(&[9; 1000]).unwrap();
    let mut scratch = vec![0; 64 << 10];
    let (mut received, mut dropped) = (Vec::new(), 0);
    for turn in 0..1000 {
        now = now + Duration::from_millis(1);
        if turn < 100 {
            ends[0].send_slice(&[7; 10]).unwrap();
        }
        for end in 0..2 {
            if ends[end].poll_timeout().is_some_and(|at| at <= now) {
                ends[end].handle_timeout(now);
            }
            let mut datagrams = Vec::new();
            while let Some(out) = ends[end].poll_transmit(now, &mut scratch, 1) {
                datagrams.push(Packet::from(out.contents().to_vec()));
            }
            for datagram in datagrams {
                // As if the session had dropped it.
                if turn < 100 && datagram.len() > 1000 {
                    dropped += 1;
                } else {
                    ends[1 - end].handle_datagram(now, datagram).unwrap();
                }
            }
        }
        assert_eq!(ends[0].ended(), None, "after {dropped} transmissions");
        received.extend(std::iter::from_fn(|| ends[1].recv()).map(|message| message.len()));
    }
    assert!(dropped > 20, "{dropped} times");
    assert_eq!(received[0], 1000);
    assert_eq!(received.len(), 101);
}
