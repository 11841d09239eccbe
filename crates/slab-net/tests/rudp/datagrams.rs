//! Unreliable datagrams beside the reliable messages.

use crate::common::pair::{CONV, Pair, bare_header, datagram, segments_of, transmit};
use crate::common::sockets::{TIMEOUT, accept, any, fast, pool};
use crate::common::{Random, lossy};
use slab_net::rudp::wire::{Command, Header};
use slab_net::rudp::{
    Congestion, Connection, Endpoint, EndpointConfig, MemoryBudget, Rejection, SendError, Session,
    SessionConfig, Side, Time, TryRecvError,
};
use slab_net::{Packet, PacketPool};
use std::time::Duration;
use tokio::time::timeout;

fn world(lost: u64, seed: u64) -> lossy::Lossy {
    let conditions = lossy::Conditions {
        delay: Duration::from_millis(5),
        lost,
        reordered: 0,
        bottleneck: None,
    };
    lossy::Lossy::new(&SessionConfig::fast(), conditions, seed)
}

/// Runs for this many milliseconds.
fn run(world: &mut lossy::Lossy, ms: u64) {
    let until = world.now + Duration::from_millis(ms);
    world.settle(0);
    world.settle(1);
    while let Some(end) = world.step(until) {
        world.settle(end);
    }
}

fn datagrams(session: &mut Session) -> Vec<Packet> {
    std::iter::from_fn(|| session.recv_datagram()).collect()
}

#[test]
fn datagrams_arrive_beside_messages_and_are_not_retransmitted() {
    let mut world = world(200, 3);
    run(&mut world, 500);
    assert!(world.ends[0].is_peer_ours());
    let (mut sent, mut arrived, mut messages) = (0, 0, 0);
    for n in 0..300_u32 {
        world.ends[0].send_slice(&[1; 100]).unwrap();
        let packet = world.pool.try_copy_from_slice(&n.to_le_bytes()).unwrap();
        world.ends[0].send_datagram(packet).unwrap();
        sent += 1;
        run(&mut world, 10);
        arrived += datagrams(&mut world.ends[1]).len();
        messages += std::iter::from_fn(|| world.ends[1].recv()).count();
    }
    run(&mut world, 5000);
    arrived += datagrams(&mut world.ends[1]).len();
    messages += std::iter::from_fn(|| world.ends[1].recv()).count();
    assert_eq!(messages, 300, "all of what is reliable");
    // One in five is lost, and is not sent again.
    assert!((200..280).contains(&arrived), "{arrived} of {sent}");
    let stats = world.ends[0].stats();
    assert_eq!(stats.sent_unreliable, 300);
    assert_eq!(world.ends[1].stats().received_unreliable, arrived as u64);
}

#[test]
fn datagrams_are_refused_until_the_peer_is_known_to_be_ours() {
    let mut world = world(0, 1);
    let packet = world.pool.try_copy_from_slice(b"too early").unwrap();
    let unsent = world.ends[0].send_datagram(packet).unwrap_err();
    assert_eq!(unsent.error, SendError::NotReady);
    assert_eq!(unsent.packet, b"too early"[..]);
    run(&mut world, 100);
    world.ends[0].send_datagram(unsent.packet).unwrap();
    run(&mut world, 100);
    assert_eq!(datagrams(&mut world.ends[1]), [&b"too early"[..]]);
    // An empty datagram, and the longest.
    world.ends[0].send_datagram(Packet::new()).unwrap();
    let max = world.ends[0].max_datagram();
    let longest = world.pool.try_copy_from_slice(&vec![5; max]).unwrap();
    world.ends[0].send_datagram(longest).unwrap();
    let longer = world.pool.try_copy_from_slice(&vec![5; max + 1]).unwrap();
    let unsent = world.ends[0].send_datagram(longer).unwrap_err();
    assert_eq!(unsent.error, SendError::DatagramTooLong { max });
    run(&mut world, 100);
    let lengths: Vec<usize> = datagrams(&mut world.ends[1])
        .iter()
        .map(|packet| packet.len())
        .collect();
    assert_eq!(lengths, [0, max]);
}

