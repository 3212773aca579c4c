//! The conformance suite on the mock, in its variants.

use vmm_conformance::{Harness, MockHarness, Need, Outcome, outcome_of, run_all};
use vmm_mock::{MockDevice, MockOptions};

fn harness(options: MockOptions) -> MockHarness {
    MockHarness::new(MockDevice::new(options))
}

mod immediate_binds {
    vmm_conformance::conformance_tests!(super::harness(vmm_mock::MockOptions::default()));
}

mod queued_binds {
    vmm_conformance::conformance_tests!(super::harness(vmm_mock::MockOptions::queued_binds()));
}

mod without_aliases {
    vmm_conformance::conformance_tests!(super::harness(vmm_mock::MockOptions::without_aliases()));
}

mod without_remapping {
    vmm_conformance::conformance_tests!(super::harness(vmm_mock::MockOptions::without_remapping()));
}

/// With frames of a length that is no part of 2 MiB. The cases with the most frames would take a minute.
#[test]
fn every_case_holds_with_the_finest_granule() {
    let options = MockOptions { granule: 4 << 10, ..MockOptions::queued_binds() };
    let cases = vmm_conformance::case::all::<MockHarness>();
    let quick = cases.iter().filter(|case| !case.name.starts_with("every_device_call_may_fail"));
    let failed: Vec<_> = quick
        .map(|case| (case.name, outcome_of(case.name, || harness(options.clone()))))
        .filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// What the default mock does not run, by name, so that nothing more is ruled out unseen. Each of
/// these runs in another variant: the mock can do everything in one or another.
#[test]
fn the_default_mock_is_ruled_out_of_little() {
    let report = run_all(MockHarness::default);
    let expected = [
        ("a_missing_kind_is_not_supported", Need::MissingKind),
        ("a_plain_frame_has_one_address", Need::NoRemapping),
        ("plain_frames_cannot_be_mapped", Need::NoRemapping),
        ("release_frame_refuses_plain_frames_in_use", Need::NoRemapping),
        ("binds_wait_for_their_fences", Need::QueuedBinds),
        ("plain_frames_are_shared", Need::NoRemapping),
        ("idle_plain_frames_make_room", Need::NoRemapping),
        ("plain_memory_goes_when_it_is_not_needed", Need::NoRemapping),
    ];
    assert_eq!(report.ruled_out(), expected, "{report}");
    assert!(MockHarness::default().abilities().strict);
    for (name, need) in expected {
        let runs = [MockOptions::queued_binds(), MockOptions::without_remapping()]
            .into_iter()
            .any(|options| outcome_of(name, || harness(options)) == Outcome::Passed);
        assert!(runs, "{name} runs in no variant: {need}");
    }
}
