//! Tests of the receive queue by itself.

mod growth;

use super::super::super::budget::MemoryBudget;
use super::*;
use bytes::Buf;

const SLOT: usize = 1536;

fn pool() -> PacketPool {
    PacketPool::builder().max_memory(8 << 20).build().unwrap()
}

fn queue(window: u32, max: u32) -> (ReceiveQueue, MemoryBudget) {
    let budget = MemoryBudget::new(16 << 20);
    let queue = ReceiveQueue::new(0, (window, max), SLOT, budget.account()).unwrap();
    (queue, budget)
}

/// The edge of the window, as the peer has just been told it.
fn edge(queue: &ReceiveQueue) -> u32 {
    queue.next().wrapping_add(queue.advertised())
}

/// A segment that comes by itself.
fn put(queue: &mut ReceiveQueue, sn: u32, frg: u8, pool: &PacketPool) -> Inserted {
    let packet = pool.try_copy_from_slice(&sn.to_le_bytes()).unwrap();
    put_packet(queue, sn, frg, packet, pool, &mut BatchBuffer::default())
}

fn put_packet(
    queue: &mut ReceiveQueue,
    sn: u32,
    frg: u8,
    packet: Packet,
    pool: &PacketPool,
    batch: &mut BatchBuffer,
) -> Inserted {
    let place = (sn, edge(queue));
    queue.insert(place, Time::ZERO, frg, packet, pool, batch)
}

#[test]
fn order_is_restored_and_duplicates_and_segments_beyond_are_refused() {
    let pool = pool();
    let (mut queue, budget) = queue(4, 4);
    assert_eq!(put(&mut queue, 1, 0, &pool), Inserted::OutOfOrder);
    assert_eq!(put(&mut queue, 1, 0, &pool), Inserted::Duplicate);
    assert_eq!(put(&mut queue, 4, 0, &pool), Inserted::BeyondWindow);
    assert_eq!(put(&mut queue, 3, 0, &pool), Inserted::OutOfOrder);
    assert_eq!(queue.advertised(), 4);
    assert_eq!(put(&mut queue, 0, 0, &pool), Inserted::InOrder);
    assert_eq!((queue.next(), queue.advertised()), (2, 2));
    assert_eq!(put(&mut queue, 2, 0, &pool), Inserted::InOrder);
    assert_eq!((queue.advertised(), queue.complete()), (0, 4));
    assert_eq!(put(&mut queue, 0, 0, &pool), Inserted::Duplicate);
    for sn in 0..4_u32 {
        assert_eq!(queue.front_message(), Some((1, 4)));
        assert_eq!(queue.pop().unwrap(), sn.to_le_bytes()[..]);
    }
    assert!(queue.pop().is_none());
    assert_eq!((queue.charged(), queue.advertised()), (0, 4));
    drop(queue);
    assert_eq!((budget.reserved(), pool.slab().stats().in_use()), (0, 0));
}

/// It came before all that it follows, and takes no memory; if it fell out of the window, the queue would never get
/// past it.
#[test]
fn a_window_does_not_narrow_in_front_of_a_mark_of_the_end() {
    let pool = pool();
    let (mut queue, _budget) = queue(32, 64);
    assert!(queue.try_grow(64, Account::reserve));
    let mut batch = BatchBuffer::default();
    let mark = put_packet(&mut queue, 32, END, Packet::new(), &pool, &mut batch);
    assert_eq!(mark, Inserted::OutOfOrder);
    queue.shrink();
    queue.narrow();
    queue.apply_narrow();
    for sn in 0..32 {
        assert_eq!(put(&mut queue, sn, 0, &pool), Inserted::InOrder);
    }
    assert!(queue.is_at_end());
}

