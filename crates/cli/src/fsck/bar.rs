//! The progress of a check, for a user at a terminal. It is drawn on standard error only.

use indicatif::{ProgressBar, ProgressStyle};
use warren_fsck::Progress;

const LOOK: &str = "{msg} [{bar:40}] {percent}%";

pub(super) struct Bar(ProgressBar);

impl Bar {
    /// Hidden if standard error is no terminal.
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new(1);
        if let Ok(style) = ProgressStyle::with_template(LOOK) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }

    pub(super) fn begin(&mut self, phase: &'static str) {
        self.0.reset();
        self.0.set_message(phase);
    }

    pub(super) fn show(&mut self, progress: Progress) {
        self.0.set_length(progress.shards.into());
        self.0.set_position(progress.shards_done.into());
    }

    /// Removes the bar, so that lines can be printed.
    pub(super) fn clear(&mut self) {
        self.0.finish_and_clear();
    }
}