/// Where datagrams are longer than all ends take.
#[test]
fn the_longest_datagram_arrives_between_ends_of_one_large_mtu() {
    let mut pair = Pair::with_config(SessionConfig::fast().mtu(3000));
    pair.client.send_slice(b"question").unwrap();
    pair.settle();
    let longest = vec![5; pair.client.max_datagram()];
    let packet = pair.pool.try_copy_from_slice(&longest).unwrap();
    pair.client.send_datagram(packet).unwrap();
    pair.settle();
    assert_eq!(datagrams(&mut pair.server), [longest]);
}

#[test]
fn datagram_queues_are_bounded_and_the_newest_are_kept() {
    let mut world = world(0, 1);
    run(&mut world, 100);
    let reserved = world.ends[1].reserved_bytes();
    for n in 0..400_u32 {
        let packet = world.pool.try_copy_from_slice(&n.to_le_bytes()).unwrap();
        world.ends[0].send_datagram(packet).unwrap();
        run(&mut world, 10);
        assert!(world.ends[1].held_bytes() <= world.ends[1].reserved_bytes());
    }
    assert!(
        world.ends[1].reserved_bytes() > reserved,
        "they are counted"
    );
    let kept = datagrams(&mut world.ends[1]);
    // As many as the window has segments.
    assert_eq!(kept.len(), 256);
    assert_eq!(kept[255], 399_u32.to_le_bytes()[..]);
    assert_eq!(world.ends[1].stats().dropped_unreliable, 144);
    assert_eq!(world.ends[1].reserved_bytes(), reserved);
    drop(kept);
    // Nothing is transmitted, so the queue fills up and refuses.
    let mut taken = 0;
    let reason = loop {
        let packet = world.pool.try_copy_from_slice(&[1; 1000]).unwrap();
        match world.ends[0].send_datagram(packet) {
            Ok(()) => taken += 1,
            Err(unsent) => break unsent.error,
        }
    };
    assert_eq!((taken, reason), (64, SendError::Blocked));
    world.ends[0].abort();
    assert_eq!(world.ends[0].reserved_bytes(), 0);
}

/// Neither takes the whole rate from the other.
#[test]
fn with_pacing_datagrams_and_segments_take_turns() {
    let mut pair = Pair::with_config(SessionConfig::fast().congestion(Congestion::Reno));
    pair.client.send_slice(b"measures the round trip").unwrap();
    pair.settle();
    for _ in 0..20 {
        let packet = pair.pool.try_copy_from_slice(&[1; 1000]).unwrap();
        pair.client.send_datagram(packet).unwrap();
        pair.client.send_slice(&[2; 1000]).unwrap();
    }
    let sent = transmit(&mut pair.client, pair.now);
    let commands = sent.iter().flat_map(|datagram| segments_of(datagram));
    let commands: Vec<_> = commands.map(|header| header.cmd).collect();
    // One, then segments that lie side by side, then one.
    assert_eq!(commands[..2], [Command::Datagram, Command::Push]);
    let datagrams = commands[..10]
        .iter()
        .filter(|&&cmd| cmd == Command::Datagram);
    assert!((2..=5).contains(&datagrams.count()), "{commands:?}");
}

/// Of the pool, to copy it out of what else it would keep in use, or of the budget.
#[test]
fn datagrams_that_find_no_memory_are_counted() {
    let open = |side, pool: &PacketPool, budget: &MemoryBudget| {
        let config = SessionConfig::fast();
        Session::open(CONV, &config, side, pool, budget, 7 << 32, Time::ZERO).unwrap()
    };
    for lacks_budget in [false, true] {
        let mut pair = Pair::new();
        let budget = MemoryBudget::new(16 << 20);
        let session = open(Side::Server, &pair.pool, &budget);
        let just_enough = MemoryBudget::new(budget.reserved());
        drop(session);
        if lacks_budget {
            pair.server = open(Side::Server, &pair.pool, &just_enough);
        }
        pair.client.send_slice(b"hello").unwrap();
        pair.settle();
        pair.server.recv().unwrap();
        let packet = pair.pool.try_copy_from_slice(&[1; 100]).unwrap();
        pair.client.send_datagram(packet).unwrap();
        let sent = transmit(&mut pair.client, pair.now).remove(0);
        let mut buffer = pair.pool.try_alloc(60_000).unwrap();
        buffer.extend_from_slice(&sent);
        buffer.resize(60_000, 0);
        let received = buffer.freeze().slice(..sent.len());
        let held = std::iter::from_fn(|| pair.pool.try_alloc(100).ok());
        let held: Vec<_> = held
            .take(if lacks_budget { 0 } else { usize::MAX })
            .collect();
        pair.server.handle_datagram(pair.now, received).unwrap();
        assert_eq!(pair.server.recv_datagram(), None);
        assert_eq!(pair.server.stats().dropped_unreliable, 1, "{lacks_budget}");
        drop(held);
    }
}

