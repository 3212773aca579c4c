//! The instance and the device, made here or handed over.

use crate::choice::{self, Candidate};
use crate::facts::{self, Facts};
use crate::messages::{self, MessageLog};
use crate::options::{ExternalDevice, ExternalQueue, VulkanOptions};
use crate::unavailable::{Unavailable, call};
use ash::vk;
use parking_lot::Mutex;
use std::any::Any;
use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, OnceLock};

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

/// The newest version of which anything is used.
const NEWEST: u32 = vk::API_VERSION_1_3;

/// The loader, in memory for the life of the process.
static LOADER: OnceLock<ash::Entry> = OnceLock::new();

/// The instance that all devices share that no validation layer watches. It is never destroyed: the
/// loader takes drivers out of memory with the last instance, and NVIDIA's (580) cannot be loaded more
/// than some thirty times in a process.
static SHARED: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

/// An instance that is destroyed with this value.
pub(crate) struct Instance {
    pub(crate) handle: ash::Instance,
    pub(crate) api_version: u32,
    watcher: Option<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    /// In a box of its own, for the layer has its address.
    messages: Box<MessageLog>,
}

fn loader() -> Result<&'static ash::Entry, Unavailable> {
    if let Some(loader) = LOADER.get() {
        return Ok(loader);
    }
    // SAFETY: loading the system's Vulkan loader runs its initialisers, which are trusted as any
    // library of the system is.
    let loaded = unsafe { ash::Entry::load() }
        .map_err(|error| Unavailable::NoLoader { reason: error.to_string() })?;
    Ok(LOADER.get_or_init(|| loaded))
}

impl Instance {
    /// The one that is shared. Without it in the way of others: a validation layer that watches speaks
    /// of one device only if that has an instance of its own.
    pub(crate) fn shared() -> Result<Arc<Self>, Unavailable> {
        // Held meanwhile, for some drivers cannot make two at once.
        let mut shared = SHARED.lock();
        if let Some(made) = &*shared {
            return Ok(Arc::clone(made));
        }
        Ok(Arc::clone(shared.insert(Arc::new(Self::new(false)?))))
    }

    fn new(validation: bool) -> Result<Self, Unavailable> {
        let entry = loader()?;
        // SAFETY: no requirements.
        let loader = unsafe { entry.try_enumerate_instance_version() }
            .map_err(call("vkEnumerateInstanceVersion"))?
            .unwrap_or(vk::API_VERSION_1_0);
        if facts::version(loader) < facts::NEEDED {
            let (what, found) = ("the Vulkan loader".to_owned(), facts::version(loader));
            return Err(Unavailable::TooOld { what, found, needed: facts::NEEDED });
        }
        if validation && !has_validation(entry)? {
            return Err(Unavailable::NoValidationLayer);
        }
        let api_version = loader.min(NEWEST);
        let messages = Box::<MessageLog>::default();
        let mut watch = messages::create_info(&messages);
        let (layers, extensions) = if validation {
            (vec![VALIDATION.as_ptr()], vec![ash::ext::debug_utils::NAME.as_ptr()])
        } else {
            (Vec::new(), Vec::new())
        };
        let app = vk::ApplicationInfo::default().application_name(c"vmm").api_version(api_version);
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&app)
            .enabled_layer_names(&layers)
            .enabled_extension_names(&extensions);
        if validation {
            // Watches the making and the end of the instance itself.
            info = info.push_next(&mut watch);
        }
        // SAFETY: `info` and what it points to are valid; the layer and the extension exist, and
        // `messages` moves with the instance.
        let handle = unsafe { entry.create_instance(&info, None) }.map_err(|result| {
            // The loader's way to say that it has found no driver.
            if result == vk::Result::ERROR_INCOMPATIBLE_DRIVER {
                Unavailable::NoDriver
            } else {
                Unavailable::Call { call: "vkCreateInstance", result }
            }
        })?;
        let mut made = Self { handle, api_version, watcher: None, messages };
        if validation {
            let watcher = ash::ext::debug_utils::Instance::new(entry, &made.handle);
            let info = messages::create_info(&made.messages);
            // SAFETY: the extension is enabled, and `info` points to a box that `made` owns.
            let handle = unsafe { watcher.create_debug_utils_messenger(&info, None) }
                .map_err(call("vkCreateDebugUtilsMessengerEXT"))?;
            made.watcher = Some((watcher, handle));
        }
        Ok(made)
    }

    pub(crate) fn physical_devices(&self) -> Result<Vec<vk::PhysicalDevice>, Unavailable> {
        // SAFETY: the instance lives.
        unsafe { self.handle.enumerate_physical_devices() }
            .map_err(call("vkEnumeratePhysicalDevices"))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: everything made on the instance is gone, as its owners hold it, and the messenger
        // was made on it.
        unsafe {
            if let Some((watcher, handle)) = self.watcher.take() {
                watcher.destroy_debug_utils_messenger(handle, None);
            }
            self.handle.destroy_instance(None);
        }
    }
}

