//! The suite can fail: for every case there is a device with one flaw that it finds.

mod device;
mod flaw;

use device::Wrong;
use flaw::Flaw;
use std::collections::BTreeSet;
use vmm_conformance::{MockHarness, Outcome, device_cases, run};
use vmm_core::device::DeviceOp;
use vmm_mock::MockOptions;

/// Each flaw, on a device with these options, and the cases that must find it.
fn flaws() -> Vec<(Flaw, MockOptions, &'static [&'static str])> {
    let cuda = MockOptions::default;
    let vulkan = MockOptions::queued_binds;
    let plain = MockOptions::without_remapping;
    vec![
        (Flaw::ChangingProperties, cuda(), &["properties_never_change"]),
        (Flaw::ForgottenMemory, cuda(), &["free_memory_follows_frames"]),
        (Flaw::LeakWhenExhausted, cuda(), &["exhausted_memory_changes_nothing"]),
        (Flaw::AnyKind, vulkan(), &["a_missing_kind_is_not_supported"]),
        (Flaw::EarlyAddress, cuda(), &["a_frame_has_no_address_before_it_is_mapped"]),
        (Flaw::WanderingAddress, plain(), &["a_plain_frame_has_one_address"]),
        (Flaw::MapsNothing, plain(), &["plain_frames_cannot_be_mapped"]),
        (
            Flaw::Lax(DeviceOp::ReleaseFrame),
            plain(),
            &["release_frame_refuses_plain_frames_in_use"],
        ),
        (Flaw::SameHandle, cuda(), &["fresh_frames_can_be_made_again_and_again"]),
        (Flaw::Misaligned, cuda(), &["reservations_are_aligned"]),
        (Flaw::Overlapping, cuda(), &["reservations_never_overlap"]),
        (Flaw::OutOfTheWrongThing, cuda(), &["a_reservation_can_be_too_large"]),
        (Flaw::NeverCapturing, cuda(), &["capturing_can_be_asked_at_any_time"]),
        (Flaw::CaptureForbidsUnmap, cuda(), &["a_capture_leaves_other_calls_legal"]),
        (Flaw::CopiedAliases, cuda(), &["aliases_show_the_same_bytes"]),
        (Flaw::PartialMap, cuda(), &["map_is_all_or_nothing"]),
        (Flaw::EmptyMapFails, cuda(), &["an_empty_map_does_nothing"]),
        (
            Flaw::EarlyFence,
            vulkan(),
            &["the_fence_of_a_map_says_when_it_exists", "binds_wait_for_their_fences"],
        ),
        (Flaw::LateFence, cuda(), &["the_fence_of_a_map_says_when_it_exists"]),
        (Flaw::FirstFrameAgain, cuda(), &["a_bind_shows_scattered_frames_in_order"]),
        (Flaw::SwappedFrames, cuda(), &["a_rebind_moves_bytes_with_their_frame"]),
        (Flaw::ForgottenBytes, cuda(), &["a_rebind_moves_bytes_with_their_frame"]),
        (Flaw::UnmapsAliases, cuda(), &["an_alias_outlives_the_mapping_it_was_made_from"]),
        (Flaw::IgnoresAfter, vulkan(), &["binds_wait_for_their_fences"]),
        (Flaw::PartialUnmap, cuda(), &["unmap_is_all_or_nothing"]),
        (Flaw::EmptyUnmapFails, cuda(), &["an_empty_unmap_does_nothing"]),
        (Flaw::RevokedAccess, cuda(), &["access_stays_when_more_is_granted"]),
        (Flaw::PartialAccess, cuda(), &["set_access_is_all_or_nothing"]),
        (Flaw::ForgottenPeers, cuda(), &["a_peer_uses_what_it_was_given"]),
        (Flaw::PeersOfFrames, cuda(), &["a_peer_uses_what_it_was_given"]),
        (Flaw::AnyPeer, cuda(), &["peers_that_cannot_be_are_not_supported"]),
        (Flaw::AnyPeer, vulkan(), &["peers_that_cannot_be_are_not_supported"]),
        (Flaw::EqualValues, cuda(), &["record_values_rise"]),
        (Flaw::FallingReached, cuda(), &["reached_never_falls"]),
        (Flaw::FewEvents, cuda(), &["reached_fences_need_no_care"]),
        (Flaw::LateWait, cuda(), &["a_reached_fence_is_waited_for_at_once"]),
        (Flaw::EarlyWait, cuda(), &["a_wait_ends_when_its_time_is_up"]),
        (Flaw::NeverWaitsForAll, cuda(), &["an_idle_device_has_reached_every_fence"]),
        (Flaw::Lax(DeviceOp::WaitIdle), cuda(), &["wait_idle_refuses_captures"]),
        (Flaw::WaitsForTooMuch, cuda(), &["a_wait_for_a_reached_fence_costs_a_stream_nothing"]),
        (
            Flaw::NoStreamWait,
            cuda(),
            &["order_holds_across_streams", "order_is_passed_on_through_a_third_stream"],
        ),
        (Flaw::CopiesElsewhere, cuda(), &["copies_are_ordered_with_their_stream"]),
        (
            Flaw::FillsElsewhere,
            cuda(),
            &["fills_are_ordered_with_their_stream", "order_holds_along_one_stream"],
        ),
        (Flaw::OneThreadOnly, cuda(), &["calls_from_many_threads_do_not_disturb_each_other"]),
        (Flaw::Lax(DeviceOp::Reserve), cuda(), &["reserve_refuses_odd_lengths"]),
        (Flaw::Lax(DeviceOp::FreeRegion), cuda(), &["free_region_takes_whole_empty_regions_only"]),
        (Flaw::Lax(DeviceOp::MakeFrame), cuda(), &["make_frame_refuses_odd_lengths"]),
        (
            Flaw::Lax(DeviceOp::ReleaseFrame),
            cuda(),
            &["release_frame_refuses_dead_and_mapped_frames"],
        ),
        (
            Flaw::Lax(DeviceOp::Map),
            cuda(),
            &["map_refuses_broken_targets", "map_refuses_unreached_fences"],
        ),
        (
            Flaw::Lax(DeviceOp::Unmap),
            cuda(),
            &[
                "unmap_takes_whole_mappings_only",
                "unmap_refuses_ranges_in_use",
                "unmap_refuses_unreached_fences",
            ],
        ),
        (Flaw::Lax(DeviceOp::SetAccess), cuda(), &["set_access_refuses_parts_and_gaps"]),
        (
            Flaw::Lax(DeviceOp::Record),
            cuda(),
            &["record_refuses_a_capturing_stream", "a_capture_forbids_what_would_break_it"],
        ),
        (Flaw::Lax(DeviceOp::Reached), cuda(), &["a_capture_forbids_what_would_break_it"]),
        (Flaw::Lax(DeviceOp::Wait), cuda(), &["a_capture_forbids_what_would_break_it"]),
        (
            Flaw::Lax(DeviceOp::StreamWait),
            cuda(),
            &["stream_wait_refuses_capturing_streams", "a_capture_forbids_what_would_break_it"],
        ),
        (
            Flaw::Lax(DeviceOp::Copy),
            cuda(),
            &["copy_refuses_overlapping_ranges", "memory_without_access_cannot_be_used"],
        ),
        (Flaw::Lax(DeviceOp::Fill), cuda(), &["memory_without_access_cannot_be_used"]),
    ]
}

