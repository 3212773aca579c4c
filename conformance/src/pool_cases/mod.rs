//! Cases of the pool: the protocol of a lease, and failures that others had.

mod accounts;
mod captures;
mod failures;
mod graph;
mod lifetime;
mod limits;
mod peers;
mod plain;
mod private;
mod random;
mod reuse;
mod scene;
mod sizes;

use crate::case::Case;
use crate::harness::Harness;

/// Calls the macro `$then` of this crate with the given argument and the names of all pool cases.
#[doc(hidden)]
#[macro_export]
macro_rules! with_pool_cases {
    ($then:ident, $argument:tt) => {
        $crate::$then! { $argument
            memory_is_retired_until_every_user_is_done
            another_stream_takes_retired_memory_without_a_host_wait
            the_same_stream_reuses_memory_at_once
            a_shared_lease_lives_until_its_last_user

            a_miss_waits_and_searches_again
            memory_stays_bounded_without_synchronisation
            memory_whose_work_is_over_is_found_without_a_wait
            merged_neighbours_keep_the_later_fence
            one_slow_stream_does_not_hold_up_the_others
            big_leases_fit_after_small_ones
            a_long_free_run_is_not_spent_on_a_short_lease
            released_short_leases_pin_no_frame
            moved_frames_carry_no_work_with_them
            trimming_releases_what_is_idle_and_nothing_else
            memory_on_its_way_out_serves_a_request
            maintenance_comes_to_an_end

            few_bytes_reserve_few_frames
            no_bytes_need_no_device
            what_can_never_fit_is_too_large
            alignments_are_kept
            the_limit_is_never_passed
            memory_that_others_take_is_out_of_memory

            a_failed_growth_is_undone
            what_could_not_be_undone_is_not_used
            every_device_call_may_fail_once
            every_device_call_may_fail_for_good
            a_refused_kind_of_frame_falls_back
            a_busy_device_is_asked_again
            large_reservations_may_be_refused
            many_streams_share_the_addresses

            a_capture_can_run_out_of_memory
            a_release_during_a_capture_asks_nothing
            a_growth_that_fails_in_a_capture_breaks_nothing
            a_capture_on_an_unknown_stream_is_not_broken
            maintenance_respects_a_capture

            leases_may_outlive_the_pool
            a_pool_that_is_dropped_waits_for_its_work
            a_lost_device_lets_everything_be_dropped
            forgotten_streams_are_not_named_again
            streams_can_come_and_go_without_end
            a_callback_may_use_the_pool

            the_largest_possible_request_succeeds
            a_snapshot_agrees_with_the_figures
            idle_memory_leaves_after_its_time
            steps_can_be_run_by_hand
            a_miss_waits_for_a_step_of_another_thread

            peers_of_the_options_use_all_memory
            a_peer_that_is_added_uses_all_memory
            memory_keeps_its_peers_when_it_moves
            a_lease_can_be_shared_with_peers
            shared_frames_move_last
            a_refused_grant_changes_nothing
            a_growth_under_way_does_not_miss_a_new_peer
            a_mapping_stays_while_a_peer_is_let_in
            peers_can_be_added_at_any_moment
            a_capture_does_not_keep_peers_away
            peers_that_cannot_be_are_refused

            a_private_pool_has_addresses_of_its_own
            memory_of_a_private_pool_stays_where_it_is
            a_released_private_pool_gives_its_memory_back
            memory_of_a_released_private_pool_waits_for_all_streams
            a_failed_capture_gives_its_memory_back
            a_private_release_during_a_capture_asks_nothing
            a_capture_uses_its_memory_again
            two_captures_at_once_have_memory_of_their_own
            a_capture_takes_no_memory_that_work_still_uses
            a_checkpoint_of_a_private_pool_can_be_restored
            private_pools_come_and_go_without_end
            private_pools_that_repeat_map_nothing
            too_many_private_pools_are_refused

            a_pool_without_remapping_says_so
            plain_frames_are_shared
            idle_plain_frames_make_room
            plain_memory_goes_when_it_is_not_needed

            no_two_leases_overlap_and_all_keep_their_bytes
            private_pools_and_all_others_keep_their_bytes
            threads_share_a_pool
        }
    };
}

/// Every case of the pool.
#[must_use]
pub fn all<H: Harness>() -> Vec<Case<H>> {
    use self::{accounts::*, captures::*, failures::*, graph::*, lifetime::*, limits::*};
    use self::{peers::*, plain::*, private::*, random::*, reuse::*, sizes::*};
    with_pool_cases!(table_of_cases, H)
}
