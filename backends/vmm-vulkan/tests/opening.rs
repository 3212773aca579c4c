//! How a device is chosen, and what is said where there is none.

mod common;

use ash::vk;
use common::{CHILD, device, options};
use std::process::Command;
use std::sync::Arc;
use vmm_core::device::VirtualMemoryDevice;
use vmm_core::{Owner, Pool, PoolOptions};
use vmm_vulkan::{DeviceChoice, Unavailable, VulkanDevice, VulkanOptions, ash, list_devices};

/// Silence means something only if the layer would speak.
#[test]
fn the_validation_layer_watches() {
    let Some(device) = device(options()) else { return };
    if VulkanDevice::new(options()).is_err() {
        println!("skipped: the validation layer is not installed");
        return;
    }
    let info = vk::BufferCreateInfo::default().size(0).usage(vk::BufferUsageFlags::TRANSFER_DST);
    // SAFETY: breaks a rule of the specification, a size of zero; the drivers that this test runs on
    // do no more than fail or give a buffer.
    let broken = unsafe { device.device().create_buffer(&info, None) };
    if let Ok(buffer) = broken {
        // SAFETY: nothing uses it.
        unsafe { device.device().destroy_buffer(buffer, None) };
    }
    let messages = device.messages();
    assert!(messages.iter().any(|text| text.contains("size")), "{messages:?}");
    // And at the end it speaks of what was left over.
    let info = vk::SemaphoreCreateInfo::default();
    // SAFETY: `info` is valid. That nobody destroys the semaphore is the point of it.
    unsafe { device.device().create_semaphore(&info, None) }.expect("a semaphore");
    let (log, before) = (device.message_log(), messages.len());
    drop(device);
    assert!(log.list().len() > before, "nothing was said of a semaphore that was left over");
}

#[test]
fn devices_are_chosen_by_index_and_name() {
    let Some(any) = device(options()) else { return };
    let all = list_devices().unwrap();
    let name = any.properties().name.clone();
    let listed = all.iter().find(|summary| summary.name == name).expect("it is listed");
    assert_eq!(listed.unsupported, None);
    assert!(!listed.driver.is_empty());
    let open = |choice| {
        VulkanDevice::new(VulkanOptions::of_device(choice)).map(|d| d.properties().name.clone())
    };
    assert_eq!(open(DeviceChoice::Index(listed.index)), Ok(name.clone()));
    assert_eq!(open(DeviceChoice::Name(name[1..].to_uppercase())), Ok(name.clone()));
    let none = open(DeviceChoice::Index(99)).unwrap_err();
    let found = all.iter().map(|summary| summary.name.clone()).collect();
    assert_eq!(none, Unavailable::NoSuchDevice { wanted: "99".to_owned(), found });
    let none = open(DeviceChoice::Name("no such card".to_owned())).unwrap_err();
    assert!(none.to_string().contains("named no such card"), "{none}");
    let crooked = VulkanOptions { granule: 3, ..options() };
    assert!(matches!(device_error(crooked), Unavailable::BadParts { .. }));
}

fn device_error(options: VulkanOptions) -> Unavailable {
    let options = VulkanOptions { validation: false, ..options };
    VulkanDevice::new(options).map(drop).unwrap_err()
}

#[test]
fn without_a_driver_the_error_says_so() {
    if common::is_child() {
        let error = device_error(VulkanOptions::default());
        assert!(matches!(error, Unavailable::NoDriver | Unavailable::NoLoader { .. }), "{error}");
        assert!(list_devices().is_ok_and(|all| all.is_empty()) || list_devices().is_err());
        return;
    }
    // The drivers are named by the environment, which a process cannot safely change for itself.
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "without_a_driver_the_error_says_so"])
        .env(CHILD, "1")
        .env("VK_DRIVER_FILES", "/nonexistent.json")
        .env("VK_ICD_FILENAMES", "/nonexistent.json")
        .output()
        .expect("a child");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

/// NVIDIA's driver lists no device after some thirty instances of one process.
#[test]
fn devices_can_come_and_go() {
    for _ in 0..40 {
        let Some(device) = device(VulkanOptions { validation: false, ..options() }) else { return };
        let stream = device.make_stream().unwrap();
        let pool = Pool::new(Arc::clone(&device), PoolOptions::default()).unwrap();
        let lease = pool.allocate(1 << 20, stream, Owner::NONE).unwrap();
        device.fill(lease.addr(), 7, lease.len(), stream).unwrap();
        lease.release(stream);
        let log = device.message_log();
        drop((pool, device));
        assert!(log.has_ended(), "something keeps the device open");
    }
}
