//! What was found, in sentences: the same on a terminal and on the page.

use std::fmt::Write as _;

use crate::inspection::{Inspection, OutOfMemory};
use crate::moment::{Moment, Wanted};
use crate::recorded::Allocator;
use crate::text::{bytes, time};

impl Wanted {
    /// Bytes, stream, and who asks where that is known.
    #[must_use]
    pub fn sentence(&self) -> String {
        let asker = self.owner.as_ref().map_or_else(String::new, |owner| format!(" by {owner}"));
        format!("{} on stream {}{asker}", bytes(self.bytes), self.stream)
    }
}

impl Moment {
    /// What could be served, and what would fail next, had the device nothing more to give: two sentences.
    #[must_use]
    pub fn outlook(&self) -> [String; 2] {
        let served = format!(
            "largest block that could be served on stream {} now: {}",
            self.judged_by.stream,
            bytes(self.largest_servable_bytes)
        );
        let judged_by = self.judged_by.sentence();
        let fails = match &self.next {
            None => format!(
                "next to fail: nothing that the program is known to ask for; the causes are judged by a \
                 request of {judged_by}"
            ),
            Some(next) if *next == self.judged_by => {
                format!("next to fail, and what the causes are judged by: {judged_by}")
            }
            Some(next) => format!(
                "next to fail: {}; the causes are judged by a request of {judged_by}",
                next.sentence()
            ),
        };
        [served, fails]
    }
}

impl OutOfMemory {
    /// What was asked for, and what was in the way.
    #[must_use]
    pub fn sentence(&self, inspection: &Inspection) -> String {
        let moment = &self.moment;
        let mut text =
            format!("{} were asked for at {}", bytes(self.wanted.bytes), time(moment.time_us));
        if inspection.streams > 1 {
            // Writing to a string cannot fail.
            let _ = write!(text, " on stream {}", self.wanted.stream);
        }
        if let Some(owner) = &self.wanted.owner {
            let _ = write!(text, " by {owner}");
        }
        if inspection.allocator == Allocator::Unknown {
            let held = bytes(moment.held_bytes);
            return text
                + &format!(", while the program held {held}; the log does not say what was free");
        }
        let _ = write!(text, ": {} free at the driver", bytes(self.device_free_bytes));
        let (free, longest) = (moment.causes.free(), moment.largest_free_bytes);
        if free > 0 {
            let _ = write!(text, ", {} cached in holes of at most {}", bytes(free), bytes(longest));
        } else {
            text.push_str(", nothing cached");
        }
        if longest > moment.largest_servable_bytes {
            let _ = write!(
                text,
                ", at most {} where this request may lie",
                bytes(moment.largest_servable_bytes)
            );
        }
        let (held, reserved) = (bytes(moment.held_bytes), bytes(moment.causes.reserved));
        let _ = write!(text, "; {held} of {reserved} reserved were in use");
        text
    }
}

impl Inspection {
    /// What the program needs beyond the most that it held: the requests that failed, what graphs keep.
    #[must_use]
    pub fn needed_too(&self) -> Vec<String> {
        let mut more = Vec::new();
        if self.peak_with_graphs_bytes > self.peak_requested_bytes {
            let with = bytes(self.peak_with_graphs_bytes);
            more.push(format!("{with} with what pools of captured graphs keep"));
        }
        if self.needed_bytes() > self.peak_requested_bytes.max(self.peak_with_graphs_bytes) {
            more.push(format!("{} with the request that failed", bytes(self.needed_bytes())));
        }
        more
    }
}
