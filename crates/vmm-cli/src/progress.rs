//! A bar on the terminal while something long is under way.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Work that ends sooner shows nothing: a bar that flashes by tells nobody anything.
const PATIENCE: Duration = Duration::from_millis(300);

/// One stretch of work. Its bar is on standard error, and leaves nothing behind.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// Not shown yet, but will be if this takes long.
    waits: Cell<bool>,
}

impl Progress {
    /// Begins a stretch; `what` says what it does.
    pub(crate) fn begin(what: String, visible: bool) -> Self {
        let style = ProgressStyle::with_template("{msg:40!} {bar:30} {percent:>3} % {elapsed:>5}")
            .expect("the template is well-formed");
        let hidden = ProgressDrawTarget::hidden();
        let bar = ProgressBar::with_draw_target(None, hidden).with_style(style).with_message(what);
        Self { bar, start: Instant::now(), waits: Cell::new(visible) }
    }

    /// So many units of all are done.
    pub(crate) fn at(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        if self.waits.get() && self.start.elapsed() >= PATIENCE {
            self.waits.set(false);
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