fn has_validation(entry: &ash::Entry) -> Result<bool, Unavailable> {
    // SAFETY: no requirements.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }
        .map_err(call("vkEnumerateInstanceLayerProperties"))?;
    Ok(layers.iter().any(|layer| layer.layer_name_as_c_str() == Ok(VALIDATION)))
}

/// The device that everything else is made on, and how to reach it.
pub(crate) struct Context {
    pub(crate) instance: ash::Instance,
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) device: ash::Device,
    pub(crate) facts: Facts,
    /// Families whose queues use the memory, each once.
    pub(crate) families: Vec<u32>,
    /// Timelines whose streams are gone, and the points that they have reached. They serve again, and
    /// go with the device: Mesa's queues look at a semaphore for a moment after they have signalled
    /// the next, so that it must not be destroyed as soon as the specification allows.
    timelines: Mutex<Vec<(vk::Semaphore, u64)>>,
    messages: MessageLog,
    owner: Owner,
}

/// Whom the device belongs to.
enum Owner {
    Own { _instance: Arc<Instance> },
    User { _keep: Option<Arc<dyn Any + Send + Sync>> },
    Nobody,
}

/// The queues of a context.
pub(crate) struct Handed {
    pub(crate) work: Vec<ExternalQueue>,
    pub(crate) bind: ExternalQueue,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Context {
    /// Makes an instance and a device.
    pub(crate) fn open(options: &VulkanOptions) -> Result<(Self, Handed), Unavailable> {
        let instance =
            if options.validation { Arc::new(Instance::new(true)?) } else { Instance::shared()? };
        let Candidate { physical, mut facts } = choice::choose(&instance, &options.choice)?;
        facts.aliased &= options.aliases;
        let missing = |feature| Unavailable::MissingFeature { device: facts.name.clone(), feature };
        let work = facts.work_family().ok_or_else(|| missing("compute queue"))?;
        let bind = facts.bind_family(work).ok_or_else(|| missing("sparse binding queue"))?;
        let there = facts.families[work as usize].queue_count;
        // The last queue of the family is left to binds if these share it.
        let spared = u32::from(bind == work && there > 1);
        let count = options.queues.clamp(1, there - spared);
        let priorities = vec![1.0; (count + spared) as usize];
        let mut queues = vec![
            vk::DeviceQueueCreateInfo::default()
                .queue_family_index(work)
                .queue_priorities(&priorities),
        ];
        if bind != work {
            queues.push(
                vk::DeviceQueueCreateInfo::default()
                    .queue_family_index(bind)
                    .queue_priorities(&priorities[..1]),
            );
        }
        let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default()
            .timeline_semaphore(true)
            .buffer_device_address(true);
        let core = vk::PhysicalDeviceFeatures::default()
            .sparse_binding(true)
            .sparse_residency_buffer(true)
            .sparse_residency_aliased(facts.aliased)
            .shader_int64(facts.wide_integers);
        let extensions: &[_] =
            if facts.budget { &[ash::ext::memory_budget::NAME.as_ptr()] } else { &[] };
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(extensions)
            .enabled_features(&core)
            .push_next(&mut vulkan12);
        // SAFETY: `info` and what it points to are valid, and `facts` says that the device has all
        // features that are enabled.
        let device = unsafe { instance.handle.create_device(physical, &info, None) }
            .map_err(call("vkCreateDevice"))?;
        let queue = |family, index| {
            // SAFETY: the device was made with this many queues of the family.
            let queue = unsafe { device.get_device_queue(family, index) };
            ExternalQueue { queue, family }
        };
        let handed = Handed {
            work: (0..count).map(|index| queue(work, index)).collect(),
            bind: match (bind == work, spared) {
                (true, 0) => queue(work, 0),
                (true, _) => queue(work, count),
                (false, _) => queue(bind, 0),
            },
        };
        let context = Self {
            instance: instance.handle.clone(),
            physical,
            device,
            families: distinct([work, bind]),
            facts,
            timelines: Mutex::default(),
            // The shared one has no messages, so that each device has an end of its own.
            messages: if options.validation {
                MessageLog::clone(&instance.messages)
            } else {
                MessageLog::default()
            },
            owner: Owner::Own { _instance: instance },
        };
        Ok((context, handed))
    }

    /// Uses what the user has made.
    ///
    /// # Safety
    /// As [`crate::VulkanDevice::from_external`].
    pub(crate) unsafe fn from_external(
        parts: ExternalDevice,
        options: &VulkanOptions,
    ) -> Result<(Self, Handed), Unavailable> {
        let mut facts = facts::inspect(&parts.instance, parts.physical_device, parts.api_version)?;
        let bad = |reason| Unavailable::BadParts { device: facts.name.clone(), reason };
        let Some(first) = parts.queues.first() else {
            return Err(bad("no queue was handed over: at least one with compute is needed"));
        };
        if parts.queues.iter().any(|queue| queue.family != first.family) {
            return Err(bad("the queues for streams must be of one family"));
        }
        let flags = |family: u32| {
            let found = facts.families.get(family as usize);
            found.map_or(vk::QueueFlags::empty(), |family| family.queue_flags)
        };
        if !flags(first.family).contains(vk::QueueFlags::COMPUTE) {
            return Err(bad("the queues for streams must be of a family with compute"));
        }
        if !flags(parts.bind_queue.family).contains(vk::QueueFlags::SPARSE_BINDING) {
            return Err(bad("the queue for binds must be of a family with sparse binding"));
        }
        let families = [first.family, parts.bind_queue.family].into_iter();
        let families = distinct(families.chain(parts.other_families.iter().copied()));
        facts.aliased &= parts.aliased && options.aliases;
        let handed = Handed { work: parts.queues, bind: parts.bind_queue };
        let context = Self {
            instance: parts.instance,
            physical: parts.physical_device,
            device: parts.device,
            facts,
            families,
            timelines: Mutex::default(),
            messages: MessageLog::default(),
            owner: Owner::User { _keep: parts.keep },
        };
        Ok((context, handed))
    }

    /// A timeline semaphore, and the point that it has reached.
    pub(crate) fn take_timeline(&self) -> Result<(vk::Semaphore, u64), vk::Result> {
        if let Some(used) = self.timelines.lock().pop() {
            return Ok(used);
        }
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: `info` is valid, and the device has timeline semaphores.
        let made = unsafe { self.device.create_semaphore(&info, None) }?;
        Ok((made, 0))
    }

    /// Takes back a timeline of which no higher point is signalled or waited for any more.
    pub(crate) fn give_timeline(&self, semaphore: vk::Semaphore, reached: u64) {
        self.timelines.lock().push((semaphore, reached));
    }

    pub(crate) fn messages(&self) -> MessageLog {
        self.messages.clone()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: whatever was made on the device holds this context, so it is gone; its work has
        // ended and the queues are idle, as `Streams::finish` sees to. The instance goes after this.
        unsafe {
            for (semaphore, _) in self.timelines.get_mut().drain(..) {
                self.device.destroy_semaphore(semaphore, None);
            }
            if let Owner::Own { .. } = self.owner {
                self.device.destroy_device(None);
            }
        }
        self.owner = Owner::Nobody;
        self.messages.end();
    }
}

fn distinct(families: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut families: Vec<u32> = families.into_iter().collect();
    families.sort_unstable();
    families.dedup();
    families
}
