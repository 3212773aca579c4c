//! The device's primary context, made current for the duration of a call.
//!
//! Callers' threads keep the context that they had: a thread may use another device, or none at all.

use crate::driver::Driver;
use crate::error::About;
use crate::ffi::{self, CAPTURE_MODE_RELAXED, Code, code};
use crate::process;
use crate::unavailable::Unavailable;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use vmm_core::device::{DeviceError, DeviceErrorKind, DeviceResult};

/// One share in the primary context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    driver: &'static Driver,
    device: ffi::Device,
    raw: ffi::Context,
    /// Tells this context from one that takes its place after a reset; 0 if the driver cannot.
    id: u64,
    /// Set once the driver or the context has been found gone, and never cleared.
    lost: AtomicBool,
}

// SAFETY: a context is a handle that the driver lets any thread use; nothing is read through the
// pointer here.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(crate) fn retain(
        driver: &'static Driver,
        device: ffi::Device,
    ) -> Result<Self, Unavailable> {
        let mut raw = ptr::null_mut();
        // SAFETY: `device` comes from the driver, which writes the context.
        let result = unsafe { (driver.primary_ctx_retain)(&raw mut raw, device) };
        driver.check("cuDevicePrimaryCtxRetain", result)?;
        let mut context = Self { driver, device, raw, id: 0, lost: AtomicBool::new(false) };
        context.id = context.read_id().unwrap_or(0);
        Ok(context)
    }

    pub(crate) fn driver(&self) -> &'static Driver {
        self.driver
    }

    pub(crate) fn raw(&self) -> ffi::Context {
        self.raw
    }

    /// Whether calls still reach the context. False for good once it is gone.
    pub(crate) fn lives(&self) -> bool {
        !process::is_forked() && !self.lost.load(Ordering::Relaxed)
    }

    /// Makes the context current on this thread until the guard is dropped.
    pub(crate) fn enter(&self, about: About) -> DeviceResult<Current<'_>> {
        if process::is_forked() {
            let detail = "the process is a fork of one that had used CUDA";
            return Err(about.error(DeviceErrorKind::Deinitialized, detail));
        }
        if !self.lives() {
            return Err(gone(about));
        }
        self.push().map_err(|result| self.failed(about, result))
    }

    /// As `enter`, and lets calls pass that a capture, in any mode and of any thread, would forbid.
    /// None of them touches a stream that captures, so that none can harm its graph.
    pub(crate) fn enter_relaxed(&self, about: About) -> DeviceResult<Current<'_>> {
        let mut current = self.enter(about)?;
        let relaxed = Relaxed::enter(self.driver);
        current.relaxed = Some(relaxed.map_err(|result| self.failed(about, result))?);
        Ok(current)
    }

    /// The result of a call as the device interface sees it.
    pub(crate) fn check(&self, about: About, result: Code) -> DeviceResult<()> {
        if result == code::SUCCESS { Ok(()) } else { Err(self.failed(about, result)) }
    }

    /// The error of a call that has returned `result`, which is not success. Notes a context that is
    /// gone.
    fn failed(&self, about: About, result: Code) -> DeviceError {
        let error = about.failed(self.driver, result);
        if error.kind != DeviceErrorKind::Deinitialized {
            return error;
        }
        if self.is_gone(result) {
            self.lost.store(true, Ordering::Relaxed);
            return error;
        }
        DeviceError { kind: DeviceErrorKind::Failed, ..error }
    }

    /// Whether a result that tells of a lost driver or context is about this one. Calls with the
    /// handle of a destroyed stream can return the same, so that the context itself is asked, where
    /// the driver can.
    fn is_gone(&self, result: Code) -> bool {
        let of_context = [code::INVALID_CONTEXT, code::CONTEXT_IS_DESTROYED];
        if self.id == 0 || !of_context.contains(&result) {
            return true;
        }
        match self.read_id() {
            Ok(id) => id != self.id,
            Err(result) => {
                let of_driver = [code::NOT_INITIALIZED, code::DEINITIALIZED];
                of_context.contains(&result) || of_driver.contains(&result)
            }
        }
    }

    fn push(&self) -> Result<Current<'_>, Code> {
        // A reset destroys the context whoever holds it, and the next user may be given the same
        // handle for a new one, in which nothing of ours exists.
        if self.id != 0 && self.read_id()? != self.id {
            return Err(code::CONTEXT_IS_DESTROYED);
        }
        let mut now = ptr::null_mut();
        // SAFETY: the driver writes the thread's context.
        succeed(unsafe { (self.driver.ctx_get_current)(&raw mut now) })?;
        let pushed = now != self.raw;
        if pushed {
            // SAFETY: the context is held by this share; where it was reset, the driver refuses.
            succeed(unsafe { (self.driver.ctx_push_current)(self.raw) })?;
        }
        Ok(Current { context: self, pushed, relaxed: None, here: PhantomData })
    }

    fn read_id(&self) -> Result<u64, Code> {
        let Some(get_id) = self.driver.ctx_get_id else { return Ok(0) };
        let mut id = 0;
        // SAFETY: the driver checks the handle and writes the number.
        succeed(unsafe { get_id(self.raw, &raw mut id) })?;
        Ok(id)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.lives() {
            // SAFETY: gives back the share that `retain` took, once. The driver returns an error
            // where it has shut down, and then there is nothing to give back.
            unsafe { (self.driver.primary_ctx_release)(self.device) };
        }
    }
}

/// The error of every call after the context was lost.
fn gone(about: About) -> DeviceError {
    let detail = "the driver has shut down, or the context was reset; open the device anew";
    about.error(DeviceErrorKind::Deinitialized, detail)
}

fn succeed(result: Code) -> Result<(), Code> {
    if result == code::SUCCESS { Ok(()) } else { Err(result) }
}

/// The context is current on this thread while this lives.
#[derive(Debug)]
pub(crate) struct Current<'a> {
    context: &'a Context,
    pushed: bool,
    relaxed: Option<Relaxed>,
    /// Contexts belong to a thread, so the guard stays on its own.
    here: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // While the context is still current, as when the mode was relaxed.
        drop(self.relaxed.take());
        if self.pushed {
            let mut popped = ptr::null_mut();
            // SAFETY: what `push` put on top of this thread's stack; guards end in reverse order.
            unsafe { (self.context.driver.ctx_pop_current)(&raw mut popped) };
        }
    }
}

/// The capture mode of this thread is relaxed while this lives.
#[derive(Debug)]
pub(crate) struct Relaxed {
    driver: &'static Driver,
    /// The thread's mode before.
    mode: c_int,
    /// Modes belong to a thread, so the guard stays on its own.
    here: PhantomData<*const ()>,
}

impl Relaxed {
    pub(crate) fn enter(driver: &'static Driver) -> Result<Self, Code> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: a legal mode; the driver writes the thread's former one.
        succeed(unsafe { (driver.exchange_capture_mode)(&raw mut mode) })?;
        Ok(Self { driver, mode, here: PhantomData })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: the mode that the driver has returned for this thread, which the guard does not
        // leave (`here`).
        unsafe { (self.driver.exchange_capture_mode)(&raw mut self.mode) };
    }
}
