//! Frames and their mappings.
//!
//! A frame serves one or several *current* mappings: those with bytes that are not dead. When all
//! its bytes got another address, a mapping is *stale*: queued work may still use it, so it stays
//! until its point is reached, and until then it can be taken back into use without a device call.

use crate::extent::ExtentId;
use crate::slab::Slab;
use crate::timeline::Point;
use crate::units::FrameHandle;

pub(crate) type FrameId = u32;
pub(crate) type MappingId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingState {
    /// Some of its bytes have their address here.
    Current,
    /// None has. Unmapped when the point is reached and somebody sees to it.
    Stale(Point),
    /// A step is about to unmap it, or failed to.
    Leaving(Point),
}

impl MappingState {
    /// Where its uses end, if it is stale.
    pub(crate) fn point(self) -> Option<Point> {
        match self {
            Self::Current => None,
            Self::Stale(point) | Self::Leaving(point) => Some(point),
        }
    }
}

#[derive(Debug)]
pub(crate) struct MappingEntry {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) frame: FrameId,
    pub(crate) arena: u8,
    pub(crate) region: u8,
    pub(crate) state: MappingState,
    /// The `Dead` extents in its range, in no order. They are never joined, so that ids last.
    pub(crate) dead: Vec<ExtentId>,
}

impl MappingEntry {
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.len
    }
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) handle: FrameHandle,
    pub(crate) len: u64,
    pub(crate) mappings: Vec<MappingId>,
    /// To be released once it has no mapping. It serves nobody any more.
    pub(crate) leaving: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub(crate) frames: Slab<Frame>,
    pub(crate) mappings: Slab<MappingEntry>,
}
