//! `many-resident`: the resident memory of a process with many idle sessions.

use super::streams::{Transport, resident_growth};
use super::transports::{MANY_SESSIONS, Ours, Quinn, TokioKcp};
use super::{OURS, Size, child_command, figure_of_child};

/// Sessions of each peer, which for as many as ours would need gigabytes, or a socket each.
const PEERS_SESSIONS: usize = 1000;

/// Starts this program again. Returns bytes per end of a session.
///
/// # Panics
/// If the process fails.
pub(super) fn in_child(peer: &str, size: &Size) -> Vec<f64> {
    let sessions = if peer == OURS {
        size.resident_sessions
    } else {
        PEERS_SESSIONS.min(size.resident_sessions)
    };
    figure_of_child(child_command().args(["sessions", peer, &sessions.to_string()]))
}

/// The child's side: prints the figure.
pub(crate) fn child(arguments: &[String]) -> Option<()> {
    let [peer, sessions] = arguments else {
        return None;
    };
    let sessions = sessions.parse().ok()?;
    let bytes = match peer.as_str() {
        OURS => bytes_per_end::<Ours<MANY_SESSIONS>>(sessions),
        "tokio_kcp" => bytes_per_end::<TokioKcp>(sessions),
        "quinn" => bytes_per_end::<Quinn>(sessions),
        _ => return None,
    };
    println!("{bytes}");
    Some(())
}

/// Half of the sessions' ends are clients, half are servers.
fn bytes_per_end<T: Transport>(ends: usize) -> f64 {
    resident_growth::<T>(ends / 2) as f64 / ends as f64
}
