//! Pool memory as cudarc sees it.

use crate::device::CudaDevice;
use crate::stream;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaEvent, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, DriverError,
    LaunchArgs, PushKernelArg, SyncOnDrop, ValidAsZeroBits,
};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};
use vmm_core::units::{DeviceAddr, StreamId};
use vmm_core::{AllocError, Lease, Owner, Pool};

/// A typed slice of pool memory that cudarc's functions take like a `CudaSlice`: copies, `cuBLAS`, and
/// arguments of kernels.
///
/// It holds a share of the lease, so that the memory stays while the slice lives, and cannot free it.
/// It has a stream of its own. Used on another stream through [`DevicePtr`] or [`DevicePtrMut`], that
/// stream is put behind all work that is queued on its own, and later uses behind that stream's.
///
/// As an argument of a kernel it does not learn which stream the kernel is launched on: launch on the
/// slice's own, or order the two (`CudaStream::join`), and tell the lease ([`Lease::used_on`]).
///
/// Before a stream is destroyed, which cudarc does with the last `Arc` of it, the pool must be told
/// ([`Pool::forget_stream`]). That goes for each stream that a slice was used on through [`DevicePtr`] or
/// [`DevicePtrMut`]. For its own stream the slice does so itself where it holds the last `Arc`; a pool
/// cannot be told while a stream captures, so let go of the last slice of a stream outside of captures.
pub struct LeaseSlice<T> {
    pool: Pool<CudaDevice>,
    lease: Lease<CudaDevice>,
    addr: CUdeviceptr,
    len: usize,
    stream: ManuallyDrop<Arc<CudaStream>>,
    name: StreamId,
    others: Others,
    elements: PhantomData<T>,
}