#[test]
fn each_flaw_is_found_by_its_cases() {
    let cases = device_cases::all::<MockHarness<Wrong>>();
    for (flaw, options, names) in flaws() {
        for name in names {
            let case = cases.iter().find(|case| case.name == *name).expect(name);
            let outcome = run(case, || MockHarness::new(Wrong::new(flaw, options.clone())));
            assert!(matches!(outcome, Outcome::Failed(_)), "{flaw:?} in {name}: {outcome:?}");
        }
    }
}

/// Without a flaw the same wrapper passes, so it is the flaw that is found.
#[test]
fn the_wrapper_itself_is_right() {
    let plain = MockOptions::without_remapping();
    for options in [MockOptions::default(), MockOptions::queued_binds(), plain] {
        for case in device_cases::all::<MockHarness<Wrong>>() {
            let outcome = run(&case, || MockHarness::new(Wrong::new(Flaw::None, options.clone())));
            assert!(!matches!(outcome, Outcome::Failed(_)), "{}: {outcome:?}", case.name);
        }
    }
}

#[test]
fn every_case_finds_some_flaw() {
    let found: BTreeSet<&str> =
        flaws().into_iter().flat_map(|(.., names)| names).copied().collect();
    for case in device_cases::all::<MockHarness>() {
        assert!(found.contains(case.name), "no wrong device for {}", case.name);
    }
}