/// Error correction puts what it computed between the datagrams of a receive buffer, in buffers of its own.
#[test]
fn a_buffer_that_lies_behind_another_is_charged_by_itself() {
    const BYTES: usize = 4096;
    let pool = pool();
    let (mut queue, _budget) = queue(32, 32);
    let mut buffers: Vec<_> = (0..64)
        .map(|_| pool.try_copy_from_slice(&[7; BYTES]).unwrap())
        .collect();
    buffers.sort_by_key(|buffer| buffer.as_ptr());
    let address = |at: usize| buffers[at].as_ptr().addr();
    let first = (0..63).find(|&at| address(at) + BYTES == address(at + 1));
    let first = first.expect("two chunks of a slab");
    let from_both = [
        buffers[first].slice(2000..2500),
        buffers[first + 1].slice(..500),
        buffers[first].slice(3000..3500),
    ];
    drop(buffers);

    let mut batch = BatchBuffer::default();
    for (sn, packet) in (0..).zip(from_both) {
        let inserted = put_packet(&mut queue, sn, 0, packet, &pool, &mut batch);
        assert_eq!(inserted, Inserted::InOrder);
    }
    assert!(pool.slab().stats().in_use_bytes() <= queue.charged());
    while queue.pop().is_some() {}
    assert_eq!(queue.charged(), 0);
}

/// Every slab serves other classes: the segments' class has no free chunk, a larger one has.
#[test]
fn the_awaited_segment_is_accepted_into_a_chunk_of_any_class() {
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    let full = |len| -> Vec<_> { std::iter::from_fn(|| pool.try_alloc(len).ok()).collect() };
    let mut large: Vec<_> = (0..12).map(|_| pool.try_alloc(65_536).unwrap()).collect();
    let others = full(SLOT);
    large.drain(..3);
    assert!(pool.try_alloc(SLOT).is_err() && pool.try_alloc(65_536).is_ok());

    let budget = MemoryBudget::new(reservation(8, SLOT));
    let mut queue = ReceiveQueue::new(0, (8, 8), SLOT, budget.account()).unwrap();
    let insert = |queue: &mut ReceiveQueue, sn: u32, frg, transient| {
        // The segment is alone in a buffer; one that must not be kept does not come from the pool.
        let packet = if transient {
            Packet::from(vec![7; SLOT])
        } else {
            let mut buf = pool.try_alloc(65_536).unwrap();
            buf.extend_from_slice(&[7; SLOT]);
            buf.freeze()
        };
        let mut batch = BatchBuffer {
            transient,
            ..BatchBuffer::default()
        };
        put_packet(queue, sn, frg, packet, &pool, &mut batch)
    };
    for transient in [false, true] {
        let next = queue.next();
        let insert = |queue: &mut ReceiveQueue, ahead| insert(queue, next + ahead, 0, transient);
        assert_eq!(insert(&mut queue, 1), Inserted::NoMemory);
        assert_eq!(insert(&mut queue, 0), Inserted::InOrder);
        // The segment behind it is not kept until it has been read.
        assert_eq!(insert(&mut queue, 1), Inserted::NoMemory);
        assert_eq!(queue.pop().unwrap().len(), SLOT);
        assert_eq!(insert(&mut queue, 1), Inserted::InOrder);
        queue.pop();
        // Nor is an awaited one from a peer that has not proved its address.
        queue.set_may_grow(false);
        assert_eq!(insert(&mut queue, 2), Inserted::NoMemory);
        queue.set_may_grow(true);
        assert_eq!((queue.charged(), queue.oversize), (0, 0));
    }
    // Of a message that cannot be read yet, the next segment is kept as well, within bounds. An empty one needs
    // nothing.
    let next = queue.next();
    let mut empty = pool.try_alloc(65_536).unwrap();
    empty.extend_from_slice(b"header");
    let mut empty = empty.freeze();
    empty.advance(6);
    let mut batch = BatchBuffer::default();
    let inserted = put_packet(&mut queue, next, 2, empty, &pool, &mut batch);
    assert_eq!(inserted, Inserted::InOrder);
    assert_eq!(insert(&mut queue, next + 1, 1, false), Inserted::InOrder);
    assert_eq!(queue.oversize, 65_536 - SLOT);
    assert_eq!(insert(&mut queue, next + 2, 0, false), Inserted::NoMemory);
    drop(others);
    assert_eq!(insert(&mut queue, next + 2, 0, false), Inserted::InOrder);
    queue.pop();
    assert_eq!(queue.oversize, 65_536 - SLOT);
    while queue.pop().is_some() {}
    assert_eq!((queue.charged(), queue.oversize), (0, 0));
    drop(queue);
    assert_eq!(budget.reserved(), 0);
}

