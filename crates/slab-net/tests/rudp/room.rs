//! Endpoints whose memory for sessions is taken.

use crate::common::line::{Line, ONE_WAY, STEP};
use crate::common::sockets::{TIMEOUT, accept, any, fast, pool, recv, wait_until};
use slab_net::rudp::{
    Connection, Endpoint, EndpointConfig, MemoryBudget, OpenError, SendError, Session,
    SessionConfig, Side, Time,
};
use slab_net::{Packet, PacketPool};
use std::time::Duration;
use tokio::time::timeout;

/// What a session reserves when it is opened: its smallest window, with the reserve for larger buffers.
const OPENING_BYTES: usize = 32 * 1536 * 5 / 4;

/// Sessions that have proved their address share the memory, and are refused once it is used up.
#[tokio::test]
async fn sessions_beyond_the_memory_budget_are_refused_and_counted() {
    let pool = pool();
    // What the server sends takes memory, too.
    let config = fast().max_memory(5 * OPENING_BYTES).require_cookie(true);
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    let clients: Vec<_> = (0..8)
        .map(|_| Connection::connect(server.local_addr(), &pool, fast()).unwrap())
        .collect();
    for client in &clients {
        client.send_slice(b"question").await.unwrap();
    }
    wait_until(&server, "refused", |server| {
        server.stats().refused_memory > 3
    })
    .await;
    let stats = server.stats();
    assert!((1..=5).contains(&stats.sessions), "{stats:?}");
    assert!(stats.reserved_bytes <= stats.reserve_limit_bytes);
    assert_eq!(recv(&accept(&server).await).await, b"question");

    let here = Endpoint::bind(any(), &pool, fast().max_memory(OPENING_BYTES)).unwrap();
    let first = here.connect(server.local_addr()).unwrap();
    let second = here.connect(server.local_addr());
    assert!(matches!(second, Err(OpenError::NoMemory)));
    drop(first);
}

/// As many peers as there is memory for may ask at once; who lets them in has to be able to answer.
#[tokio::test]
async fn peers_that_take_all_the_memory_for_sessions_can_be_answered() {
    let pool = pool();
    let config = fast().max_memory(16 * OPENING_BYTES).require_cookie(true);
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    let here = Endpoint::bind(any(), &pool, fast()).unwrap();
    let clients: Vec<_> = (0..20)
        .map(|_| here.connect(server.local_addr()).unwrap())
        .collect();
    for client in &clients {
        client.send_slice(b"question").await.unwrap();
    }
    wait_until(&server, "refused", |server| {
        server.stats().refused_memory > 6
    })
    .await;
    let mut answered = Vec::new();
    while answered.len() < server.stats().sessions {
        let peer = accept(&server).await;
        assert_eq!(recv(&peer).await, b"question");
        peer.send_slice(&[7; 30_000]).await.unwrap();
        assert_eq!(timeout(TIMEOUT, peer.finish()).await.unwrap(), Ok(()));
        answered.push(peer);
    }
    assert!((12..=15).contains(&answered.len()), "{}", answered.len());
}

/// A session of two endpoints, after its first message.
async fn greeted(client: &Endpoint, server: &Endpoint) -> (Connection, Connection) {
    let here = client.connect(server.local_addr()).unwrap();
    here.send_slice(b"hello").await.unwrap();
    let there = accept(server).await;
    assert_eq!(recv(&there).await, b"hello");
    (here, there)
}

/// Endpoints of which the server has memory for so many sessions, and a sign of life repairs nothing.
fn short_of_memory(sessions: usize) -> (Endpoint, Endpoint) {
    let pool = pool();
    let session = SessionConfig::fast()
        .keepalive(100 * TIMEOUT)
        .idle_timeout(1000 * TIMEOUT);
    let config = EndpointConfig::new(session).max_memory(sessions * OPENING_BYTES);
    let server = Endpoint::bind(any(), &pool, config).unwrap();
    (server, Endpoint::bind(any(), &pool, fast()).unwrap())
}

