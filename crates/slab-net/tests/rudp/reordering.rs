//! Segments that arrive late, but arrive, are not sent again each time, in virtual time.

use crate::common::lossy::{Conditions, Lossy};
use crate::common::pair::{CONV, datagram, header, segments_of, transmit};
use slab_net::PacketPool;
use slab_net::rudp::wire::{Command, Header};
use slab_net::rudp::{MemoryBudget, Session, SessionConfig, Side, Time};
use std::collections::BTreeMap;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

/// Nothing is lost; each tenth datagram is late.
const CONDITIONS: Conditions = Conditions {
    delay: Duration::from_millis(10),
    lost: 0,
    reordered: 100,
    bottleneck: None,
};

/// Segments that were only late are not sent again each time: the echo of a transmission that was taken for lost
/// shows that the path reorders.
#[test]
fn reordering_causes_few_spurious_retransmissions() {
    let mut world = Lossy::new(&SessionConfig::fast(), CONDITIONS, 1);
    for n in 1..=4000_u32 {
        let _ = world.ends[0].send_slice(&[1; 100]);
        world.settle(0);
        while let Some(end) = world.step(Time::ZERO + MS * n) {
            world.settle(end);
        }
        while world.ends[1].recv().is_some() {}
    }
    let stats = world.ends[0].stats();
    assert!(stats.retransmits_spurious > 0, "{stats:?}");
    // One in 16 is accepted; by count alone there would be more.
    let most = stats.sent_segments / 20;
    assert!(stats.retransmits_spurious < most, "{stats:?}");
}

/// A late segment is the one that a full window waits for, and is sent again as two copies at once.
#[test]
fn reordering_is_noticed_behind_a_full_window() {
    let mut world = Lossy::new(&SessionConfig::fast().stream(true), CONDITIONS, 1);
    let mut received = 0;
    while received < 8 << 20 {
        while world.ends[0].write(&[1; 1376]).is_ok() {}
        world.settle(0);
        let end = world.step(Time::ZERO + 60_000 * MS).expect("it goes on");
        while let Some(packet) = world.ends[1].read() {
            received += packet.len();
        }
        world.settle(end);
    }
    let stats = world.ends[0].stats();
    assert!(stats.retransmits_fast > 0, "{stats:?}");
    // One segment in 16 is accepted, twice.
    let most = stats.sent_segments / 8;
    assert!(stats.retransmits_fast < most, "{stats:?}");
}

/// kcp-go and the crate `kcp` acknowledge by their `una` alone whatever filled a gap, unless it came last; so does
/// this library.
#[test]
fn reordering_is_noticed_if_only_una_covers_what_was_late() {
    const SEGMENTS: u32 = 2000;
    let pool = PacketPool::builder().max_memory(16 << 20).build().unwrap();
    let budget = MemoryBudget::new(16 << 20);
    let config = SessionConfig::fast();
    let mut session =
        Session::open(CONV, &config, Side::Client, &pool, &budget, 7, Time::ZERO).unwrap();
    // By the millisecond: segments that arrive at the peer, and its acknowledgements.
    let mut segments: BTreeMap<u32, Vec<Header>> = BTreeMap::new();
    let mut acks: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let (mut seen, mut una) = (vec![false; SEGMENTS as usize + 1], 0);
    for ms in 0..SEGMENTS {
        let now = Time::ZERO + MS * ms;
        session.send_slice(b"one each millisecond").unwrap();
        if let Some(ack) = acks.remove(&ms) {
            let ack = pool.try_copy_from_slice(&ack).unwrap();
            session.handle_datagram(now, ack).unwrap();
        }
        for sent in transmit(&mut session, now) {
            for sent in segments_of(&sent) {
                // Each eighth is late, the first time.
                let is_late = sent.sn % 8 == 7 && sent.sn == ms;
                let takes = if is_late { 11 } else { 5 };
                let all = segments.entry(ms + takes).or_default();
                all.extend((sent.cmd == Command::Push).then_some(sent));
            }
        }
        // The peer answers every other millisecond.
        let mut arrived = segments.remove(&ms).unwrap_or_default();
        if ms % 2 == 1 {
            segments.entry(ms + 1).or_default().splice(0..0, arrived);
            continue;
        }
        for push in &arrived {
            seen[push.sn as usize] = true;
        }
        while seen[una as usize] {
            una += 1;
        }
        let last = arrived.pop();
        arrived.retain(|push| push.sn >= una);
        let answer = arrived.iter().chain(&last).flat_map(|push| {
            let (sn, ts) = (push.sn, push.ts);
            let ack = Header {
                sn,
                ts,
                una,
                ..header(Command::Ack)
            };
            datagram(ack, &[])
        });
        let answer: Vec<u8> = answer.collect();
        acks.extend((!answer.is_empty()).then_some((ms + 5, answer)));
    }
    let stats = session.stats();
    assert_eq!(session.ended(), None);
    assert!(stats.retransmits_spurious > 0, "{stats:?}");
    let most = u64::from(SEGMENTS) / 16;
    assert!(stats.retransmits_fast < most, "{stats:?}");
}