/// A chunk for each would be more than they may take together. Segments lie in buffers that may be kept, or not.
#[test]
fn a_message_of_awaited_segments_shares_one_chunk() {
    const SEGMENTS: u32 = 20;
    for transient in [false, true] {
        let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
        // Chunks of 64 KiB are free, and no others.
        let large: Vec<_> = (0..16).map(|_| pool.try_alloc(65_536).unwrap()).collect();
        drop(large);
        let kept = pool.try_alloc(65_536).unwrap();
        let _rest: Vec<_> = std::iter::from_fn(|| pool.try_alloc(SLOT).ok()).collect();
        drop(kept);
        let budget = MemoryBudget::new(reservation(32, SLOT));
        let mut queue = ReceiveQueue::new(0, (32, 32), SLOT, budget.account()).unwrap();
        for round in 0..2 {
            for n in 0..SEGMENTS {
                let segment = [n as u8; 1376];
                let packet = match pool.try_alloc(65_536) {
                    Ok(mut buf) if !transient => {
                        buf.extend_from_slice(&segment);
                        buf.freeze()
                    }
                    _ => Packet::from(segment.to_vec()),
                };
                let mut batch = BatchBuffer {
                    transient,
                    ..BatchBuffer::default()
                };
                let (sn, frg) = (queue.next(), (SEGMENTS - 1 - n) as u8);
                let inserted = put_packet(&mut queue, sn, frg, packet, &pool, &mut batch);
                assert_eq!(inserted, Inserted::InOrder, "{transient} {round} {n}");
                assert!(queue.oversize <= MAX_OVERSIZE);
            }
            assert_eq!(queue.front_message(), Some((20, 20 * 1376)));
            for n in 0..SEGMENTS {
                assert_eq!(queue.pop().unwrap(), [n as u8; 1376][..]);
            }
            assert_eq!((queue.charged(), queue.oversize, queue.extra), (0, 0, 0));
            assert_eq!(queue.advertised(), 32);
        }
    }
}

#[test]
fn fragments_count_down_to_the_end_of_a_message() {
    let pool = pool();
    let (mut queue, _budget) = queue(16, 16);
    put(&mut queue, 0, 2, &pool);
    queue.pop();
    // What precedes `sn` 2 is not known; what precedes `sn` 1 is, read or not.
    assert!(
        [1, 0, 3, 2, END].map(|frg| queue.is_frg_consistent(1, frg, None))
            == [true, false, false, false, false]
    );
    assert!((0..=END).all(|frg| queue.is_frg_consistent(2, frg, None)));
    assert!(
        !queue.is_frg_consistent(2, 0, Some((1, 2))) && queue.is_frg_consistent(2, 1, Some((1, 2)))
    );
    put(&mut queue, 2, 0, &pool);
    assert!(queue.is_frg_consistent(1, 1, None) && !queue.is_frg_consistent(1, 2, None));
    assert!(
        (0..=END).all(|frg| queue.is_frg_consistent(3, frg, None)),
        "another message"
    );
    put(&mut queue, 4, 1, &pool);
    assert!(
        [0, 1, 2, 3].map(|frg| queue.is_frg_consistent(3, frg, None)) == [true, false, true, false]
    );
    assert!(queue.is_frg_consistent(0, 77, None), "it was here");
}