/// Sessions between two ends, each with a budget of its own of `limit` bytes. `turn` gets the two ends of a session, by
/// number, and says when that has done all. Returns how long it takes if a datagram takes no time.
fn exchange(
    sessions: usize,
    limit: usize,
    mut turn: impl FnMut(usize, &mut [Session; 2]) -> bool,
) -> Duration {
    let pool = PacketPool::builder().max_memory(64 << 20).build().unwrap();
    let budgets = [(); 2].map(|()| MemoryBudget::new(limit));
    let mut now = Time::ZERO;
    let open = |side, conv| {
        let budget = &budgets[usize::from(side == Side::Server)];
        Session::open(conv, &SessionConfig::fast(), side, &pool, budget, 5, now).unwrap()
    };
    let mut sessions: Vec<_> = (0..sessions as u32)
        .map(|conv| [Side::Client, Side::Server].map(|side| open(side, conv)))
        .collect();
    let mut scratch = [0; 4096];
    loop {
        let mut done = true;
        for (number, ends) in sessions.iter_mut().enumerate() {
            done &= turn(number, ends);
        }
        if done {
            return now.since(Time::ZERO);
        }
        let mut said = false;
        for (number, ends) in sessions.iter_mut().enumerate() {
            for end in 0..2 {
                if ends[end].poll_timeout().is_some_and(|at| at <= now) {
                    ends[end].handle_timeout(now);
                }
                if let Some(out) = ends[end].poll_transmit(now, &mut scratch, 1) {
                    let datagram = Packet::from(out.contents().to_vec());
                    ends[1 - end].handle_datagram(now, datagram).unwrap();
                    said = true;
                }
                assert_eq!(ends[end].ended(), None, "{number}");
            }
        }
        now = now + Duration::from_micros(10);
        if !said {
            let next = sessions.iter().flatten().filter_map(Session::poll_timeout);
            now = next.min().unwrap().max(now);
        }
    }
}

/// Two ends that are short of memory send each other messages for which windows have to grow. What is sent leaves some
/// for that.
#[test]
fn long_messages_in_both_directions_do_not_wait_for_each_other() {
    const MESSAGES: u32 = 4;
    // In the second case a sixteenth of the memory has no room for a message.
    for (sessions, limit, bytes) in [(56, 8 << 20, 60_000), (8, 2 << 20, 200_000)] {
        let long = vec![7; bytes];
        let mut counts = vec![[[0; 2]; 2]; sessions];
        let took = exchange(sessions, limit, |number, ends| {
            for (end, [sent, received]) in ends.iter_mut().zip(&mut counts[number]) {
                if *sent == 0 {
                    end.send_slice(b"hello").unwrap();
                    *sent = 1;
                }
                let knows = end.is_peer_window_known();
                while knows && *sent <= MESSAGES && end.send_slice(&long).is_ok() {
                    *sent += 1;
                }
                *received += u32::from(end.recv().is_some());
            }
            counts[number].iter().all(|&[_, got]| got > MESSAGES)
        });
        assert!(took < Duration::from_secs(15), "{took:?}");
    }
}

