//! Forwards UDP datagrams to a NATS server. Payloads are published as `bytes::Bytes` of pool memory,
//! without a copy on our side; the pool's cap bounds a slow server's backlog.
//!
//!     nats-server &
//!     cargo run --release -p nats_gateway -- --listen 127.0.0.1:4433 --subject udp.in
//!
//! | file | what |
//! |---|---|
//! | `gateway` | from the socket to the server: **start reading here** |
//! | `options` | the command line |
//!
//! The README beside this explains how several gateways share a port, and how their metrics add up.

mod gateway;
#[path = "../../common/interruption.rs"]
mod interruption;
mod options;

use clap::Parser;
use gateway::Gateway;
use interruption::interruption;
use options::Options;
use std::error::Error;
use std::io::Write;
use std::iter::successors;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    match run(&Options::parse()).await {
        Ok(status) => status,
        Err(error) => {
            // If stderr is gone as well, nobody can be told.
            let _ = writeln!(std::io::stderr(), "nats_gateway: {}", with_causes(&*error));
            ExitCode::from(2)
        }
    }
}

/// The error and its causes, in one line.
fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    for cause in successors(error.source(), |&error| error.source()) {
        let cause = cause.to_string();
        // The NATS client's errors have their causes in their own text.
        if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

async fn run(options: &Options) -> Result<ExitCode, Box<dyn Error>> {
    let interrupted = interruption()?;
    let mut gateway = Gateway::start(options).await?;
    say(&format!(
        "udp {} -> {} subject {}, metrics http://{}/",
        gateway.address(),
        options.server(),
        options.subject,
        gateway.metrics_address()
    ))?;
    let ended = tokio::select! {
        () = interrupted => None,
        what = gateway.ended() => Some(what),
    };
    if let Some(what) = &ended {
        tracing::error!("the gateway ends: {what}");
    }
    let outcome = gateway.stop().await;
    say(&outcome.to_string())?;
    Ok(match ended.is_none() && outcome.adds_up() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