/// The peer sends no more than it was told.
#[test]
fn a_message_that_fills_the_window_is_copied_out_of_its_own_buffers() {
    for first_read_early in [true, false] {
        let pool = pool();
        let (mut queue, _budget) = queue(256, 256);
        let mut batch = BatchBuffer::default();
        for (sn, packet) in super_buffer(&pool).into_iter().enumerate() {
            // The first is a message by itself; the others begin one of 256 segments.
            let frg = if sn == 0 { 0 } else { 254 };
            put_packet(&mut queue, sn as u32, frg, packet, &pool, &mut batch);
        }
        if first_read_early {
            queue.pop();
        }
        for sn in 40..256 {
            assert_ne!(queue.advertised(), 0, "at {sn}");
            assert_eq!(put(&mut queue, sn, 254, &pool), Inserted::InOrder);
        }
        if !first_read_early {
            assert_eq!(queue.advertised(), 0);
            queue.pop();
            let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1400).ok()).collect();
            queue.make_room(&pool, &mut batch);
            assert_eq!(queue.advertised(), 0, "no memory");
            drop(held);
            queue.make_room(&pool, &mut batch);
        }
        assert_ne!(queue.advertised(), 0);
        assert_eq!(put(&mut queue, 256, 0, &pool), Inserted::InOrder);
        assert_eq!((queue.front_message().unwrap().0, queue.copied), (256, 39));
    }
}

/// A buffer of 40 segments of 1400 bytes, as GRO makes it.
fn super_buffer(pool: &PacketPool) -> Vec<Packet> {
    let mut buf = pool.try_alloc(60_000).unwrap();
    buf.resize(40 * 1400, 7);
    let whole = buf.freeze();
    (0..40)
        .map(|n| whole.slice(n * 1400..(n + 1) * 1400))
        .collect()
}

#[test]
fn a_shared_buffer_is_charged_once_and_given_back_with_its_last_segment() {
    let pool = pool();
    let (mut queue, _budget) = queue(512, 512);
    let mut batch = BatchBuffer::default();
    for (sn, packet) in super_buffer(&pool).into_iter().enumerate() {
        put_packet(&mut queue, sn as u32, 0, packet, &pool, &mut batch);
    }
    assert_eq!((queue.charged(), queue.copied), (65_536, 0));
    assert_eq!(queue.advertised(), 512 - 40);
    for _ in 0..39 {
        queue.pop();
    }
    assert_eq!(queue.charged(), 65_536);
    assert_eq!(
        queue.advertised(),
        512 - 40,
        "nothing is promised that is not there"
    );
    queue.pop();
    assert_eq!(queue.advertised(), 512);
    assert_eq!((queue.charged(), pool.slab().stats().in_use()), (0, 0));
}

#[test]
fn one_segment_of_each_of_many_buffers_pins_at_most_the_reservation() {
    let pool = pool();
    let (mut queue, _budget) = queue(512, 512);
    let class = pool.slab().size_classes().sizes().len() - 1;
    for sn in 0..512 {
        let packet = super_buffer(&pool).swap_remove(3);
        let mut batch = BatchBuffer::default();
        let inserted = put_packet(&mut queue, sn, 0, packet, &pool, &mut batch);
        assert_eq!(inserted, Inserted::InOrder);
        assert!(queue.charged() <= queue.reserved());
        let held = pool.slab().stats().classes()[class].in_use;
        assert!(held <= 3, "{held} buffers held");
    }
    assert!(queue.copied >= 509);
    while queue.pop().is_some() {}
    assert_eq!(pool.slab().stats().in_use(), 0);
}

#[test]
fn a_segment_is_refused_if_the_pool_has_no_chunk_for_its_copy() {
    let pool = PacketPool::builder().max_memory(1 << 20).build().unwrap();
    let (mut queue, _budget) = queue(8, 8);
    let packet = super_buffer(&pool).swap_remove(0);
    let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1400).ok()).collect();
    let mut batch = BatchBuffer::default();
    // Not the segment that the reader waits for.
    let inserted = put_packet(&mut queue, 1, 0, packet, &pool, &mut batch);
    assert_eq!(inserted, Inserted::NoMemory);
    assert_eq!((queue.next(), queue.charged()), (0, 0));
    drop(held);
    assert_eq!(pool.slab().stats().in_use(), 0);
}