/// Why memory of a pool cannot be seen as a slice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    /// The lease is shorter than the slice would be.
    #[error("a slice of {wanted} bytes does not fit a lease of {len}")]
    TooLong {
        /// Bytes of the slice; `u64::MAX` stands for all that is longer.
        wanted: u64,
        /// Bytes of the lease.
        len: u64,
    },
    /// The lease does not begin where such an element may.
    #[error("elements are aligned to {alignment} bytes, the lease at {addr} is not")]
    Misaligned {
        /// Where the lease begins.
        addr: DeviceAddr,
        /// Alignment of the elements, in bytes.
        alignment: usize,
    },
    /// The stream belongs to another context.
    #[error(
        "the stream belongs to another context than the pool: make it in the primary context of device {ordinal} (CudaContext::new({ordinal}))"
    )]
    OtherContext {
        /// The ordinal of the pool's device.
        ordinal: u32,
    },
    /// The stream is the per-thread default stream, which is another one on each thread.
    #[error(
        "a slice can move to another thread, where the per-thread default stream is another one: make a stream for it (CudaContext::new_stream)"
    )]
    PerThreadStream,
    /// The pool has no memory for it.
    #[error("{0}")]
    Alloc(#[from] AllocError),
    /// A call of the driver failed.
    #[error("{0}")]
    Driver(#[from] DriverError),
}

impl<T: DeviceRepr> LeaseSlice<T> {
    /// Views the first `len` elements of a lease, which it takes: [`Lease::share`] makes another hold
    /// for the caller, and [`LeaseSlice::into_lease`] gives this one back.
    ///
    /// # Errors
    /// All but [`SliceError::Alloc`].
    ///
    /// # Safety
    /// - The lease is one of `pool`.
    /// - Before the memory is read through the slice, it holds valid values of `T`; fresh memory of a
    ///   pool holds anything.
    /// - While the slice lives, whatever else uses the memory is ordered before or behind the uses
    ///   through the slice, unless both only read: a lease can be shared, so that the borrow checker
    ///   cannot see this.
    pub unsafe fn new(
        pool: &Pool<CudaDevice>,
        lease: Lease<CudaDevice>,
        len: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, SliceError> {
        let name = name_in(pool, stream)?;
        let wanted = bytes_of::<T>(len);
        if wanted > lease.len() {
            return Err(SliceError::TooLong { wanted, len: lease.len() });
        }
        let alignment = align_of::<T>();
        let addr = lease.addr();
        if !addr.0.is_multiple_of(alignment as u64) {
            return Err(SliceError::Misaligned { addr, alignment });
        }
        // Also where the names are equal: the lease's stream may be gone, and its handle come back.
        lease.used_on(name);
        Ok(Self {
            pool: pool.clone(),
            lease,
            addr: addr.0,
            len,
            stream: ManuallyDrop::new(Arc::clone(stream)),
            name,
            others: Others::default(),
            elements: PhantomData,
        })
    }

    /// Fresh memory with a copy of `values`, which have been read when this returns.
    ///
    /// # Errors
    /// Any of [`SliceError`].
    pub fn from_values(
        pool: &Pool<CudaDevice>,
        values: &[T],
        stream: &Arc<CudaStream>,
        owner: Owner,
    ) -> Result<Self, SliceError> {
        // SAFETY: the copy below writes all elements before any other use on the stream.
        let mut slice = unsafe { Self::fresh(pool, values.len(), stream, owner) }?;
        if !values.is_empty() {
            stream.memcpy_htod(values, &mut slice)?;
            stream.synchronize()?;
        }
        Ok(slice)
    }

    /// Fresh memory in which every byte is zero.
    ///
    /// # Errors
    /// Any of [`SliceError`].
    pub fn zeroed(
        pool: &Pool<CudaDevice>,
        len: usize,
        stream: &Arc<CudaStream>,
        owner: Owner,
    ) -> Result<Self, SliceError>
    where
        T: ValidAsZeroBits,
    {
        // SAFETY: the call below writes all elements before any other use on the stream.
        let mut slice = unsafe { Self::fresh(pool, len, stream, owner) }?;
        if slice.addr != 0 {
            stream.memset_zeros(&mut slice)?;
        }
        Ok(slice)
    }

    /// # Safety
    /// The caller writes all elements before they are read.
    unsafe fn fresh(
        pool: &Pool<CudaDevice>,
        len: usize,
        stream: &Arc<CudaStream>,
        owner: Owner,
    ) -> Result<Self, SliceError> {
        let name = name_in(pool, stream)?;
        let lease = pool.allocate(bytes_of::<T>(len), name, owner)?;
        // SAFETY: the lease is the pool's and known to nobody else; the rest is the caller's promise.
        unsafe { Self::new(pool, lease, len, stream) }
    }
}

impl<T> LeaseSlice<T> {
    /// The lease behind the slice.
    #[must_use]
    pub fn lease(&self) -> &Lease<CudaDevice> {
        &self.lease
    }

    /// The lease, without the view. Work through the slice on other streams is put before later
    /// work of the slice's stream.
    #[must_use]
    pub fn into_lease(self) -> Lease<CudaDevice> {
        self.follow_others();
        self.lease.share(self.lease.owner())
    }

    /// How many elements it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts the slice's stream behind what other streams have done with the slice.
    fn follow_others(&self) {
        for event in self.others.events() {
            self.stream.context().record_err(self.stream.wait(event));
        }
    }

    /// The address for work on `stream`, which comes behind all earlier work on the slice.
    fn use_on<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let own = self.stream.context();
        // Without its tracking of events the caller orders streams.
        let orders = own.is_event_tracking();
        if orders {
            self.follow_others();
        }
        let name = CudaDevice::stream_id(stream.cu_stream());
        if stream.context() != own {
            // The pool cannot record a fence on a stream of another device, so the host waits.
            if orders {
                own.record_err(stream.join(&self.stream));
            }
            return (self.addr, SyncOnDrop::sync_stream(stream));
        }
        if name == self.name {
            return (self.addr, SyncOnDrop::Record(None));
        }
        self.lease.used_on(name);
        if !orders {
            return (self.addr, SyncOnDrop::Record(None));
        }
        own.record_err(stream.join(&self.stream));
        let event = if own.is_managing_stream_synchronization() {
            self.others.event(name, || own.new_event(None))
        } else {
            // cudarc records no event then.
            Ok(None)
        };
        match event {
            Ok(Some(event)) => (self.addr, SyncOnDrop::Record(Some((event, stream)))),
            Ok(None) => (self.addr, SyncOnDrop::sync_stream(stream)),
            Err(error) => {
                own.record_err(Err::<(), _>(error));
                (self.addr, SyncOnDrop::sync_stream(stream))
            }
        }
    }
}

impl<T> Drop for LeaseSlice<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used afterwards.
        let stream = unsafe { ManuallyDrop::take(&mut self.stream) };
        // Of several slices that end at once, one finds itself the last. The legacy stream stays.
        let last = Arc::into_inner(stream).filter(|_| self.name != stream::LEGACY);
        if let Some(_stream) = last {
            // Nobody is there to take an error, and the stream cannot be kept.
            let _ = self.pool.forget_stream(self.name);
        }
    }
}

