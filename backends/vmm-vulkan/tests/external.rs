//! An instance, a device and queues that the user has made, and a lock that guards them.

mod common;

use ash::vk;
use common::{options, required_or_skip};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;
use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::{CrossStream, Owner, Pool, PoolOptions};
use vmm_vulkan::{
    ExternalDevice, ExternalQueue, Gate, QueueLock, Unavailable, VulkanDevice, VulkanOptions, ash,
};

const LONG: Duration = Duration::from_secs(60);

/// What a program that uses Vulkan has.
struct Program {
    _entry: ash::Entry,
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
    device: ash::Device,
    queue: ExternalQueue,
    aliased: bool,
    /// Set when it is gone.
    gone: Arc<AtomicBool>,
}

impl Program {
    /// The first device that can be used; none, with a line that says so, where there is none.
    fn new() -> Option<Self> {
        required_or_skip(VulkanDevice::new(VulkanOptions { validation: false, ..options() }))?;
        // SAFETY: the calls follow the specification: every structure is complete, features are
        // those that the device was asked for above, by opening it.
        unsafe {
            let entry = ash::Entry::load().expect("the loader, which is there");
            let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
            let info = vk::InstanceCreateInfo::default().application_info(&app);
            let instance = entry.create_instance(&info, None).expect("an instance");
            let all = instance.enumerate_physical_devices().expect("devices");
            let usable = all.into_iter().find_map(|physical| {
                let features = instance.get_physical_device_features(physical);
                let families = instance.get_physical_device_queue_family_properties(physical);
                let all = vk::QueueFlags::COMPUTE | vk::QueueFlags::SPARSE_BINDING;
                let family = families.iter().position(|family| family.queue_flags.contains(all))?;
                let sparse = features.sparse_binding & features.sparse_residency_buffer;
                (sparse == vk::TRUE).then_some((physical, features, family))
            });
            let (physical, features, family) = usable.expect("a device, as one was opened");
            let family = u32::try_from(family).expect("few families");
            let priorities = [1.0];
            let queues = [vk::DeviceQueueCreateInfo::default()
                .queue_family_index(family)
                .queue_priorities(&priorities)];
            let aliased = features.sparse_residency_aliased == vk::TRUE;
            let enabled = vk::PhysicalDeviceFeatures::default()
                .sparse_binding(true)
                .sparse_residency_buffer(true)
                .sparse_residency_aliased(aliased);
            let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default()
                .timeline_semaphore(true)
                .buffer_device_address(true);
            let info = vk::DeviceCreateInfo::default()
                .queue_create_infos(&queues)
                .enabled_features(&enabled)
                .push_next(&mut vulkan12);
            let device = instance.create_device(physical, &info, None).expect("a device");
            let queue = ExternalQueue { queue: device.get_device_queue(family, 0), family };
            let gone = Arc::default();
            Some(Self { _entry: entry, instance, physical, device, queue, aliased, gone })
        }
    }

