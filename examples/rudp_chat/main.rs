//! A chat over RUDP, line by line, with a peer of any implementation of KCP.
//!
//!     cargo run --example rudp_chat -- --with-kcp-go        # brings a kcp-go client along (needs Go)
//!     cargo run --example rudp_chat -- listen 127.0.0.1:9999
//!     cargo run --example rudp_chat -- connect 127.0.0.1:9999
//!     (cd interop/kcp-go && go run . -stream chat 127.0.0.1:9999)
//!
//! Both take `--fec 10,3` and `--key` with 32 or 64 hexadecimal digits; kcp-go's are `-shards=10,3`
//! and `-key=`.
//!
//! Lines from the terminal go to the peer and the peer's lines to the terminal, until either side ends, for
//! example by Ctrl-C. A wrong option is explained on stderr, any other failure is one line there, and the exit status
//! is 2.

#[path = "../common/address.rs"]
mod address;

use address::address;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use slab_net::PacketPool;
use slab_net::rudp::crypto::AesGcm;
use slab_net::rudp::fec::FecShards;
use slab_net::rudp::{Connection, Endpoint, EndpointConfig, SessionConfig, Stream};
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Runtime;

/// Line-by-line chat over RUDP with a peer that uses any implementation of KCP
#[derive(Debug, Parser)]
#[command(name = "rudp_chat", arg_required_else_help = true)]
struct Options {
    /// Start a kcp-go client, exchange a line with it in each direction, and exit (needs Go)
    #[arg(long)]
    with_kcp_go: bool,
    /// Encrypt with AES-GCM and this key of 16 or 32 bytes in hexadecimal; the peer needs the same key
    #[arg(long, global = true, value_name = "HEX", value_parser = key)]
    key: Option<Key>,
    /// Forward error correction, such as 10,3; the peer needs the same numbers
    #[arg(long, global = true, value_name = "DATA,PARITY", value_parser = shards)]
    fec: Option<FecShards>,
    #[command(subcommand)]
    mode: Option<Mode>,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Wait for a peer
    Listen {
        /// Address to listen on
        #[arg(value_parser = address)]
        address: SocketAddr,
    },
    /// Connect to a peer that listens
    Connect {
        /// Address that the peer listens on
        #[arg(value_parser = address)]
        address: SocketAddr,
    },
}

/// A key, and its text form.
#[derive(Debug, Clone)]
struct Key {
    aes_gcm: AesGcm,
    hex: String,
}

fn key(hex: &str) -> Result<Key, String> {
    let digits: Option<Vec<u8>> = hex
        .chars()
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits
        .filter(|digits| digits.len() % 2 == 0)
        .ok_or("expected pairs of hexadecimal digits")?;
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|two| two.iter().fold(0, |a, b| a << 4 | b))
        .collect();
    Ok(Key {
        aes_gcm: AesGcm::new(&bytes).map_err(|error| error.to_string())?,
        hex: hex.into(),
    })
}

fn shards(text: &str) -> Result<FecShards, String> {
    let numbers = text
        .split_once(',')
        .and_then(|(data, parity)| Some((data.trim().parse().ok()?, parity.trim().parse().ok()?)));
    let (data, parity) = numbers.ok_or("expected two numbers such as 10,3")?;
    FecShards::new(data, parity).map_err(|error| error.to_string())
}

impl Options {
    fn config(&self) -> EndpointConfig {
        let mut config = EndpointConfig::new(SessionConfig::fast().stream(true));
        if let Some(key) = &self.key {
            config = config.aes_gcm(key.aes_gcm.clone());
        }
        if let Some(shards) = self.fec {
            config = config.fec(shards);
        }
        config
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.with_kcp_go == options.mode.is_some() {
        let which = "expected one of listen, connect and --with-kcp-go";
        Options::command()
            .error(ErrorKind::MissingSubcommand, which)
            .exit()
    }
    let result = Runtime::new().map_err(Into::into).and_then(|runtime| {
        let result = runtime.block_on(run(options));
        // The thread that reads the terminal cannot be stopped, and need not be waited for.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "rudp_chat: {}", with_causes(&*error));
            ExitCode::from(2)
        }
    }
}

/// The error and its causes, in one line.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<_> = chain.map(ToString::to_string).collect();
    texts.join(": ")
}

