//! Cases of the device interface. See [`crate::contract`] for the sentence that each one checks.

mod access;
mod addresses;
mod binds;
mod captures;
mod fences;
mod frames;
mod maps;
mod plain;
mod transfers;
mod unmaps;

use crate::case::Case;
use crate::harness::Harness;

/// Calls the macro `$then` of this crate with the given argument and the names of all device cases.
#[doc(hidden)]
#[macro_export]
macro_rules! with_device_cases {
    ($then:ident, $argument:tt) => {
        $crate::$then! { $argument
            properties_never_change
            free_memory_follows_frames
            make_frame_refuses_odd_lengths
            exhausted_memory_changes_nothing
            a_missing_kind_is_not_supported
            release_frame_refuses_dead_and_mapped_frames
            fresh_frames_can_be_made_again_and_again

            a_frame_has_no_address_before_it_is_mapped
            a_plain_frame_has_one_address
            plain_frames_cannot_be_mapped
            release_frame_refuses_plain_frames_in_use

            reservations_are_aligned
            reservations_never_overlap
            reserve_refuses_odd_lengths
            a_reservation_can_be_too_large
            free_region_takes_whole_empty_regions_only

            capturing_can_be_asked_at_any_time
            a_capture_forbids_what_would_break_it
            a_capture_leaves_other_calls_legal
            record_refuses_a_capturing_stream
            stream_wait_refuses_capturing_streams

            map_refuses_broken_targets
            aliases_show_the_same_bytes
            map_refuses_unreached_fences
            map_is_all_or_nothing
            the_fence_of_a_map_says_when_it_exists
            an_empty_map_does_nothing

            unmap_takes_whole_mappings_only
            unmap_refuses_ranges_in_use
            unmap_refuses_unreached_fences
            unmap_is_all_or_nothing
            an_empty_unmap_does_nothing

            memory_without_access_cannot_be_used
            set_access_refuses_parts_and_gaps
            access_stays_when_more_is_granted
            set_access_is_all_or_nothing
            a_peer_uses_what_it_was_given
            peers_that_cannot_be_are_not_supported

            record_values_rise
            reached_never_falls
            reached_fences_need_no_care
            a_reached_fence_is_waited_for_at_once
            a_wait_ends_when_its_time_is_up
            an_idle_device_has_reached_every_fence
            wait_idle_refuses_captures
            a_wait_for_a_reached_fence_costs_a_stream_nothing

            copies_are_ordered_with_their_stream
            copy_refuses_overlapping_ranges
            fills_are_ordered_with_their_stream

            a_bind_shows_scattered_frames_in_order
            a_rebind_moves_bytes_with_their_frame
            an_alias_outlives_the_mapping_it_was_made_from
            binds_wait_for_their_fences
            order_holds_along_one_stream
            order_holds_across_streams
            order_is_passed_on_through_a_third_stream
            calls_from_many_threads_do_not_disturb_each_other
        }
    };
}

/// The table of cases: each name is a function in one of the modules above.
#[doc(hidden)]
#[macro_export]
macro_rules! table_of_cases {
    ($harness:tt $($name:ident)*) => {
        vec![$($crate::Case { name: stringify!($name), run: $name::<$harness> }),*]
    };
}

/// Every case of the device interface.
#[must_use]
pub fn all<H: Harness>() -> Vec<Case<H>> {
    use self::{access::*, addresses::*, binds::*, captures::*, fences::*, frames::*};
    use self::{maps::*, plain::*, transfers::*, unmaps::*};
    with_device_cases!(table_of_cases, H)
}
