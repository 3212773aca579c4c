//! What the validation layer says.

use ash::vk;
use parking_lot::Mutex;
use std::ffi::{CStr, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the validation layer has said about a device so far. Outlives it, for the layer also speaks of
/// what is left over in the end.
#[derive(Clone, Debug, Default)]
pub struct MessageLog(Arc<Log>);

#[derive(Debug, Default)]
struct Log {
    lines: Mutex<Vec<String>>,
    ended: AtomicBool,
}

impl MessageLog {
    /// Every message.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        self.0.lines.lock().clone()
    }

    /// Whether the device is gone with everything that was made on it, so that nothing more will be
    /// said. If it stays false after the last [`crate::VulkanDevice`] was dropped, something leaks.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.0.ended.store(true, Ordering::Release);
    }
}

/// Lets the layer report to `messages`, whose address must stay valid as long as the instance.
pub(crate) fn create_info(messages: &MessageLog) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    use vk::DebugUtilsMessageSeverityFlagsEXT as Severity;
    use vk::DebugUtilsMessageTypeFlagsEXT as Type;
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::WARNING | Severity::ERROR)
        .message_type(Type::VALIDATION)
        .pfn_user_callback(Some(note))
        .user_data(std::ptr::from_ref(messages).cast_mut().cast())
}

/// Called by the layer, on any thread, in the middle of a Vulkan call.
unsafe extern "system" fn note(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _kind: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: `create_info` passed a `MessageLog` that lives as long as the instance; it is shared and
    // has a lock of its own.
    let messages = unsafe { &*user.cast::<MessageLog>() };
    // SAFETY: the specification says that the data is valid during the call and the message a string
    // that ends with zero, or null.
    let text = unsafe {
        let message = (*data).p_message;
        if message.is_null() { c"" } else { CStr::from_ptr(message) }
    };
    messages.0.lines.lock().push(text.to_string_lossy().into_owned());
    // Anything else would abort the call that is being watched.
    vk::FALSE
}
