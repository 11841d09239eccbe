//! How the window grows.

use super::*;
use core::ops::Range;
use core::time::Duration;

const RTT: Duration = Duration::from_millis(20);

/// Does what the session does with a segment that comes at this time.
fn arrive(queue: &mut ReceiveQueue, sn: u32, edge: u32, now: Time, pool: &PacketPool) {
    let packet = pool.try_copy_from_slice(&sn.to_le_bytes()).unwrap();
    queue.end_train_after_pause(now, Some(RTT));
    let (place, mut batch) = ((sn, edge), BatchBuffer::default());
    queue.insert(place, now, 0, packet, pool, &mut batch);
    queue.measure(now, Some(RTT));
}

/// These come at this interval, and each is read at once; returns when the last came.
fn stream(
    queue: &mut ReceiveQueue,
    sns: Range<u32>,
    mut now: Time,
    interval: Duration,
    pool: &PacketPool,
) -> Time {
    for sn in sns {
        now = now + interval;
        let edge = edge(queue);
        arrive(queue, sn, edge, now, pool);
        queue.pop();
    }
    now
}

/// C's ikcp and the crate `kcp` send them, and send them again after twice the time each time.
#[test]
fn segments_beyond_the_edge_but_within_a_window_of_the_next_are_taken_if_there_is_memory() {
    let pool = pool();
    let (mut queue, budget) = queue(32, 64);
    queue.set_may_grow(false);
    assert_eq!(put(&mut queue, 32, 0, &pool), Inserted::BeyondWindow);
    queue.set_may_grow(true);
    // Before it knew the window.
    assert_eq!(put(&mut queue, 64, 0, &pool), Inserted::BeyondWindow);
    assert_eq!(put(&mut queue, 63, 0, &pool), Inserted::OutOfOrder);
    for sn in 0..63 {
        put(&mut queue, sn, 0, &pool);
    }
    // The reader takes nothing, and the peer goes by an earlier window.
    assert_eq!((queue.unread(), queue.advertised()), (64, 0));
    for sn in 64..128 {
        assert_eq!(put(&mut queue, sn, 0, &pool), Inserted::InOrder);
        assert_eq!(queue.advertised(), 0, "but no more is promised");
    }
    assert_eq!(put(&mut queue, 128, 0, &pool), Inserted::BeyondWindow);
    assert!(budget.reserved() >= 128 * SLOT);
    while queue.pop().is_some() {}
    assert_eq!((queue.advertised(), queue.is_grown_and_empty()), (64, true));
    queue.narrow();
    queue.apply_narrow();
    assert_eq!(budget.reserved(), reservation(32, SLOT));
}

/// The peer is told of no more, and may go by that: it would wait, and so would the reader.
#[test]
fn a_message_fills_the_window_although_there_is_more_room() {
    let pool = pool();
    let (mut queue, _budget) = queue(4, 4);
    put(&mut queue, 0, 0, &pool);
    assert_eq!(put(&mut queue, 4, 6, &pool), Inserted::OutOfOrder);
    assert!(queue.pop().is_some());
    for (sn, frg) in [(1, 9), (2, 8)] {
        put(&mut queue, sn, frg, &pool);
    }
    assert!(!queue.is_filled_by_message());
    put(&mut queue, 3, 7, &pool);
    assert_eq!((queue.advertised(), queue.window), (0, 8));
    assert!(queue.is_filled_by_message() && queue.is_largest());
}

#[test]
fn a_window_grows_with_traffic_to_its_maximum_and_no_further_than_the_budget() {
    let pool = pool();
    let (mut queue, _budget) = queue(4, 16);
    stream(&mut queue, 0..100, Time::ZERO, Duration::ZERO, &pool);
    assert_eq!(queue.window(), 16);

    let tight = MemoryBudget::new(reservation(4, SLOT) + 10);
    let mut queue = ReceiveQueue::new(0, (4, 16), SLOT, tight.account()).unwrap();
    stream(&mut queue, 0..100, Time::ZERO, Duration::ZERO, &pool);
    assert_eq!(queue.window(), 4);
    assert!(queue.growth_refused > 0);
    assert!(ReceiveQueue::new(0, (1, 1), SLOT, tight.account()).is_none());
}