    fn parts(self: &Arc<Self>, lock: Option<Arc<dyn QueueLock>>) -> ExternalDevice {
        ExternalDevice {
            instance: self.instance.clone(),
            api_version: vk::API_VERSION_1_2,
            physical_device: self.physical,
            device: self.device.clone(),
            queues: vec![self.queue],
            bind_queue: self.queue,
            other_families: Vec::new(),
            aliased: self.aliased,
            lock,
            keep: Some(Arc::clone(self) as _),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        // SAFETY: the backend has let go, as it held this value.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// A lock for each queue, which notices when it is not held by whoever lets it go.
#[derive(Default)]
struct Locks {
    holders: Mutex<HashMap<vk::Queue, ThreadId>>,
    free: Condvar,
    uses: AtomicUsize,
}

impl QueueLock for Locks {
    fn lock(&self, queue: vk::Queue) {
        let mut holders = self.holders.lock().unwrap();
        let me = std::thread::current().id();
        assert_ne!(holders.get(&queue), Some(&me), "the backend takes a lock that it has");
        while holders.contains_key(&queue) {
            holders = self.free.wait(holders).unwrap();
        }
        holders.insert(queue, me);
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    fn unlock(&self, queue: vk::Queue) {
        let holder = self.holders.lock().unwrap().remove(&queue);
        assert_eq!(holder, Some(std::thread::current().id()), "somebody else's lock");
        self.free.notify_all();
    }
}

#[test]
fn a_pool_lives_on_the_users_device() {
    let Some(program) = Program::new() else { return };
    let (program, locks) = (Arc::new(program), Arc::new(Locks::default()));
    let parts = program.parts(Some(Arc::clone(&locks) as _));
    let (device, queue, gone) =
        (program.device.clone(), program.queue.queue, Arc::clone(&program.gone));
    // SAFETY: the parts are whole and kept; this test uses the queue under the lock.
    let vulkan = unsafe { VulkanDevice::from_external(parts, VulkanOptions::default()) };
    let vulkan = Arc::new(vulkan.unwrap());
    drop(program);
    // The user's queue is a stream; another stream shares it.
    let own = vulkan.queue_stream(queue).unwrap();
    let other = vulkan.make_stream().unwrap();
    let options = PoolOptions {
        limit: Some(16 << 20),
        cross_stream: CrossStream::WaitOnDevice,
        ..PoolOptions::default()
    };
    let pool = Pool::new(Arc::clone(&vulkan), options).unwrap();
    std::thread::scope(|scope| {
        // Somebody else, who submits to the queue directly.
        scope.spawn(|| {
            for _ in 0..200 {
                locks.lock(queue);
                // SAFETY: the lock is held; the submit is empty.
                unsafe { device.queue_submit(queue, &[], vk::Fence::null()) }.unwrap();
                locks.unlock(queue);
            }
        });
        for round in 0..50_u8 {
            let lease = pool.allocate(1 << 20, own, Owner::NONE).unwrap();
            vulkan.fill(lease.addr(), round, lease.len(), own).unwrap();
            let filled = vulkan.record(own).unwrap();
            lease.used_on(other);
            vulkan.stream_wait(other, filled).unwrap();
            let range = AddrRange { addr: lease.addr(), len: 4_096 };
            let found = vulkan.read_bytes(other, range).unwrap();
            assert!(found.iter().all(|byte| *byte == round), "round {round}");
            lease.release(other);
        }
    });
    drop(pool);
    assert!(locks.uses.load(Ordering::Relaxed) > 300, "the lock was passed by");
    assert!(!gone.load(Ordering::SeqCst), "the user's device goes while it is in use");
    drop(vulkan);
    assert!(gone.load(Ordering::SeqCst), "the user's device is kept for ever");
    assert!(locks.holders.lock().unwrap().is_empty());
}

/// A fence on a queue is behind what the user has submitted to it, and what the user submits later is
/// behind what the queue was made to wait for.
#[test]
fn a_queue_is_a_stream() {
    let Some(program) = Program::new() else { return };
    let program = Arc::new(program);
    let parts = program.parts(None);
    let (device, queue) = (program.device.clone(), program.queue.queue);
    // SAFETY: the parts are whole and kept; only this thread uses the queue.
    let vulkan = unsafe { VulkanDevice::from_external(parts, VulkanOptions::default()) }.unwrap();
    let own = vulkan.queue_stream(queue).unwrap();
    assert_eq!(vulkan.queue_stream(queue).unwrap(), own);
    assert!(vulkan.queue_stream(vk::Queue::null()).is_err());
    let mut kind =
        vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
    // SAFETY: `info` is valid.
    let start = unsafe { device.create_semaphore(&info, None) }.unwrap();
    let (waits, values, stages) = ([start], [1], [vk::PipelineStageFlags::ALL_COMMANDS]);
    let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().wait_semaphore_values(&values);
    let held = vk::SubmitInfo::default()
        .wait_semaphores(&waits)
        .wait_dst_stage_mask(&stages)
        .push_next(&mut timeline);
    // SAFETY: only this thread uses the queue; the host signals the semaphore below.
    unsafe { device.queue_submit(queue, &[held], vk::Fence::null()) }.unwrap();
    let fence = vulkan.record(own).unwrap();
    assert!(!vulkan.wait(fence, Duration::from_millis(2)).unwrap(), "not behind the user's submit");
    assert!(vulkan.reached(own).unwrap() < fence.value);
    // A bind behind it, on the same queue, needs no wait of the host either.
    let granule = vulkan.properties().granule;
    let range = AddrRange { addr: vulkan.reserve(granule, granule).unwrap(), len: granule };
    let frame = vulkan.make_frame(granule, FrameKind::Device).unwrap();
    let bound = vulkan.map(&[Mapping { range, frame }], &[fence]).unwrap();
    vulkan.stream_wait(own, bound).unwrap();
    vulkan.fill(range.addr, 7, range.len, own).unwrap();
    assert!(!vulkan.wait(bound, Duration::from_millis(2)).unwrap());
    let info = vk::SemaphoreSignalInfo::default().semaphore(start).value(1);
    // SAFETY: nothing else signals the semaphore.
    unsafe { device.signal_semaphore(&info) }.unwrap();
    assert!(vulkan.wait(fence, LONG).unwrap());
    assert!(vulkan.read_bytes(own, range).unwrap().iter().all(|byte| *byte == 7));
    let unbound = vulkan.unmap(&[range], &[vulkan.record(own).unwrap()]).unwrap();
    assert!(vulkan.wait(unbound, LONG).unwrap());
    vulkan.release_frame(frame).unwrap();
    vulkan.free_region(range.addr, range.len).unwrap();
    drop(vulkan);
    // SAFETY: the work that waited for it is done.
    unsafe { device.destroy_semaphore(start, None) };
}

/// The device itself holds a queue of the user's up, with whatever the user submits to it.
#[test]
fn a_gate_holds_a_queue() {
    let Some(program) = Program::new() else { return };
    let program = Arc::new(program);
    let parts = program.parts(None);
    let (device, queue) = (program.device.clone(), program.queue.queue);
    // SAFETY: the parts are whole and kept; only this thread uses the queue.
    let vulkan = unsafe { VulkanDevice::from_external(parts, VulkanOptions::default()) }.unwrap();
    let vulkan = Arc::new(vulkan);
    let own = vulkan.queue_stream(queue).unwrap();
    let before = vulkan.record(own).unwrap();
    let gate = Gate::new(&vulkan).unwrap();
    gate.hold(own).unwrap();
    // SAFETY: only this thread uses the queue.
    let fence = unsafe {
        let fence = device.create_fence(&vk::FenceCreateInfo::default(), None).unwrap();
        device.queue_submit(queue, &[vk::SubmitInfo::default()], fence).unwrap();
        fence
    };
    // SAFETY: the fence lives until the end.
    let done = |nanos| unsafe { device.wait_for_fences(&[fence], true, nanos) };
    let behind = vulkan.record(own).unwrap();
    assert!(vulkan.wait(before, LONG).unwrap());
    assert!(!vulkan.wait(behind, Duration::from_millis(2)).unwrap());
    assert_eq!(done(0), Err(vk::Result::TIMEOUT), "the user's submit is held up, too");
    assert_eq!(vulkan.reached(own).unwrap(), before.value);
    gate.open().unwrap();
    assert!(vulkan.wait(behind, LONG).unwrap());
    assert_eq!(done(u64::MAX), Ok(()));
    // SAFETY: the fence is done and used by nothing.
    unsafe { device.destroy_fence(fence, None) };
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let Some(program) = Program::new() else { return };
    let program = Arc::new(program);
    let parts = ExternalDevice { queues: Vec::new(), ..program.parts(None) };
    // SAFETY: the parts are whole and kept.
    let error = unsafe { VulkanDevice::from_external(parts, VulkanOptions::default()) };
    let error = error.map(drop).unwrap_err();
    assert!(matches!(error, Unavailable::BadParts { .. }), "{error}");
    let strange = ExternalQueue { family: 77, ..program.queue };
    let parts = ExternalDevice { bind_queue: strange, ..program.parts(None) };
    // SAFETY: as above; the queue is not used, for it is refused.
    let error = unsafe { VulkanDevice::from_external(parts, VulkanOptions::default()) };
    let error = error.map(drop).unwrap_err();
    assert!(error.to_string().contains("queue for binds"), "{error}");
}
