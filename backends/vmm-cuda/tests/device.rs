//! What a device does beyond the suite, on a card.

mod common;

macro_rules! card_tests {
    ($($name:ident)+) => {
        $(
            #[test]
            fn $name() {
                let Some(cards) = common::Cards::take(1) else { return };
                let named = common::checks::ALL.iter().find(|(name, _)| *name == stringify!($name));
                let (_, check) = named.expect("a check of this name");
                check(&cards);
            }
        )+

        #[test]
        fn every_check_is_a_test() {
            let here = [$(stringify!($name)),+];
            for (name, _) in common::checks::ALL {
                assert!(here.contains(&name), "{name}");
            }
        }
    };
}

card_tests! {
    contents_are_those_of_the_host
    a_gate_holds_until_it_is_opened
    threads_keep_their_own_context
    the_legacy_stream_has_two_handles
    per_thread_streams_are_told_apart
    a_frame_is_exported_more_than_once
    captures_survive_all_calls
    a_blocking_capture_stops_the_legacy_stream
    host_frames_are_for_both
    fences_outlive_their_stream
    plain_frames_have_an_address
    slices_are_typed_memory
    cycles_leave_nothing
}
