//! [`Measures`]: what all sessions of an endpoint measure together.
//!
//! Kept once for all of them, because a byte in a session may be there 100 000 times; and in atomics, because
//! sessions run in their applications' tasks as well as in the endpoint's.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// A histogram of round-trip times, with fixed bounds.
///
/// Every sample that enters a session's smoothed round-trip time counts, at most one a datagram. So a session
/// weighs as much as it has traffic.
///
/// ```
/// # use slab_net::PacketPool;
/// use slab_net::rudp::{Endpoint, EndpointConfig, RoundTripTimes, SessionConfig};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let pool = PacketPool::builder().max_memory(32 << 20).headroom(24).build()?;
/// # let bind = || Endpoint::bind("127.0.0.1:0".parse().unwrap(), &pool, EndpointConfig::new(SessionConfig::fast()));
/// let (endpoint, other) = (bind()?, bind()?);
/// let connection = endpoint.connect(other.local_addr())?;
/// connection.send_slice(b"hello").await?;
/// connection.finish().await?;
///
/// let times = endpoint.stats().round_trips;
/// for (n, count) in times.counts().iter().enumerate() {
///     let up_to = RoundTripTimes::BOUNDS_NANOS.get(n).map_or("longer".into(), |nanos| format!("<= {nanos} ns"));
///     println!("{up_to}: {count}");
/// }
/// println!("on average {:?}", times.sum() / times.count() as u32);
/// assert!(times.count() > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoundTripTimes {
    counts: [u64; Self::BOUNDS_NANOS.len() + 1],
    sum_micros: u64,
}

impl RoundTripTimes {
    /// The upper bounds of all buckets but the last, which has none, in nanoseconds: 100 microseconds to 10
    /// seconds. A round trip equal to a bound counts below it.
    ///
    /// A slice, as [`counts`](Self::counts) is: later versions may have more buckets.
    pub const BOUNDS_NANOS: &'static [u64] = &[
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        25_000_000,
        50_000_000,
        100_000_000,
        250_000_000,
        500_000_000,
        1_000_000_000,
        2_500_000_000,
        5_000_000_000,
        10_000_000_000,
    ];

    /// Returns the count of each bucket; not cumulative. The last one counts round trips above all bounds.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the number of round trips.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all round trips.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_micros)
    }
}

#[derive(Debug, Default)]
pub(super) struct Measures {
    round_trips: [AtomicU64; RoundTripTimes::BOUNDS_NANOS.len() + 1],
    round_trip_micros: AtomicU64,
    blocked_sending_micros: AtomicU64,
    blocked_receiving_micros: AtomicU64,
}

impl Measures {
    pub(super) fn round_trip(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = RoundTripTimes::BOUNDS_NANOS.partition_point(|&bound| bound < nanos);
        self.round_trips[bucket].fetch_add(1, Ordering::Relaxed);
        add(&self.round_trip_micros, took);
    }

    pub(super) fn round_trips(&self) -> RoundTripTimes {
        RoundTripTimes {
            counts: core::array::from_fn(|n| self.round_trips[n].load(Ordering::Relaxed)),
            sum_micros: self.round_trip_micros.load(Ordering::Relaxed),
        }
    }

    /// A session had something to send and, for this long, no memory to keep it in.
    pub(super) fn blocked_sending(&self, took: Duration) {
        add(&self.blocked_sending_micros, took);
    }

    /// A peer filled its window for this long while the window could not grow for want of memory.
    pub(super) fn blocked_receiving(&self, took: Duration) {
        add(&self.blocked_receiving_micros, took);
    }

    /// How long sessions were blocked in sending and in receiving.
    pub(super) fn blocked(&self) -> (Duration, Duration) {
        let read = |micros: &AtomicU64| Duration::from_micros(micros.load(Ordering::Relaxed));
        (
            read(&self.blocked_sending_micros),
            read(&self.blocked_receiving_micros),
        )
    }
}