/// The pool may run out of chunks while segments are copied out of several buffers, a few out of each.
#[test]
fn copying_out_of_buffers_in_part_promises_no_more_than_is_reserved() {
    const BYTES: usize = 8192;
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let (mut queue, budget) = queue(32, 32);
    let reserved = budget.reserved();
    let buffer = || pool.try_copy_from_slice(&[7; BYTES]).unwrap();
    let [first, odd, even] = [(); 3].map(|()| buffer());
    let insert = |queue: &mut ReceiveQueue, buffer: &Packet, sns: &[u32]| {
        let mut batch = BatchBuffer::default();
        for &sn in sns {
            let packet = buffer.slice(sn as usize * 100..sn as usize * 100 + 50);
            put_packet(queue, sn, 50 - sn as u8, packet, &pool, &mut batch);
        }
    };
    insert(&mut queue, &first, &[0, 1, 2, 3, 4, 5]);
    insert(&mut queue, &even, &[6, 8, 10, 12, 14, 16]);
    insert(&mut queue, &odd, &[7, 9, 11, 13, 15, 17]);
    assert_eq!((queue.copied, queue.unread()), (0, 18));
    drop([first, even, odd]);
    // A reader of bytes takes what there is; those slots are promised again once their buffer is gone.
    for _ in 0..5 {
        queue.pop();
    }
    assert_eq!(queue.deferred, 5);
    let mut held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(50).ok()).collect();
    held.truncate(held.len() - 11);
    queue.copy_out_of_buffers(&pool);
    assert_eq!(queue.copied, 11);
    assert!(budget.reserved() > reserved);
    while queue.pop().is_some() {}
    queue.shrink();
    assert_eq!(budget.reserved(), reserved);
}

/// A peer may send many segments beyond the window in one datagram.
#[test]
fn a_full_window_is_searched_for_room_once_a_batch() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let (mut queue, _budget) = queue(32, 32);
    queue.set_may_grow(false);
    let buffer = pool.try_copy_from_slice(&[7; 8192]).unwrap();
    let mut batch = BatchBuffer::default();
    let insert = |queue: &mut ReceiveQueue, sn: u32, batch: &mut BatchBuffer| {
        let packet = buffer.slice(sn as usize * 100..sn as usize * 100 + 50);
        put_packet(queue, sn, 50 - sn as u8, packet, &pool, batch)
    };
    for sn in 0..20 {
        assert_eq!(insert(&mut queue, sn, &mut batch), Inserted::InOrder);
    }
    for _ in 0..5 {
        queue.pop();
    }
    let held: Vec<_> = std::iter::from_fn(|| pool.try_alloc(50).ok()).collect();
    let mut batch = BatchBuffer::default();
    assert_eq!(insert(&mut queue, 32, &mut batch), Inserted::BeyondWindow);
    drop(held);
    assert_eq!(insert(&mut queue, 32, &mut batch), Inserted::BeyondWindow);
    assert_eq!(queue.copied, 0, "there is memory, but only the next looks");
    let mut batch = BatchBuffer::default();
    assert_eq!(insert(&mut queue, 32, &mut batch), Inserted::OutOfOrder);
    assert_eq!(queue.copied, 15);
}

/// The rest of a batch begins another.
#[test]
fn a_buffer_that_was_copied_out_of_takes_no_more_segments() {
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    let (mut queue, budget) = queue(32, 32);
    let reserved = budget.reserved();
    let buffer = pool.try_copy_from_slice(&[7; 8192]).unwrap();
    for sns in [0..20, 20..34] {
        let mut batch = BatchBuffer::default();
        for sn in sns {
            let packet = buffer.slice(sn as usize * 100..sn as usize * 100 + 50);
            let inserted = put_packet(&mut queue, sn, 50 - sn as u8, packet, &pool, &mut batch);
            assert_eq!(inserted, Inserted::InOrder);
        }
        // A reader of bytes takes what there is.
        for _ in 0..5 {
            queue.pop();
        }
    }
    assert!(queue.copied > 0);
    while queue.pop().is_some() {}
    assert_eq!((queue.charged(), queue.deferred), (0, 0));
    queue.shrink();
    assert_eq!(budget.reserved(), reserved);
}
