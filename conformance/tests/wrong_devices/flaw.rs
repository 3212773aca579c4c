//! What can be wrong with a device, one thing at a time.

use vmm_core::device::DeviceOp;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Nothing.
    None,
    /// A broken precondition of this call is let pass.
    Lax(DeviceOp),
    /// The name changes once memory was mapped.
    ChangingProperties,
    /// Released memory does not become free.
    ForgottenMemory,
    /// A frame that cannot be made leaves a smaller one behind.
    LeakWhenExhausted,
    /// Every kind of frame is made, as device memory.
    AnyKind,
    /// A frame has an address before it is mapped.
    EarlyAddress,
    /// A frame that cannot be mapped is said to be a granule further on, now and then.
    WanderingAddress,
    /// What cannot be mapped can be, where there is nothing to map.
    MapsNothing,
    /// Frames of one length have one handle.
    SameHandle,
    /// Reservations are aligned to the granule only.
    Misaligned,
    /// A reservation may lie in the one before.
    Overlapping,
    /// Too long a reservation is said to lack memory.
    OutOfTheWrongThing,
    /// Nothing is unmapped while a stream captures.
    CaptureForbidsUnmap,
    /// No stream ever captures.
    NeverCapturing,
    /// A second mapping of a frame shows a copy.
    CopiedAliases,
    /// A failed map leaves what it had mapped.
    PartialMap,
    /// An empty map is an error.
    EmptyMapFails,
    /// Binds say that they are done at once.
    EarlyFence,
    /// Binds that are done say that they are not.
    LateFence,
    /// Frames of one length in a batch all become the first of them.
    FirstFrameAgain,
    /// The first two frames of one length in a batch change places.
    SwappedFrames,
    /// What is mapped again has forgotten its bytes.
    ForgottenBytes,
    /// An unmap takes the frame's other mappings with it.
    UnmapsAliases,
    /// Binds do not wait.
    IgnoresAfter,
    /// A failed unmap has removed what it could.
    PartialUnmap,
    /// An empty unmap is an error.
    EmptyUnmapFails,
    /// Access to one range takes it from others.
    RevokedAccess,
    /// A failed grant has granted what it could.
    PartialAccess,
    /// Access is given to no peer.
    ForgottenPeers,
    /// Whoever has access to one mapping of a frame has it to all.
    PeersOfFrames,
    /// A peer that there is not is overlooked.
    AnyPeer,
    /// Two fences in a row have one value.
    EqualValues,
    /// What was reached is told one less every other time.
    FallingReached,
    /// Events are not recycled and run out.
    FewEvents,
    /// A wait without time never succeeds.
    LateWait,
    /// A wait always succeeds.
    EarlyWait,
    /// A wait for the device does not wait.
    NeverWaitsForAll,
    /// A stream waits for all that the other stream has queued.
    WaitsForTooMuch,
    /// A stream does not wait for another.
    NoStreamWait,
    /// Copies run on a stream of their own.
    CopiesElsewhere,
    /// Fills run on a stream of their own.
    FillsElsewhere,
    /// As with a context that is current on one thread.
    OneThreadOnly,
}