fn add(micros: &AtomicU64, took: Duration) {
    let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    micros.fetch_add(took, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::super::context::Context;
    use super::super::{MemoryBudget, Session, SessionConfig, Side, Time};
    use super::*;
    use crate::packet::PacketPool;
    use std::sync::Arc;

    #[test]
    fn each_round_trip_is_counted_in_its_bucket() {
        let measures = Measures::default();
        let &[first, .., last] = RoundTripTimes::BOUNDS_NANOS else {
            panic!("there are several");
        };
        let [first, last] = [first, last].map(Duration::from_nanos);
        let micro = Duration::from_micros(1);
        for took in [Duration::ZERO, first, first + micro, last, last + micro] {
            measures.round_trip(took);
        }
        let times = measures.round_trips();
        let counts = times.counts();
        assert_eq!((counts[0], counts[1]), (2, 1));
        assert_eq!((counts[15], counts[16]), (1, 1));
        assert_eq!(times.count(), 5);
        assert_eq!(times.sum(), 2 * first + 2 * last + 2 * micro);
        assert!(RoundTripTimes::BOUNDS_NANOS.is_sorted());
    }

    /// Two sessions, and a path that takes 10 ms each way.
    struct Pair {
        pool: PacketPool,
        now: Time,
        ends: [(Session, Arc<Context>); 2],
    }

    const WAY: Duration = Duration::from_millis(10);

    impl Pair {
        /// With this many bytes of budget for each.
        fn new(bytes: [usize; 2]) -> Self {
            let pool = PacketPool::builder().max_memory(32 << 20).build().unwrap();
            let mut sides = [Side::Client, Side::Server].into_iter();
            let ends = bytes.map(|bytes| {
                let budget = MemoryBudget::new(bytes);
                let context = Context::new(SessionConfig::fast(), pool.clone(), budget);
                let context = Arc::new(context);
                let side = sides.next().unwrap();
                let session =
                    Session::open_in(Arc::clone(&context), 1, side, 7, Time::ZERO, (0, 0));
                let mut session = session.unwrap();
                session.trust_address();
                (session, context)
            });
            Self {
                pool,
                now: Time::ZERO,
                ends,
            }
        }

        /// Delivers what one end has to send to the other, after the path's delay.
        fn carry(&mut self, from: usize) {
            let mut scratch = vec![0; 65_507];
            let mut sent = Vec::new();
            while let Some(out) = self.ends[from].0.poll_transmit(self.now, &mut scratch, 1) {
                sent.push(self.pool.try_copy_from_slice(out.contents()).unwrap());
            }
            self.now = self.now + WAY;
            for datagram in sent {
                let to = &mut self.ends[1 - from].0;
                to.handle_datagram(self.now, datagram).unwrap();
            }
            for (session, _) in &mut self.ends {
                session.handle_timeout(self.now);
            }
        }
    }

    #[test]
    fn round_trips_are_counted_where_acknowledgements_arrive() {
        let mut pair = Pair::new([8 << 20; 2]);
        pair.ends[0].0.send_slice(b"hello").unwrap();
        pair.carry(0);
        pair.carry(1);
        let times = pair.ends[0].1.measures.round_trips();
        assert_eq!((times.count(), times.sum()), (1, 2 * WAY));
        assert_eq!(times.counts()[7], 1, "{times:?}");
        assert_eq!(pair.ends[1].1.measures.round_trips().count(), 0);
    }

    #[test]
    fn a_sender_counts_as_blocked_while_it_lacks_memory() {
        // Enough for the promised window, and for a little to send.
        let mut pair = Pair::new([32 * 1536 * 5 / 4 + (64 << 10), 8 << 20]);
        let message = [5; 1000];
        while pair.ends[0].0.send_slice(&message).is_ok() {}
        let error = pair.ends[0].0.send_slice(&message).unwrap_err();
        assert_eq!(error, crate::rudp::SendError::NoMemory);
        let blocked = |pair: &Pair| pair.ends[0].1.measures.blocked();
        assert_eq!(blocked(&pair).0, Duration::ZERO);
        pair.carry(0);
        pair.carry(1);
        assert_eq!(blocked(&pair), (2 * WAY, Duration::ZERO));
        // The acknowledgement made room.
        pair.ends[0].0.send_slice(&message).unwrap();
        pair.carry(0);
        assert_eq!(blocked(&pair).0, 2 * WAY, "it goes on");

        // A session with nothing left to send is not blocked, however long nothing happens.
        while pair.ends[0].0.send_slice(&message).is_ok() {}
        for _ in 0..100 {
            pair.carry(0);
            while pair.ends[1].0.recv().is_some() {}
            pair.carry(1);
        }
        assert!(pair.ends[0].0.is_sent());
        let before = blocked(&pair).0;
        assert!(before > 2 * WAY);
        pair.now = pair.now + Duration::from_secs(5);
        pair.carry(0);
        pair.carry(1);
        assert_eq!(blocked(&pair).0, before);
    }

    #[test]
    fn a_receiver_counts_as_blocked_while_its_full_window_cannot_grow() {
        // Enough for the first window only, or for many times that.
        for (memory, blocks) in [(32 * 1536 * 5 / 4 + 1000, true), (8 << 20, false)] {
            let mut pair = Pair::new([8 << 20, memory]);
            for _ in 0..20 {
                while pair.ends[0].0.send_slice(&[5; 1000]).is_ok() {}
                pair.carry(0);
                while pair.ends[1].0.recv().is_some() {}
                pair.carry(1);
            }
            let blocked = pair.ends[1].1.measures.blocked();
            assert_eq!(blocked.0, Duration::ZERO);
            assert_eq!(blocked.1 > Duration::ZERO, blocks, "{blocked:?}");
            assert!(blocked.1 <= 40 * WAY, "{blocked:?}");
        }
    }
}
