//! What the tests share: which device they run on, and what they do without one.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

pub mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vmm_vulkan::{DeviceChoice, Unavailable, VulkanDevice, VulkanOptions};

/// Names the device, as an index or a part of its name; without it the best is taken.
const DEVICE: &str = "VMM_VULKAN_DEVICE";

/// Makes a missing device or validation layer a failure.
const REQUIRED: &str = "VMM_REQUIRE_VULKAN";

/// Set in a process that a test has started, which would not have without a device.
pub const CHILD: &str = "VMM_VULKAN_TEST_CHILD";

/// Whether this process has had the device already.
static WAS_THERE: AtomicBool = AtomicBool::new(false);

const HINT: &str = "to run them without a GPU: .ci/lavapipe on Debian or Ubuntu, elsewhere lavapipe from \
    Mesa 25.0 or newer, the Vulkan loader and its validation layer";

/// The default options for the device of the tests.
pub fn options() -> VulkanOptions {
    let choice = std::env::var(DEVICE).unwrap_or_default();
    VulkanOptions { validation: true, ..VulkanOptions::of_device(DeviceChoice::parse(&choice)) }
}

/// Whether the device of the tests is a GPU, or why there is none.
///
/// # Panics
/// If there is none and one is required.
pub fn look() -> Result<bool, String> {
    open(options()).map(|device| device.is_gpu()).map_err(|why| {
        assert!(!is_child(), "the device was there before, and now: {why}");
        assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, and {why}");
        format!("{why} ({HINT})")
    })
}

/// Whether a test of another process has started this one.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// A device, or, with a line that says so, none.
///
/// # Panics
/// If a device is required, or was there before.
pub fn device(options: VulkanOptions) -> Option<Arc<VulkanDevice>> {
    let opened = open(options);
    // What is missing from the start is skipped. What was there and is gone is a failure.
    let was_there = WAS_THERE.fetch_or(opened.is_ok(), Ordering::Relaxed);
    match opened {
        Err(why) if was_there => panic!("the device was there before, and now: {why}"),
        opened => required_or_skip(opened).map(Arc::new),
    }
}

/// What is there, or, with a line that says so, nothing.
///
/// # Panics
/// If a device is required.
pub fn required_or_skip<T>(opened: Result<T, Unavailable>) -> Option<T> {
    match opened {
        Ok(opened) => Some(opened),
        Err(why) => {
            assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, and {why}");
            println!("skipped: {why} ({HINT})");
            None
        }
    }
}

/// A device, watched by the validation layer where that is installed or required.
///
/// # Errors
/// As [`VulkanDevice::new`].
pub fn open(options: VulkanOptions) -> Result<VulkanDevice, Unavailable> {
    match VulkanDevice::new(options.clone()) {
        // Machines with a GPU need not have the layer; those that check every change must.
        Err(Unavailable::NoValidationLayer) if std::env::var_os(REQUIRED).is_none() => {
            println!("note: the validation layer is not installed, so nothing watches");
            VulkanDevice::new(VulkanOptions { validation: false, ..options })
        }
        other => other,
    }
}

/// Fails if the validation layer has said anything.
///
/// # Panics
/// If so.
pub fn expect_silence(device: &VulkanDevice) {
    let messages = device.messages();
    assert!(messages.is_empty(), "the validation layer says: {messages:#?}");
}
