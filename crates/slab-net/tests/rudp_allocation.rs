//! No heap allocation for a packet, once rings and tables have grown: neither in the core, also
//! with losses, nor on sockets.

use slab_net::rudp::{
    Connection, Endpoint, EndpointConfig, MemoryBudget, Session, SessionConfig, Side, Time,
};
use slab_net::{Packet, PacketPool};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: everything is the system allocator's, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        BYTES.with(|bytes| bytes.set(bytes.get() + layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        BYTES.with(|bytes| bytes.set(bytes.get() - layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        let more = new_size as isize - layout.size() as isize;
        BYTES.with(|bytes| bytes.set(bytes.get() + more));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Allocations of this thread so far.
fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

fn pool() -> PacketPool {
    PacketPool::builder()
        .max_memory(64 << 20)
        .headroom(24)
        .build()
        .unwrap()
}

struct Core {
    pool: PacketPool,
    ends: [Session; 2],
    now: Time,
    /// Datagrams on their way to each end.
    wire: [Vec<Packet>; 2],
    scratch: Vec<u8>,
    random: u64,
    delivered: u64,
}

impl Core {
    fn new() -> Self {
        let pool = pool();
        let budget = MemoryBudget::new(32 << 20);
        let config = SessionConfig::fast();
        let open = |side| Session::open(1, &config, side, &pool, &budget, 7, Time::ZERO).unwrap();
        Self {
            ends: [open(Side::Client), open(Side::Server)],
            pool,
            now: Time::ZERO,
            wire: [Vec::with_capacity(10_000), Vec::with_capacity(10_000)],
            scratch: vec![0; 8 << 10],
            random: 99,
            delivered: 0,
        }
    }

    /// A millisecond: both send what they can, and 5 % of the datagrams are lost.
    fn turn(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        for end in 0..2 {
            for datagram in self.wire[end].drain(..) {
                self.ends[end].handle_datagram(self.now, datagram).unwrap();
            }
            let session = &mut self.ends[end];
            if session.poll_timeout().is_some_and(|at| at <= self.now) {
                session.handle_timeout(self.now);
            }
            while let Some(message) = session.recv() {
                assert_eq!(message.len(), 1000);
                self.delivered += 1;
            }
            while let Ok(message) = self.pool.try_copy_from_slice(&[1; 1000]) {
                if session.send_room() == 0 || session.send(message).is_err() {
                    break;
                }
            }
            while let Some(out) = session.poll_transmit(self.now, &mut self.scratch, 16) {
                for datagram in out.contents().chunks(out.segment_size()) {
                    self.random = self
                        .random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    if !(self.random >> 33).is_multiple_of(20) {
                        let packet = self.pool.try_copy_from_slice(datagram).unwrap();
                        self.wire[1 - end].push(packet);
                    }
                }
            }
        }
    }
}

#[test]
fn the_core_allocates_nothing_also_at_five_percent_loss() {
    let mut core = Core::new();
    for _ in 0..500 {
        core.turn();
    }
    let (allocated, delivered) = (allocations(), core.delivered);
    for _ in 0..500 {
        core.turn();
    }
    let delivered = core.delivered - delivered;
    assert!(delivered > 5000, "{delivered} messages");
    assert!(core.ends[0].stats().retransmits_fast > 50);
    assert_eq!(allocations() - allocated, 0, "for {delivered} messages");
}

fn endpoints(config: SessionConfig) -> (Endpoint, Connection) {
    let pool = pool();
    let config = EndpointConfig::new(config);
    let server = Endpoint::bind("127.0.0.1:0".parse().unwrap(), &pool, config.clone()).unwrap();
    let client = Connection::connect(server.local_addr(), &pool, config).unwrap();
    (server, client)
}

#[tokio::test]
async fn an_echo_over_sockets_allocates_nothing() {
    let (server, client) = endpoints(SessionConfig::fast());
    let pool = pool();
    let echo = async {
        let connection = server.accept().await.unwrap();
        while let Some(message) = connection.recv().await.unwrap() {
            connection.send(message).await.unwrap();
        }
    };
    let ask = async {
        let round = || async {
            let message = pool.try_copy_from_slice(&[1; 1000]).unwrap();
            client.send(message).await.unwrap();
            assert_eq!(client.recv().await.unwrap().unwrap().len(), 1000);
        };
        for _ in 0..500 {
            round().await;
        }
        let before = allocations();
        for _ in 0..1000 {
            round().await;
        }
        assert_eq!(allocations() - before, 0);
        client.close().await.unwrap();
    };
    tokio::join!(echo, ask);
}

#[tokio::test]
async fn a_stream_over_sockets_allocates_nothing() {
    let (server, client) = endpoints(SessionConfig::fast().stream(true));
    let mut out = client.into_stream();
    out.write_all(b"x").await.unwrap();
    let mut input = server.accept().await.unwrap().into_stream();
    assert_eq!(input.read_u8().await.unwrap(), b'x');
    let (data, mut buf) = (vec![7; 64 << 10], vec![0; 64 << 10]);
    let mut before = 0;
    // Both in this task, so that no other thread allocates unseen.
    for round in 0..80 {
        if round == 40 {
            before = allocations();
        }
        let writing = out.write_all(&data);
        let reading = input.read_exact(&mut buf);
        let (written, read) = tokio::join!(writing, reading);
        written.unwrap();
        read.unwrap();
        assert!(buf[0] == 7);
    }
    assert_eq!(allocations() - before, 0, "for {} bytes", 40 * data.len());
}

/// What a session costs that nothing is sent on.
#[tokio::test]
async fn an_idle_session_takes_little_of_the_heap_and_none_of_the_pool() {
    let pool = pool();
    let config = EndpointConfig::new(SessionConfig::fast()).memory(1 << 30);
    let any = "127.0.0.1:0".parse().unwrap();
    let endpoint = Endpoint::bind(any, &pool, config).unwrap();
    let mut sessions = Vec::with_capacity(1000);
    let before = BYTES.with(Cell::get);
    for conv in 0..1000 {
        sessions.push(
            endpoint
                .connect_as("127.0.0.1:9".parse().unwrap(), conv)
                .unwrap(),
        );
    }
    let each = (BYTES.with(Cell::get) - before) / 1000;
    assert!(each <= 1500, "{each} bytes each");
    assert_eq!(pool.slab().stats().in_use(), 0);
}
