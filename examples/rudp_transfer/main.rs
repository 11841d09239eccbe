//! Moves a file to a server and back over RUDP, through a path that loses and reorders, and
//! verifies its hash at both ends.
//!
//!     cargo run --release --example rudp_transfer
//!     cargo run --release --example rudp_transfer -- --file FILE --loss 5 --delay 25ms
//!     cargo run --release --example rudp_transfer -- --fec 10,3 --encrypt
//!
//! | file | what |
//! |---|---|
//! | `transfer` | a file over a stream: **start reading here** |
//! | `path` | the path between client and server: delay, loss, reordering |
//! | `source` | the file to move: the given one, or one of random bytes |
//! | `progress` | the progress bar |
//! | `options` | the command line |
//!
//! A wrong option is explained on stderr, any other failure to start is one line there, and the exit status is 2;
//! a failed transfer, a hash that differs, or Ctrl-C is one line and status 1. Unless another signal kills it, it
//! leaves no file behind.

#[path = "../common/interruption.rs"]
mod interruption;
mod options;
mod path;
mod progress;
mod source;
mod transfer;

use clap::Parser;
use interruption::interruption;
use options::Options;
use progress::Progress;
use slab_net::PacketPool;
use slab_net::rudp::crypto::AesGcm;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig};
use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::BuildHasher;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let interrupted = match interruption() {
        Ok(interrupted) => interrupted,
        Err(error) => return print_error(&error, 2),
    };
    let source = match source::Source::of(&options) {
        Ok(source) => source,
        Err(error) => return print_error(&*error, 2),
    };
    let endpoints = match start(&options).await {
        Ok(endpoints) => endpoints,
        Err(error) => return print_error(&*error, 2),
    };
    let result = tokio::select! {
        result = run(endpoints, &source) => result,
        () = interrupted => Err("interrupted".into()),
    };
    // Dropping `source` removes the files.
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => print_error(&*error, 1),
    }
}

/// Prints the error and its causes, in one line. If the reader is gone, nobody can be told.
fn print_error(error: &(dyn Error + 'static), status: u8) -> ExitCode {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    let _ = writeln!(std::io::stderr(), "rudp_transfer: {}", texts.join(": "));
    ExitCode::from(status)
}

struct Endpoints {
    pool: PacketPool,
    server: Endpoint,
    client: Connection,
    counts: path::Counts,
}

/// Opens a server, a path to it, and a client at the other end.
async fn start(options: &Options) -> Result<Endpoints> {
    let pool = PacketPool::builder()
        .name("rudp")
        .max_memory(64 << 20)
        .build()?;
    let session = SessionConfig::fast()
        .stream(true)
        .window(options.window, options.window)
        .mtu(options.mtu);
    session.validate()?;
    let mut config = EndpointConfig::new(session);
    if let Some(shards) = options.fec {
        config = config.fec(shards);
    }
    if options.encrypt {
        let random = RandomState::new();
        let key = [1, 2].map(|half| random.hash_one(half).to_le_bytes());
        config = config.aes_gcm(AesGcm::new(key.as_flattened())?);
    }
    let server = Endpoint::bind("127.0.0.1:0".parse()?, &pool, config.clone())?;
    let (address, counts) = path::open(server.local_addr(), options).await?;
    let client = Connection::connect(address, &pool, config)?;
    Ok(Endpoints {
        pool,
        server,
        client,
        counts,
    })
}

async fn run(endpoints: Endpoints, source: &source::Source) -> Result<()> {
    let Endpoints {
        pool,
        server,
        client,
        counts,
    } = endpoints;
    let stored = source.sibling("stored");
    let returned = source.sibling("returned");
    let serving = tokio::spawn(serve(server, stored.clone()));

    let mut stream = client.into_stream();
    let bar = Progress::new("send", source.len());
    let begin = Instant::now();
    let sent = transfer::send(&mut stream, source.path(), &bar).await?;
    // The server sends the file back once it has all of it; its first bytes end the first half.
    let mut incoming = transfer::Incoming::begin(&mut stream).await?;
    let there = begin.elapsed();
    bar.finish(there);

    let bar = Progress::new("receive", source.len());
    let begin = Instant::now();
    let received = incoming.receive(&mut stream, &returned, &bar).await?;
    let back = begin.elapsed();
    bar.finish(back);

    let stored_hash = transfer::hash_file(&stored).await?;
    let stats = stream.connection().stats();
    tokio::io::AsyncWriteExt::shutdown(&mut stream).await?;
    let served = serving.await??;
    drop(stream);
    for file in [&stored, &returned] {
        tokio::fs::remove_file(file).await?;
    }
    if sent != stored_hash || sent != received {
        return Err("the hash differs".into());
    }
    summary(&Summary {
        bytes: source.len(),
        hash: sent,
        times: [there, back],
        retransmits: [stats, served]
            .map(|s| s.retransmits_fast + s.retransmits_tail + s.retransmits_timeout),
        lost: counts.lost(),
        in_use: chunks_left_in_use(&pool).await,
    })?;
    Ok(())
}

/// Stores what the client sends, and sends it back.
async fn serve(server: Endpoint, to: impl AsRef<Path>) -> Result<slab_net::rudp::SessionStats> {
    let connection = server.accept().await.ok_or("the endpoint is gone")?;
    let mut stream = connection.into_stream();
    let mut incoming = transfer::Incoming::begin(&mut stream).await?;
    let silent = Progress::silent();
    incoming.receive(&mut stream, to.as_ref(), &silent).await?;
    transfer::send(&mut stream, to.as_ref(), &silent).await?;
    // Wait until the client has everything and closes.
    while stream.read_packet().await?.is_some() {}
    Ok(stream.connection().stats())
}

/// Returns the chunks in use once all sessions have ended: after a round trip, or when they no longer linger (10 s).
async fn chunks_left_in_use(pool: &PacketPool) -> u64 {
    for _ in 0..1500 {
        if pool.slab().stats().in_use() == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    pool.slab().stats().in_use()
}

struct Summary {
    bytes: u64,
    hash: transfer::Hash,
    times: [Duration; 2],
    retransmits: [u64; 2],
    lost: u64,
    in_use: u64,
}

fn summary(summary: &Summary) -> std::io::Result<()> {
    let rate = |time: Duration| summary.bytes as f64 / 1e6 / time.as_secs_f64();
    let mut out = std::io::stdout().lock();
    writeln!(out, "sha256 {} at both ends", transfer::hex(&summary.hash))?;
    writeln!(
        out,
        "summary bytes={} there_mb_per_s={:.1} back_mb_per_s={:.1} retransmits={},{} \
         lost_on_the_path={} pool_in_use={}",
        summary.bytes,
        rate(summary.times[0]),
        rate(summary.times[1]),
        summary.retransmits[0],
        summary.retransmits[1],
        summary.lost,
        summary.in_use,
    )
}