/// What a peer says, with the characters escaped that a terminal does not show or takes for commands.
fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    shown
}

/// Prints a line. A reader that has gone away is no reason to stop.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

async fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let pool = PacketPool::builder().max_memory(8 << 20).build()?;
    let config = options.config();
    let local = "127.0.0.1:0".parse()?;
    let (address, client) = match options.mode {
        Some(Mode::Connect { address }) => {
            let connection = Connection::connect(address, &pool, config)?;
            return chat(connection.into_stream()).await;
        }
        Some(Mode::Listen { address }) => (address, false),
        None => (local, true),
    };
    let server = Endpoint::bind(address, &pool, config)?;
    say(&format!("listening on {}", server.local_addr()));
    if client {
        return demonstrate(&server, &options).await;
    }
    let connection = server.accept().await.ok_or("the endpoint is gone")?;
    say(&format!("{} is here", connection.peer_addr()));
    chat(connection.into_stream()).await
}

/// The most bytes of a peer's line that are kept and shown as one; the rest is shown as another.
const MAX_LINE: u64 = 4096;

/// Connects the terminal and the peer until either ends; at Ctrl-C, closes the session.
async fn chat(stream: Stream) -> Result<(), Box<dyn Error>> {
    let (read, mut write) = tokio::io::split(stream);
    let mut theirs = BufReader::new(read);
    let mut ours = BufReader::new(tokio::io::stdin()).lines();
    // Two loops: neither waits for the other.
    let hear = async {
        let mut line = Vec::new();
        while (&mut theirs)
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)
            .await?
            > 0
        {
            let text = String::from_utf8_lossy(&line);
            say(&format!("> {}", printable(text.trim_end())));
            line.clear();
        }
        Ok(())
    };
    let talk = async {
        while let Some(line) = ours.next_line().await? {
            write.write_all(format!("{line}\n").as_bytes()).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = hear => ended,
        ended = talk => ended,
        interrupted = tokio::signal::ctrl_c() => interrupted,
    }?;
    let stream = theirs.into_inner().unsplit(write);
    stream.connection().close().await?;
    Ok(())
}

/// Runs both sides of a chat with a kcp-go client.
async fn demonstrate(server: &Endpoint, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut go = start_kcp_go(server.local_addr(), options)?;
    let mut typed = go.stdin.take().ok_or("no input")?;
    let mut shown = BufReader::new(go.stdout.take().ok_or("no output")?).lines();

    let hello = "hello from kcp-go";
    typed.write_all(format!("{hello}\n").as_bytes()).await?;
    let connection = server.accept().await.ok_or("the endpoint is gone")?;
    let (read, mut write) = tokio::io::split(connection.into_stream());
    let received = BufReader::new(read).lines().next_line().await?;
    say(&format!(
        "kcp-go says:  {}",
        received.as_deref().unwrap_or("nothing")
    ));

    let answer = "hello from packet-slab";
    write.write_all(format!("{answer}\n").as_bytes()).await?;
    let displayed = shown.next_line().await?;
    say(&format!(
        "kcp-go shows: {}",
        displayed.as_deref().unwrap_or("nothing")
    ));
    drop(typed);
    go.kill().await?;
    if received.as_deref() != Some(hello) || displayed.as_deref() != Some(answer) {
        return Err("the lines did not arrive as they were typed".into());
    }
    Ok(())
}

fn start_kcp_go(server: SocketAddr, options: &Options) -> Result<Child, Box<dyn Error>> {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/interop/kcp-go");
    let program = std::env::temp_dir().join(format!("kcp-go-peer-{}", std::process::id()));
    let built = std::process::Command::new("go")
        .current_dir(sources)
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg(".")
        .status()
        .map_err(|error| format!("Go is needed: {error}"))?;
    if !built.success() {
        return Err("the kcp-go client could not be built".into());
    }
    let child = Command::new(&program)
        .arg("-stream")
        .args(options.key.iter().map(|key| format!("-key={}", key.hex)))
        .args(
            options
                .fec
                .map(|fec| format!("-shards={},{}", fec.data(), fec.parity())),
        )
        .args(["chat", &server.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    // On Unix the program keeps running after its file is removed.
    let _ = std::fs::remove_file(&program);
    Ok(child?)
}
