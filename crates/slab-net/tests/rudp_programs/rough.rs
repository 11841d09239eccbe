//! What happens in some worlds only, and breaks sessions: the path is cut for longer than they wait, and the server
//! begins anew without its state.

use crate::common::{Random, sockets::any};
use crate::end::End;
use crate::world::World;
use slab_net::rudp::{CloseReason, Connection, Endpoint, SessionConfig};
use std::time::Duration;

/// Lets sessions give up soon.
pub(crate) fn shorten(session: SessionConfig, random: &mut Random) -> SessionConfig {
    let mut seconds = |from: &[u64]| Duration::from_secs(random.pick(from));
    let session = session
        .keepalive(seconds(&[1, 5, 15]))
        .idle_timeout(seconds(&[20, 60]))
        .unproved_timeout(seconds(&[2, 10]));
    session.dead_link(random.pick(&[3, 20, 1000]))
}

impl World {
    pub(crate) fn disturb_rough(&mut self) {
        if self.random.chance(5) {
            let longest = self.random.pick(&[300, 10_000, 100_000]);
            let time = Duration::from_millis(self.random.below(longest));
            self.path.cut_until = self.path.cut_until.max(self.now() + time);
            self.coverage.cuts += 1;
        }
        if self.random.chance(5) && self.server.is_some() {
            self.restart_server();
        }
    }

    /// Another server takes the place of the first, which reaches nobody any more.
    fn restart_server(&mut self) {
        let Ok(server) = Endpoint::bind(any(), &self.pools[1], self.config.clone()) else {
            return;
        };
        self.coverage.restarts += 1;
        self.monitors.push(server.monitor());
        self.path.replace_server(server.local_addr());
        self.server = Some(server);
        for (_, [_, end]) in &mut self.sessions {
            if let Some(end) = end {
                end.drop_handles(&mut self.random);
                // The other server may close the session without having accepted it.
                end.anew = true;
            }
        }
    }

    /// Whoever talked to a server that is gone knows by now.
    pub(crate) fn check_nobody_waits_for_the_dead(&self) {
        if !self.usage.rough {
            return;
        }
        for (_, ends) in &self.sessions {
            if let [Some(client), Some(server)] = ends
                && let (Some(client), None) = (&client.connection, &server.connection)
            {
                assert!(client.ended().is_some(), "waits for the dead: {client:?}");
            }
        }
    }

    pub(crate) fn count_breaks(&mut self) {
        let ends = self.sessions.iter().flat_map(|session| &session.1);
        let connections = ends.flatten().filter_map(|end| end.connection.as_ref());
        for reason in connections.filter_map(Connection::ended) {
            self.coverage.timed_out += u64::from(reason == CloseReason::TimedOut);
            self.coverage.reset += u64::from(reason == CloseReason::Reset);
        }
    }
}

impl End {
    /// Has its session ended other than by a close, or is it gone with its endpoint?
    pub(crate) fn is_broken(&self) -> bool {
        use CloseReason::{Closed, ClosedByPeer};
        let ended = self.connection.as_ref().map(Connection::ended);
        !matches!(ended, Some(None | Some(Closed | ClosedByPeer)))
    }

    /// It is the server's end of a session that had one `before`, of which it knows nothing: reads from the beginning,
    /// and sends nothing, as it might not be told from what the other had sent.
    pub(crate) fn succeed(&mut self, before: &mut Self, client: &mut Self) {
        self.sent = std::mem::take(&mut before.sent);
        self.writes_left = 0;
        self.anew = true;
        let (messages, bytes) = client.sent.all.clone();
        (client.sent.messages, client.sent.bytes) = (messages.into(), bytes.into());
    }
}
