//! Datagrams from UDP to a NATS server. The payloads go on as `bytes::Bytes` of the pool's memory,
//! without a copy on our side; the pool's cap is what holds a slow server's backlog.
//!
//!     nats-server &
//!     cargo run --release -p nats_gateway -- --listen 127.0.0.1:4433 --subject udp.in
//!
//! | file | what |
//! |---|---|
//! | `gateway` | from the socket to the server: **start reading here** |
//! | `options` | the command line |
//!
//! Several of them behind one port, and how their metrics add up: see the README beside this.

mod gateway;
mod options;

use clap::Parser;
use gateway::Gateway;
use options::Options;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    match run(&Options::parse()).await {
        Ok(status) => status,
        Err(error) => {
            // If stderr is gone as well, there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "nats_gateway: {error}");
            ExitCode::from(2)
        }
    }
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let gateway = Gateway::start(options).await?;
    say(&format!(
        "udp {} -> {} subject {}, metrics http://{}/",
        gateway.address(),
        options.nats,
        options.subject,
        gateway.metrics_address()
    ))?;
    tokio::signal::ctrl_c().await?;
    let outcome = gateway.stop().await;
    say(&outcome.to_string())?;
    Ok(match outcome.adds_up() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
