//! The window that the peer has told: how far this end may send.

use super::super::config::DEFAULT_WINDOW;
use super::Session;
use super::send::Cause;
use super::sn::{before, diff};

impl Session {
    /// The peer takes nothing any more, whatever window it has told. What would be sent again and again without an
    /// answer would make a peer that is there seem dead.
    pub(super) fn stop_sending(&mut self) {
        self.peer_takes_nothing = true;
        self.peer.window_edge = self.send.una();
        while let Some(sn) = self.send.oldest() {
            self.send.mark_lost(sn, Cause::Fast, true);
        }
    }

    pub(super) fn on_window(&mut self, una: u32, mut window: u32, may_narrow: bool) {
        if window == 0 {
            self.peer.held_back_until = self.send.next();
        }
        if self.peer_takes_nothing {
            window = 0; // This may have been sent earlier.
        }
        let edge = una.wrapping_add(window);
        // What its reader has not taken of these is missing in what it tells.
        let received = diff(una, self.peer.latest_una).max(0) as u32;
        if before(self.peer.latest_una, una) {
            self.peer.latest_una = una;
            if self.peer.has_some_since == 0 {
                self.peer.has_some_since = self.millis();
            }
        }
        // What the peer may ask to have back, and only from an end with nothing in flight.
        let narrow = una.wrapping_add(window.max(DEFAULT_WINDOW));
        // Datagrams may overtake each other, so the later edge counts. The first one told replaces what was
        // assumed.
        if !self.peer.has_told_window || before(self.peer.window_edge, edge) {
            self.peer.window_edge = edge;
        } else if may_narrow && before(narrow, self.peer.window_edge) {
            self.peer.window_edge = narrow;
        }
        self.peer.largest_window = if self.peer.has_told_window || self.peer.is_ours {
            self.peer.largest_window.max(window)
        } else if window > 0 && window + received < DEFAULT_WINDOW {
            // Less than was assumed, however late its reader is. Nobody can read a message that is longer than all of it,
            // and who sent that would wait for ever.
            window
        } else {
            // An empty window says nothing of its size.
            window.max(DEFAULT_WINDOW)
        };
        self.peer.has_told_window = true;
        let known = self.peer.is_known() && self.path.validated && !self.peer.doubts_our_address;
        if known && diff(self.peer.window_edge, self.send.next()) > 0 {
            self.probe = None;
        }
    }

    /// The most outstanding segments that the windows allow, whatever the congestion control says.
    pub(super) fn window_limit(&self) -> u32 {
        let remote = diff(self.peer.window_edge, self.send.una()).max(0) as u32;
        remote.min(self.context.config.send_window)
    }

    /// Was this segment sent before the peer told a window that it is beyond? The peer dropped it, unless it has
    /// made room since. Such segments are fewer than [`DEFAULT_WINDOW`], unless the peer takes nothing any more.
    pub(super) fn is_beyond_window(&self, sn: u32) -> bool {
        !before(sn, self.peer.window_edge)
    }
}