/// A few peers could take all of it otherwise; but each session may keep some.
#[test]
fn datagrams_that_nobody_reads_leave_memory_to_others() {
    let config = SessionConfig::fast().window(256, 1024);
    let mut pair = Pair::with_config(config);
    let budget = MemoryBudget::new(1 << 20);
    let open = |pool: &PacketPool| {
        let side = Side::Server;
        Session::open(CONV, &config, side, pool, &budget, 7 << 32, Time::ZERO)
    };
    pair.server = open(&pair.pool).unwrap();
    pair.client.send_slice(b"hello").unwrap();
    pair.settle();
    pair.server.recv().unwrap();
    let send = |pair: &mut Pair| {
        for _ in 0..64 {
            let packet = pair.pool.try_copy_from_slice(&[1; 1000]).unwrap();
            pair.client.send_datagram(packet).unwrap();
        }
        pair.settle();
    };
    (0..16).for_each(|_| send(&mut pair));
    assert!(budget.reserved() > budget.limit() / 2);
    assert!(budget.reserved() <= budget.limit() * 3 / 4);
    let dropped = pair.server.stats().dropped_unreliable;
    let new = open(&pair.pool).unwrap();
    let kept = datagrams(&mut pair.server).len() as u64;
    assert_eq!(kept + dropped, 16 * 64);
    let others: Vec<_> = std::iter::from_fn(|| open(&pair.pool).ok()).collect();
    assert!(budget.reserved() > budget.limit() * 3 / 4);
    send(&mut pair);
    assert_eq!(datagrams(&mut pair.server).len(), 4);
    drop((new, others));
}

/// They are kept although nothing is left of the budget.
#[test]
fn datagrams_without_contents_need_no_memory() {
    let mut pair = Pair::new();
    let open = |budget: &MemoryBudget| {
        let (config, side) = (SessionConfig::fast(), Side::Server);
        Session::open(CONV, &config, side, &pair.pool, budget, 7 << 32, Time::ZERO).unwrap()
    };
    let budget = MemoryBudget::new(16 << 20);
    let session = open(&budget);
    let just_enough = MemoryBudget::new(budget.reserved());
    drop(session);
    pair.server = open(&just_enough);
    pair.client.send_slice(b"hello").unwrap();
    pair.settle();
    for _ in 0..20 {
        pair.client.send_datagram(Packet::new()).unwrap();
    }
    pair.settle();
    assert_eq!(just_enough.reserved(), just_enough.limit());
    assert_eq!(datagrams(&mut pair.server).len(), 20);
}

/// Whether the session ends before they are read, or others take their place.
#[test]
fn datagrams_that_nobody_reads_are_counted_at_the_end_of_the_session() {
    let mut world = world(0, 1);
    run(&mut world, 100);
    let send = |world: &mut lossy::Lossy| {
        let packet = world.pool.try_copy_from_slice(b"datagram").unwrap();
        world.ends[0].send_datagram(packet).unwrap();
        world.settle(0);
    };
    (0..3).for_each(|_| send(&mut world));
    run(&mut world, 100);
    assert!(world.ends[1].recv_datagram().is_some());
    // Still on its way then.
    send(&mut world);
    world.ends[1].abort();
    assert!(world.ends[1].recv_datagram().is_none());
    let counted = |world: &lossy::Lossy| {
        let stats = world.ends[1].stats();
        (stats.received_unreliable, stats.dropped_unreliable)
    };
    assert_eq!(counted(&world), (3, 2));
    run(&mut world, 100);
    assert!(world.ends[1].recv_datagram().is_none());
    assert_eq!(counted(&world), (4, 3));
}