/// Others have to begin while a few are busy.
#[test]
fn a_window_that_grows_leaves_a_fourth_of_the_memory() {
    let pool = pool();
    for (windows, grown) in [(20, 8), (30, 16)] {
        let budget = MemoryBudget::new(reservation(windows, SLOT));
        let mut queue = ReceiveQueue::new(0, (8, 1024), SLOT, budget.account()).unwrap();
        stream(&mut queue, 0..10_000, Time::ZERO, RTT / 200, &pool);
        assert_eq!(queue.window(), grown);
        // A message that fills the window needs it.
        for n in 0..queue.window() {
            let sn = 10_000 + n;
            put(&mut queue, sn, 25 - n as u8, &pool);
        }
        queue.grow_for_message();
        assert_eq!(queue.window(), if windows == 20 { 8 } else { 26 });
    }
}

/// 1000 segments a second with a round trip of 20 ms: 20 are on the way.
#[test]
fn a_window_follows_bandwidth_times_delay() {
    let pool = pool();
    let (mut queue, _budget) = queue(4, 1024);
    let now = stream(&mut queue, 0..10_000, Time::ZERO, RTT / 20, &pool);
    let window = queue.window();
    assert_eq!(window, 64, "more than 20, less than four times that");
    stream(&mut queue, 10_000..20_000, now, RTT / 200, &pool);
    assert_eq!(queue.window(), 512);
}

/// 32 segments in 2 ms, with a round trip of 20 ms: the path carries 320 in one.
#[test]
fn one_train_that_fills_the_window_is_enough_to_estimate_the_path() {
    let pool = pool();
    let train = |used: u32, reads: bool| {
        let (mut queue, _budget) = queue(32, 1024);
        // Left unread from before.
        for sn in 0..16 {
            put(&mut queue, sn, 0, &pool);
            if reads {
                queue.pop();
            }
        }
        queue.train = Train::default();
        let (edge, mut now) = (edge(&queue), Time::ZERO);
        for sn in 16..16 + used {
            now = now + Duration::from_micros(62);
            // One is lost on the way, so that the window stays where it is.
            if sn != 17 {
                arrive(&mut queue, sn, edge, now, &pool);
            }
        }
        queue.window()
    };
    assert_eq!(train(32, true), 1024, "twice 300, and a power of two");
    assert_eq!(train(20, true), 32, "the peer had no more");
    assert_eq!(train(16, false), 32, "nobody reads it");
}

#[test]
fn a_message_that_fills_the_window_makes_it_grow_to_its_maximum() {
    let pool = pool();
    let (mut queue, _budget) = queue(4, 8);
    for sn in 0..4 {
        put(&mut queue, sn, 7, &pool);
    }
    queue.set_may_grow(false);
    queue.grow_for_message();
    assert_eq!((queue.window(), queue.is_filled_by_message()), (4, true));
    queue.set_may_grow(true);
    queue.grow_for_message();
    assert_eq!((queue.window(), queue.is_filled_by_message()), (8, false));
    for sn in 4..8 {
        put(&mut queue, sn, 7, &pool);
    }
    queue.grow_for_message();
    assert!(queue.is_filled_by_message() && queue.is_largest());
}

/// A budget of 12 segments, less what is left for sending: two windows of 4, and what the one message that is not too
/// long needs.
#[test]
fn the_window_grows_for_a_whole_message_or_not_at_all() {
    let pool = pool();
    let budget = MemoryBudget::new(reservation(14, SLOT));
    let mut queues =
        [(); 2].map(|()| ReceiveQueue::new(0, (4, 64), SLOT, budget.account()).unwrap());
    for (queue, segments) in queues.iter_mut().zip([9, 8]) {
        for sn in 0..4 {
            put(queue, sn, segments - 1 - sn as u8, &pool);
        }
        queue.grow_for_message();
    }
    let windows = queues.each_ref().map(ReceiveQueue::window);
    assert_eq!((windows, queues[0].growth_refused), ([4, 8], 1));
    assert_eq!(budget.reserved(), reservation(12, SLOT));
    // There is not always room to double it.
    let budget = MemoryBudget::new(reservation(6, SLOT));
    let mut queue = ReceiveQueue::new(0, (4, 64), SLOT, budget.account()).unwrap();
    for sn in 0..4 {
        put(&mut queue, sn, 5 - sn as u8, &pool);
    }
    queue.grow_for_message();
    assert_eq!(queue.window(), 6);
}
