//! What is logged of what a queue drops.

use crate::udp_common::warnings::{field, on_warning};
use crate::{Source, make, number};
use slab_net::PacketPool;
use slab_net::pipeline::{Overflow, Priority, priority_queue};
use slab_net::udp::PacketBatch;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[tokio::test]
async fn the_log_gives_the_reason_that_the_counters_give() {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&reasons);
    let _watching = on_warning(move |event| log.lock().unwrap().extend(field(event, "reason")));
    let by_number = |batch: &PacketBatch| match number(batch) {
        0 => Priority::Low,
        _ => Priority::High,
    };
    let mut source = Source::new();
    for (numbers, (sender, receiver), expected) in [
        ([0, 1], make(1, Overflow::DropNewest), "queue_full"),
        ([0, 1], make(1, Overflow::DropOldest), "policy"),
        (
            [0, 0],
            priority_queue(1.try_into().unwrap(), by_number),
            "queue_full",
        ),
        (
            [0, 1],
            priority_queue(1.try_into().unwrap(), by_number),
            "policy",
        ),
    ] {
        for n in numbers {
            sender.send(source.batch(n).await).await.unwrap();
        }
        let stats = receiver.monitor().stats();
        let counted = match expected {
            "policy" => stats.dropped_policy,
            _ => stats.dropped_queue_full,
        };
        assert_eq!((counted, stats.dropped()), (1, 1));
        assert_eq!(std::mem::take(&mut *reasons.lock().unwrap()), [expected]);
        drop((sender, receiver));
        assert_eq!(
            std::mem::take(&mut *reasons.lock().unwrap()),
            [expected],
            "its end"
        );
    }
}

/// A full queue that goes on dropping for one reason has stopped dropping for the other.
#[tokio::test]
async fn what_a_priority_queue_drops_for_one_reason_does_not_prolong_the_other() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    let _watching = on_warning(move |event| {
        let is_end = field(event, "datagrams").is_some();
        let event = field(event, "reason").map(|reason| (reason, is_end));
        log.lock().unwrap().extend(event);
    });
    let logged = |reason: &str, is_end| (reason.to_owned(), is_end);
    let by_number = |batch: &PacketBatch| match number(batch) {
        0 => Priority::Low,
        1 => Priority::Normal,
        _ => Priority::High,
    };
    let mut source = Source::new();
    let (sender, _receiver) = priority_queue(1.try_into().unwrap(), by_number);
    for n in [0, 0] {
        sender.send(source.batch(n).await).await.unwrap();
    }
    assert_eq!(*events.lock().unwrap(), [logged("queue_full", false)]);
    // An episode ends after a second without a drop.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    sender.send(source.batch(1).await).await.unwrap();
    let both = [logged("policy", false), logged("queue_full", true)];
    assert_eq!(events.lock().unwrap().split_off(1), both);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    sender.send(source.batch(0).await).await.unwrap();
    let both = [logged("queue_full", false), logged("policy", true)];
    assert_eq!(events.lock().unwrap().split_off(1), both);
}

#[tokio::test]
async fn a_queue_that_has_room_again_says_what_it_dropped() {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&ends);
    let _watching = on_warning(move |event| {
        let end = field(event, "reason").zip(field(event, "datagrams"));
        log.lock().unwrap().extend(end);
    });
    let by_number = |batch: &PacketBatch| match number(batch) {
        0 => Priority::Low,
        _ => Priority::High,
    };
    let mut source = Source::new();
    let queues = [
        make(1, Overflow::DropNewest),
        make(1, Overflow::DropOldest),
        priority_queue(1.try_into().unwrap(), by_number),
    ];
    for (sender, _) in &queues {
        for n in [0, 0, 1] {
            sender.send(source.batch(n).await).await.unwrap();
        }
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for (sender, receiver) in &queues {
        receiver.recv().await.unwrap();
        sender.send(source.batch(2).await).await.unwrap();
    }
    let ended = ends.lock().unwrap().clone();
    let ended: Vec<_> = ended.iter().map(|(why, n)| (&**why, &**n)).collect();
    assert_eq!(
        ended,
        [
            ("queue_full", "2"),
            ("policy", "2"),
            ("queue_full", "1"),
            ("policy", "1")
        ]
    );
}

/// What is logged when the queue goes: one batch of two datagrams, and one of three.
#[tokio::test]
async fn the_log_counts_the_datagrams_of_a_batch() {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&ends);
    let _watching = on_warning(move |event| {
        let end = field(event, "reason").zip(field(event, "datagrams"));
        log.lock().unwrap().extend(end);
    });
    let pool = PacketPool::builder().max_memory(8 << 20).build().unwrap();
    for (overflow, reason) in [
        (Overflow::DropOldest, "policy"),
        (Overflow::DropNewest, "queue_full"),
    ] {
        let (sender, receiver) = make(1, overflow);
        // The first or the last stays in the queue.
        let counts = match overflow {
            Overflow::DropOldest => [2, 3, 7],
            _ => [7, 2, 3],
        };
        for datagrams in counts {
            let contents = vec![0; 10 * datagrams];
            let batch = PacketBatch::try_copy_from_slice(&pool, &contents, 10, crate::LOOPBACK);
            sender.send(batch.unwrap()).await.unwrap();
        }
        assert_eq!(receiver.monitor().stats().dropped(), 5);
        drop((sender, receiver));
        let ended = std::mem::take(&mut *ends.lock().unwrap());
        assert_eq!(ended, [(reason.to_owned(), "5".to_owned())]);
    }
}
