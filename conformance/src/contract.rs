//! The sentences of the device interface, and the case that checks each.

/// One bullet of the documentation of [`vmm_core::device::VirtualMemoryDevice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clause {
    /// The method.
    pub method: &'static str,
    /// The bullet, word for word.
    pub text: &'static str,
    /// The name of its case.
    pub case: &'static str,
}

/// Shortens the table.
const fn clause(method: &'static str, text: &'static str, case: &'static str) -> Clause {
    Clause { method, text, case }
}

/// Every bullet, in the order of the documentation.
pub const CLAUSES: &[Clause] = &[
    clause("properties", "The same for the life of the device.", "properties_never_change"),
    clause(
        "memory_info",
        "`free` falls by the length of each frame made and rises when it is released.",
        "free_memory_follows_frames",
    ),
    clause(
        "is_capturing",
        "Legal on any stream at any time.",
        "capturing_can_be_asked_at_any_time",
    ),
    clause(
        "is_capturing",
        "While true: `record`, `reached`, `wait` and `stream_wait` of that stream are illegal.",
        "a_capture_forbids_what_would_break_it",
    ),
    clause(
        "is_capturing",
        "All other calls stay legal and break no capture: the device sees to that (CUDA: by the \
         calling thread's capture mode). A pool that knows of a capture still makes no call that it \
         can do without.",
        "a_capture_leaves_other_calls_legal",
    ),
    clause(
        "reserve",
        "The base is a multiple of `alignment`, and never zero.",
        "reservations_are_aligned",
    ),
    clause("reserve", "Reserved ranges never overlap.", "reservations_never_overlap"),
    clause(
        "reserve",
        "pre: `len` and `alignment` are multiples of the granule, `alignment` a power of \
         two.",
        "reserve_refuses_odd_lengths",
    ),
    clause(
        "reserve",
        "Beyond what the device can address: [`DeviceErrorKind::OutOfAddresses`], and a \
         smaller reservation may succeed.",
        "a_reservation_can_be_too_large",
    ),
    clause(
        "free_region",
        "pre: exactly a range that `reserve` returned, with nothing mapped in it.",
        "free_region_takes_whole_empty_regions_only",
    ),
    clause(
        "make_frame",
        "pre: `len` is a positive multiple of the granule of `kind`.",
        "make_frame_refuses_odd_lengths",
    ),
    clause(
        "make_frame",
        "No physical memory left: [`DeviceErrorKind::OutOfMemory`], and nothing has \
         changed.",
        "exhausted_memory_changes_nothing",
    ),
    clause(
        "make_frame",
        "A kind without a granule: [`DeviceErrorKind::NotSupported`].",
        "a_missing_kind_is_not_supported",
    ),
    clause(
        "fixed_addr",
        "With remapping: `None`. A frame has no address until it is mapped.",
        "a_frame_has_no_address_before_it_is_mapped",
    ),
    clause(
        "fixed_addr",
        "Without: its one address, a multiple of the granule and never zero, the same and usable by \
         all work of the device from `make_frame` to `release_frame`.",
        "a_plain_frame_has_one_address",
    ),
    clause(
        "fixed_addr",
        "Without: `reserve`, `free_region`, `map`, `unmap` and `set_access` are \
         [`DeviceErrorKind::NotSupported`], whatever is passed to them.",
        "plain_frames_cannot_be_mapped",
    ),
    clause(
        "release_frame",
        "pre: the frame lives and has no mapping.",
        "release_frame_refuses_dead_and_mapped_frames",
    ),
    clause(
        "release_frame",
        "pre: without remapping, no queued work uses the frame. Even so the call may wait there until \
         the device has done all its work, as `cuMemFree` does.",
        "release_frame_refuses_plain_frames_in_use",
    ),
    clause(
        "map",
        "pre: each target range is reserved, granule-aligned, of the frame's length and \
         free of mappings; ranges of one batch do not overlap.",
        "map_refuses_broken_targets",
    ),
    clause(
        "map",
        "One frame may be mapped at several addresses where [`Capabilities::aliases`] is \
         set; all show the same bytes to work that is ordered after the write.",
        "aliases_show_the_same_bytes",
    ),
    clause(
        "map",
        "pre: fences in `after` are reached, unless [`Capabilities::queued_binds`] is \
         set.",
        "map_refuses_unreached_fences",
    ),
    clause(
        "map",
        "All or nothing: on an error no mapping of the batch is left.",
        "map_is_all_or_nothing",
    ),
    clause(
        "map",
        "The fence that it returns says when the mappings exist; with immediate binds it \
         is [`Fence::REACHED`].",
        "the_fence_of_a_map_says_when_it_exists",
    ),
    clause("map", "An empty batch does nothing.", "an_empty_map_does_nothing"),
    clause(
        "unmap",
        "pre: each range covers whole mappings and nothing unmapped.",
        "unmap_takes_whole_mappings_only",
    ),
    clause(
        "unmap",
        "pre: no work that was queued and is not ordered before `after` uses the range.",
        "unmap_refuses_ranges_in_use",
    ),
    clause(
        "unmap",
        "pre: fences in `after` are reached, unless [`Capabilities::queued_binds`] is \
         set.",
        "unmap_refuses_unreached_fences",
    ),
    clause(
        "unmap",
        "All or nothing: on an error the whole batch is still mapped.",
        "unmap_is_all_or_nothing",
    ),
    clause("unmap", "An empty batch does nothing.", "an_empty_unmap_does_nothing"),
    clause(
        "set_access",
        "Memory that was mapped and has no access yet faults when used.",
        "memory_without_access_cannot_be_used",
    ),
    clause(
        "set_access",
        "pre: the range covers whole mappings.",
        "set_access_refuses_parts_and_gaps",
    ),
    clause(
        "set_access",
        "Access that was granted before stays.",
        "access_stays_when_more_is_granted",
    ),
    clause(
        "set_access",
        "All or nothing in its effect on this device's access.",
        "set_access_is_all_or_nothing",
    ),
    clause(
        "set_access",
        "A peer sees what this device wrote, once that work is done, and can use no mapping that it \
         was not given access to: another mapping of the same frame needs its own.",
        "a_peer_uses_what_it_was_given",
    ),
    clause(
        "set_access",
        "Peers where [`Capabilities::peers`] is missing, and a peer that cannot reach this device: \
         [`DeviceErrorKind::NotSupported`], and nothing has changed.",
        "peers_that_cannot_be_are_not_supported",
    ),
    clause(
        "record",
        "Its value is higher than that of every earlier fence of the stream.",
        "record_values_rise",
    ),
    clause("record", "pre: the stream is not capturing.", "record_refuses_a_capturing_stream"),
    clause(
        "reached",
        "Never falls; 0 for a stream on which nothing was recorded.",
        "reached_never_falls",
    ),
    clause(
        "reached",
        "Fences whose value is reached need no further care: the device recycles them.",
        "reached_fences_need_no_care",
    ),
    clause("wait", "A reached fence returns at once.", "a_reached_fence_is_waited_for_at_once"),
    clause(
        "wait_idle",
        "Every fence that was recorded before the call is reached then.",
        "an_idle_device_has_reached_every_fence",
    ),
    clause("wait_idle", "pre: no stream is capturing.", "wait_idle_refuses_captures"),
    clause(
        "stream_wait",
        "A reached fence costs nothing.",
        "a_wait_for_a_reached_fence_costs_a_stream_nothing",
    ),
    clause(
        "stream_wait",
        "pre: neither stream is capturing.",
        "stream_wait_refuses_capturing_streams",
    ),
    clause(
        "copy",
        "Ordered with all other work of `stream`.",
        "copies_are_ordered_with_their_stream",
    ),
    clause("copy", "pre: the ranges do not overlap.", "copy_refuses_overlapping_ranges"),
    clause(
        "fill",
        "Ordered with all other work of `stream`.",
        "fills_are_ordered_with_their_stream",
    ),
];