impl<T> fmt::Debug for LeaseSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseSlice")
            .field("lease", &self.lease)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl<T> DeviceSlice<T> for LeaseSlice<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl<T> DevicePtr<T> for LeaseSlice<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.use_on(stream)
    }
}

impl<T> DevicePtrMut<T> for LeaseSlice<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.use_on(stream)
    }
}

// SAFETY: pushes a pointer to the address, which lives as long as the slice is borrowed; a kernel takes
// it as a pointer. Launching is unsafe, and what the kernel does with it is its caller's promise.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b LeaseSlice<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b LeaseSlice<T>) -> &mut Self {
        arg.follow_others();
        PushKernelArg::<&'b CUdeviceptr>::arg(self, &arg.addr)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut LeaseSlice<T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut LeaseSlice<T>) -> &mut Self {
        arg.follow_others();
        PushKernelArg::<&'b CUdeviceptr>::arg(self, &arg.addr)
    }
}

/// Bytes of so many elements; `u64::MAX` beyond.
fn bytes_of<T>(len: usize) -> u64 {
    (len as u64).saturating_mul(size_of::<T>() as u64)
}

/// The name of a stream that a slice of this pool can have.
fn name_in(pool: &Pool<CudaDevice>, stream: &CudaStream) -> Result<StreamId, SliceError> {
    let device = pool.device();
    if stream.context().cu_ctx() != device.context() {
        return Err(SliceError::OtherContext { ordinal: device.ordinal().0 });
    }
    if stream.cu_stream().addr() == crate::ffi::STREAM_PER_THREAD {
        return Err(SliceError::PerThreadStream);
    }
    Ok(CudaDevice::stream_id(stream.cu_stream()))
}

/// An event for each stream, other than its own, that a slice was used on. cudarc records it when the
/// use was queued; one for all would forget a use when the next is recorded.
///
/// A list that only grows, so that events can be lent out while it does.
#[derive(Debug, Default)]
struct Others(OnceLock<Box<Other>>);

#[derive(Debug)]
struct Other {
    stream: StreamId,
    event: CudaEvent,
    next: Others,
}

impl Others {
    fn events(&self) -> impl Iterator<Item = &CudaEvent> {
        std::iter::successors(self.0.get(), |other| other.next.0.get()).map(|other| &other.event)
    }

    /// The event of a stream, made where there is none.
    fn event<E>(
        &self,
        stream: StreamId,
        make: impl Fn() -> Result<CudaEvent, E>,
    ) -> Result<Option<&CudaEvent>, E> {
        let mut list = self;
        loop {
            let other = match list.0.get() {
                Some(other) => other,
                None => {
                    let event = make()?;
                    // Another thread may have been quicker; then its entry stands.
                    list.0.get_or_init(|| Box::new(Other { stream, event, next: Self::default() }))
                }
            };
            if other.stream == stream {
                return Ok(Some(&other.event));
            }
            list = &other.next;
        }
    }
}
