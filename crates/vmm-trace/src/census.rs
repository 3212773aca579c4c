//! What became of every entry of a trace.

/// The kind of an entry, as the file names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// `alloc`, or RMM's `allocate`.
    Alloc,
    /// `free_requested`, or RMM's `free`.
    FreeRequested,
    /// `free_completed`.
    FreeCompleted,
    /// `segment_alloc`.
    SegmentAlloc,
    /// `segment_free`.
    SegmentFree,
    /// `segment_map`.
    SegmentMap,
    /// `segment_unmap`.
    SegmentUnmap,
    /// `snapshot`.
    Snapshot,
    /// `oom`, or RMM's `allocate failure`.
    Oom,
    /// `annotate`.
    Annotate,
    /// Any other name.
    Unknown,
}

impl Action {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [Action; 11] = [
        Action::Alloc,
        Action::FreeRequested,
        Action::FreeCompleted,
        Action::SegmentAlloc,
        Action::SegmentFree,
        Action::SegmentMap,
        Action::SegmentUnmap,
        Action::Snapshot,
        Action::Oom,
        Action::Annotate,
        Action::Unknown,
    ];

    /// The name in a `PyTorch` snapshot.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Action::Alloc => "alloc",
            Action::FreeRequested => "free_requested",
            Action::FreeCompleted => "free_completed",
            Action::SegmentAlloc => "segment_alloc",
            Action::SegmentFree => "segment_free",
            Action::SegmentMap => "segment_map",
            Action::SegmentUnmap => "segment_unmap",
            Action::Snapshot => "snapshot",
            Action::Oom => "oom",
            Action::Annotate => "annotate",
            Action::Unknown => "unknown",
        }
    }
}

/// What became of every entry of a trace.
///
/// Always `entries = sum of read(action) = used + skipped_zero_length + skipped_unknown`, and
/// `events = used + made_requests + made_completions`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    read: [u64; Action::ALL.len()],
    /// Entries that became an event.
    pub used: u64,
    /// Entries about an allocation of no bytes, which no pool has to serve.
    pub skipped_zero_length: u64,
    /// Entries whose action this reader does not know.
    pub skipped_unknown: u64,
    /// Requests added, where the file has a completed free without its request.
    pub made_requests: u64,
    /// Completions added, where the file has no completed frees, or an address came back without one.
    pub made_completions: u64,
    /// Allocations at an address that was still live: its free is not in the file, so it was added.
    pub reused_while_live: u64,
    /// Tensors live before the first event that the trace frees.
    pub start_freed: u64,
    /// Tensors live before the first event that outlive the trace.
    pub start_kept: u64,
    /// Blocks in use at the end that the trace says are free (the program ran on while the snapshot
    /// was being taken).
    pub end_unexplained: u64,
    /// Tensors live after the last event that no final block shows.
    pub end_missing: u64,
    /// Deferred frees still open after the last event.
    pub end_pending: u64,
    /// Entries without a time, placed one microsecond after the one before.
    pub without_time: u64,
    /// Entries whose time lay before that of the entry before, moved up to it.
    pub time_moved: u64,
    /// Entries that carry a stack.
    pub with_frames: u64,
}

impl Census {
    /// Entries in the file.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.read.iter().sum()
    }

    /// Entries of one kind.
    #[must_use]
    pub fn read(&self, action: Action) -> u64 {
        self.read[action as usize]
    }

    /// Whether every entry was used or skipped for a stated reason.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.entries() == self.used + self.skipped_zero_length + self.skipped_unknown
    }

    pub(crate) fn count(&mut self, action: Action) {
        self.read[action as usize] += 1;
    }
}