/// An attacker who does not see the traffic cannot slip one in.
#[test]
fn forged_datagrams_are_refused() {
    let mut world = world(0, 1);
    run(&mut world, 100);
    let mut random = Random::new(5);
    for _ in 0..1000 {
        let header = Header {
            ts: random.next() as u32,
            len: 4,
            ..bare_header(world.ends[1].conv(), Command::Datagram)
        };
        let packet = world.pool.try_copy_from_slice(&datagram(header, &[0; 4]));
        let refused = world.ends[1].handle_datagram(Time::ZERO, packet.unwrap());
        assert_eq!(refused, Err(Rejection::ForgedDatagram));
    }
    assert!(!world.ends[1].has_datagram());
}

/// A server's first answer to a shard is too short to ask anything of the client.
#[cfg(feature = "fec")]
#[tokio::test]
async fn a_client_that_is_ready_can_send_a_datagram() {
    use slab_net::rudp::fec::FecShards;
    let pool = pool();
    let config = fast().fec(FecShards::new(2, 1).unwrap());
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    timeout(TIMEOUT, client.ready()).await.unwrap().unwrap();
    client
        .send_datagram(Packet::from_static(b"at once"))
        .unwrap();
    let accepted = accept(&server).await;
    let received = timeout(TIMEOUT, accepted.recv_datagram()).await.unwrap();
    assert_eq!(received.unwrap().unwrap(), b"at once"[..]);
}

#[tokio::test]
async fn datagrams_arrive_over_sockets() {
    let pool = PacketPool::builder()
        .max_memory(32 << 20)
        .headroom(24)
        .build()
        .unwrap();
    let config = EndpointConfig::new(SessionConfig::fast());
    let server = Endpoint::bind(any(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    client.ready().await.unwrap();
    let accepted = server.accept().await.unwrap();
    let allocs = || -> u64 {
        let stats = pool.slab().stats();
        stats.classes().iter().map(|class| class.allocs).sum()
    };
    for n in 0..100_u32 {
        let packet = pool.try_copy_from_slice(&n.to_le_bytes()).unwrap();
        let before = allocs();
        client.send_datagram(packet).unwrap();
        assert_eq!(allocs(), before, "it is not copied");
        let got = accepted.recv_datagram().await.unwrap().unwrap();
        assert_eq!(got, n.to_le_bytes()[..]);
    }
    // A burst, which the server's task receives at once, before the reader on its thread runs.
    let numbers: Vec<_> = (0..200_u32).map(u32::to_le_bytes).collect();
    for number in &numbers {
        let packet = pool.try_copy_from_slice(number).unwrap();
        client.send_datagram(packet).unwrap();
    }
    for number in &numbers {
        let got = accepted.recv_datagram().await.unwrap().unwrap();
        assert_eq!(got, number[..]);
    }
    let max = client.max_datagram();
    let longer = Packet::from(vec![7; max + 1]);
    let unsent = client.send_datagram(longer).unwrap_err();
    assert_eq!(unsent.error, SendError::DatagramTooLong { max });
    client.send_datagram(unsent.packet.slice(..max)).unwrap();
    let got = loop {
        match accepted.try_recv_datagram() {
            Ok(got) => break got,
            Err(TryRecvError::Empty) => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(got, vec![7; max]);
    client.close().await.unwrap();
    assert_eq!(accepted.recv_datagram().await, Ok(None));
}

/// As a subscriber does. No timer makes it speak within the time of this test.
#[tokio::test]
async fn a_client_that_only_waits_for_datagrams_is_heard_of() {
    let pool = pool();
    let server = Endpoint::bind(any(), &pool, fast()).unwrap();
    for waits in [false, true] {
        let client = Connection::connect(server.local_addr(), &pool, fast()).unwrap();
        let reading = tokio::spawn(async move {
            if waits {
                return client.recv_datagram().await.unwrap().unwrap();
            }
            loop {
                match client.try_recv_datagram() {
                    Ok(got) => break got,
                    Err(TryRecvError::Empty) => tokio::task::yield_now().await,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let accepted = accept(&server).await;
        timeout(TIMEOUT, accepted.ready()).await.unwrap().unwrap();
        accepted
            .send_datagram(Packet::from_static(b"news"))
            .unwrap();
        let got = timeout(TIMEOUT, reading).await.unwrap().unwrap();
        assert_eq!(got, b"news"[..]);
    }
}
