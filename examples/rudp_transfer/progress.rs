//! The progress bar.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WIDTH: usize = 40;
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Shows the progress of a transfer on stderr: on a terminal ten times a second in one line, elsewhere only
/// at the end.
pub(crate) struct Progress {
    name: &'static str,
    total: u64,
    done: AtomicU64,
    begin: Instant,
    /// When it was last drawn, in milliseconds after `begin`.
    drawn: AtomicU64,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(name: &'static str, total: u64) -> Self {
        Self {
            name,
            total,
            done: AtomicU64::new(0),
            begin: Instant::now(),
            drawn: AtomicU64::new(0),
            shown: true,
        }
    }

    /// Creates a bar that is not shown.
    pub(crate) fn silent() -> Self {
        Self {
            shown: false,
            ..Self::new("", 0)
        }
    }

    /// Adds `bytes` to the progress.
    pub(crate) fn add(&self, bytes: usize) {
        let done = self.done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        let now = self.begin.elapsed();
        let drawn = Duration::from_millis(self.drawn.load(Ordering::Relaxed));
        if self.shown && now >= drawn + REDRAW_INTERVAL && std::io::stderr().is_terminal() {
            self.drawn.store(now.as_millis() as u64, Ordering::Relaxed);
            self.draw(done, now, '\r');
        }
    }

    /// Draws the finished bar; the transfer took `time`.
    pub(crate) fn finish(&self, time: Duration) {
        if self.shown {
            self.draw(self.total, time, '\n');
        }
    }

    fn draw(&self, done: u64, time: Duration, end: char) {
        let filled = (done as usize * WIDTH) / self.total.max(1) as usize;
        let rate = done as f64 / 1e6 / time.as_secs_f64().max(1e-9);
        let mut out = std::io::stderr().lock();
        // If the terminal is gone, go on without it.
        let _ = write!(
            out,
            "\r{:>7} [{}{}] {:>3} % {:>7.1} MB {rate:>6.1} MB/s{end}",
            self.name,
            "#".repeat(filled.min(WIDTH)),
            " ".repeat(WIDTH - filled.min(WIDTH)),
            done * 100 / self.total.max(1),
            done as f64 / 1e6,
        );
        let _ = out.flush();
    }
}