/// Sessions that have had a long message, and say no more, do not keep the memory that others need for theirs until they
/// ask whether the peer is still there.
#[test]
fn windows_that_are_of_no_use_make_room_for_others() {
    const SESSIONS: usize = 56;
    let long = [7; 200_000];
    let mut counts = [[0; 2]; SESSIONS];
    let took = exchange(SESSIONS, 5 << 20, |number, [client, server]| {
        let [sent, received] = &mut counts[number];
        if *sent == 0 {
            client.send_slice(b"hello").unwrap();
            *sent = 1;
        }
        if *sent == 1 && client.is_peer_window_known() && client.send_slice(&long).is_ok() {
            *sent = 2;
        }
        *received += u32::from(server.recv().is_some());
        *received == 2
    });
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// The same with sockets, and a reader that takes the message when nothing else is due any more.
#[tokio::test]
async fn a_window_of_no_use_is_given_back_soon_after_its_message_was_read() {
    let (server, client) = short_of_memory(8);
    let mut ends = Vec::new();
    for _ in 0..3 {
        ends.push(greeted(&client, &server).await);
    }
    let (here, there) = &ends[0];
    loop {
        here.send_slice(&[7; 200_000]).await.unwrap();
        assert_eq!(recv(there).await.len(), 200_000);
        here.send_slice(b"more").await.unwrap();
        // Longer than a window of no use is kept.
        tokio::time::sleep(Duration::from_millis(800)).await;
        let is_grown = server.stats().reserved_bytes > 6 * OPENING_BYTES;
        assert_eq!(recv(there).await, b"more");
        if is_grown {
            break;
        }
        // The machine was so slow that it was given back before `more` came.
    }
    wait_until(&server, "memory", |server| {
        server.stats().reserved_bytes == 3 * OPENING_BYTES
    })
    .await;
}

/// The peer may not hear of the smaller window, or its answer be lost: it is asked again, although no keepalive is due.
#[test]
fn a_window_of_no_use_is_given_back_although_questions_are_lost() {
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budgets = [100, 6].map(|sessions| MemoryBudget::new(sessions * OPENING_BYTES));
    let open = |side, budget| {
        let config = SessionConfig::fast();
        Session::open(3, &config, side, &pool, budget, 5 << 32, Time::ZERO).unwrap()
    };
    let mut line = Line {
        now: Time::ZERO,
        ends: [
            open(Side::Client, &budgets[0]),
            open(Side::Server, &budgets[1]),
        ],
        budget: budgets[1].clone(),
        in_transit: Default::default(),
    };
    line.ends[0].send_slice(b"hello").unwrap();
    line.run(ONE_WAY * 6, |_| {});
    line.ends[0].send_slice(&[7; 200_000]).unwrap();
    let mut read = 0;
    while read < 2 {
        line.run(STEP, |ends| read += u32::from(ends[1].recv().is_some()));
    }
    let asked = line.ends[1].stats().probes;
    // The next message would find it open.
    line.run(Duration::from_millis(80), |_| {});
    assert_eq!(line.ends[1].stats().probes, asked);
    while line.ends[1].stats().probes < asked + 3 {
        line.run(STEP, |_| {});
        line.in_transit[0].clear();
    }
    assert!(budgets[1].reserved() > 4 * OPENING_BYTES);
    line.run(Duration::from_secs(1), |_| {});
    assert_eq!(budgets[1].reserved(), OPENING_BYTES);
    assert!(line.now < Time::from_micros(4_000_000));
}

/// The same if memory becomes short only after the session has fallen silent: nothing tells it.
#[tokio::test]
async fn a_window_of_no_use_is_given_back_soon_after_others_made_memory_short() {
    let (server, client) = short_of_memory(16);
    let mut ends = Vec::new();
    for number in 0..8 {
        let (here, there) = greeted(&client, &server).await;
        if number == 0 {
            here.send_slice(&[7; 200_000]).await.unwrap();
            assert_eq!(recv(&there).await.len(), 200_000);
            // Longer than a window of no use is kept where memory is short.
            tokio::time::sleep(Duration::from_millis(800)).await;
            let reserved = server.stats().reserved_bytes;
            assert!(4 * OPENING_BYTES < reserved && reserved < 10 * OPENING_BYTES);
        }
        ends.push((here, there));
    }
    wait_until(&server, "memory", |server| {
        server.stats().reserved_bytes <= 10 * OPENING_BYTES
    })
    .await;
}

/// A session whose window has grown for a question has no memory left for the answer: it gives that of the window back,
/// and asks for that once a message.
#[test]
fn a_grown_window_makes_room_for_the_answer() {
    const MESSAGES: u32 = 10;
    let long = [7; 60_000];
    let [mut questions, mut unanswered, mut answers] = [0; 3];
    let mut probes = 0;
    let took = exchange(1, 3 * OPENING_BYTES, |_, [client, server]| {
        if questions == 0 {
            client.send_slice(b"hello").unwrap();
            questions = 1;
        }
        if client.is_peer_window_known()
            && questions == answers + 1
            && client.send_slice(&long).is_ok()
        {
            questions += 1;
        }
        let asked = server.recv().is_some_and(|message| message.len() > 5);
        unanswered += u32::from(asked);
        if unanswered > 0 && server.send_slice(&long).is_ok() {
            unanswered -= 1;
        }
        answers += u32::from(client.recv().is_some());
        probes = client.stats().probes + server.stats().probes;
        answers == MESSAGES
    });
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert!(probes <= u64::from(2 * MESSAGES + 2), "{probes}");
}

/// Where it is the pool that has nothing to send from, a smaller window would not help, and an upload would suffer.
#[test]
fn a_grown_window_is_kept_if_the_pool_is_empty() {
    let pools = [(); 2].map(|()| PacketPool::builder().max_memory(8 << 20).build().unwrap());
    let open = |side, pool| {
        let budget = MemoryBudget::new(8 << 20);
        Session::open(
            7,
            &SessionConfig::fast(),
            side,
            pool,
            &budget,
            5,
            Time::ZERO,
        )
        .unwrap()
    };
    let mut ends = [open(Side::Client, &pools[0]), open(Side::Server, &pools[1])];
    let mut scratch = [0; 4096];
    let mut talk = |ends: &mut [Session; 2]| {
        // Each may have something to say once it has heard the other.
        for end in [0, 1].into_iter().cycle().take(20) {
            while let Some(out) = ends[end].poll_transmit(Time::ZERO, &mut scratch, 1) {
                let datagram = Packet::from(out.contents().to_vec());
                ends[1 - end].handle_datagram(Time::ZERO, datagram).unwrap();
            }
        }
    };
    let long = [7; 60_000];
    let mut windows = Vec::new();
    for message in [&b"hello"[..], &long] {
        ends[0].send_slice(message).unwrap();
        talk(&mut ends);
        assert_eq!(ends[1].recv().unwrap().len(), message.len());
        talk(&mut ends);
        windows.push(ends[1].reserved_bytes());
    }
    assert!(windows[1] > windows[0], "{windows:?}");

    let mut all = Vec::new();
    for len in [65_000, 9000, 1500, 60] {
        all.extend(std::iter::from_fn(|| pools[1].try_alloc(len).ok()));
    }
    let probes = ends[1].stats().probes;
    assert_eq!(ends[1].send_slice(b"reply"), Err(SendError::NoMemory));
    talk(&mut ends);
    assert_eq!(ends[1].stats().probes, probes);
    assert_eq!(ends[1].reserved_bytes(), windows[1]);
    drop(all);
    ends[1].send_slice(b"reply").unwrap();
}
