//! Captured graphs: work that is queued as often as the graph is launched.

use crate::memory::Segment;
use crate::work::Effect;
use vmm_core::device::AddrRange;

/// Work that a stream has captured: see [`crate::MockDevice::end_capture`].
///
/// Like a graph of a card it keeps the addresses that its work was captured with, and keeps nobody from
/// unmapping them.
#[derive(Clone, Debug, Default)]
pub struct Graph(pub(crate) Vec<Node>);

/// One piece of captured work.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// In nanoseconds.
    pub(crate) duration: u64,
    /// The ranges that it uses, the memory that it saw there, and whether it writes.
    pub(crate) uses: Vec<(AddrRange, Vec<Segment>, bool)>,
    pub(crate) effects: Vec<Effect>,
}
