//! Kernels compiled at run time, on memory of a pool that two streams share.
//!
//! ```text
//! cargo run -p vmm-cuda --example cudarc_kernel
//! ```

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};
use std::error::Error;
use std::sync::Arc;
use vmm_core::{Pool, PoolOptions};
use vmm_cuda::{CudaDevice, CudaOptions, LeaseSlice};

const SOURCE: &str = r#"
extern "C" __global__ void scale(float *values, float factor, size_t count) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) values[i] *= factor;
}
extern "C" __global__ void add(float *sum, const float *values, size_t count) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) sum[i] += values[i];
}
"#;

const COUNT: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let device = match CudaDevice::new(CudaOptions::default()) {
        Ok(device) => Arc::new(device),
        Err(why) => {
            println!("skipped: {why}");
            return Ok(());
        }
    };
    // The same primary context, as cudarc sees it.
    let context = CudaContext::new(0)?;
    let options = CompileOptions { use_fast_math: Some(false), ..CompileOptions::default() };
    let module = context.load_module(compile_ptx_with_opts(SOURCE, options)?)?;
    let (scale, add) = (module.load_function("scale")?, module.load_function("add")?);
    let (first, second) = (context.new_stream()?, context.new_stream()?);

    let pool = Pool::new(Arc::clone(&device), PoolOptions::default())?;
    let host: Vec<f32> = (0..1000_u16).cycle().map(f32::from).take(COUNT).collect();
    let mut values = LeaseSlice::from_values(&pool, &host, &first, pool.owner("values"))?;
    let mut sum = LeaseSlice::<f32>::zeroed(&pool, COUNT, &second, pool.owner("sum"))?;

    let config = LaunchConfig::for_num_elems(u32::try_from(COUNT)?);
    // SAFETY: the arguments are those that the source declares, and both slices have `COUNT` elements.
    unsafe {
        first.launch_builder(&scale).arg(&mut values).arg(&3.0_f32).arg(&COUNT).launch(config)?
    };

    // Another hold on the same memory, for work on the second stream. That is put behind the first, and
    // the pool is told, so that nobody gets the memory before both are done.
    let shared = values.lease().share(pool.owner("reader"));
    // SAFETY: the lease is the pool's and its values are written; both only read from here on.
    let read = unsafe { LeaseSlice::<f32>::new(&pool, shared, COUNT, &second)? };
    second.join(&first)?;
    // SAFETY: as above.
    unsafe { second.launch_builder(&add).arg(&mut sum).arg(&read).arg(&COUNT).launch(config)? };
    // The first hold may go at once: the memory stays for the second.
    drop(values);

    let found = second.clone_dtoh(&sum)?;
    second.synchronize()?;
    let right = found.iter().zip(&host).all(|(found, value)| *found == 3.0 * value);
    println!(
        "{COUNT} values on {}: {}",
        device_name(&device),
        if right { "right" } else { "wrong" }
    );
    drop((read, sum));
    // The pool must not ask for streams that are destroyed.
    for stream in [&first, &second] {
        pool.forget_stream(CudaDevice::stream_id(stream.cu_stream()))?;
    }
    println!("{} bytes live, {} reserved", pool.stats().live_bytes, pool.stats().reserved_bytes);
    if right { Ok(()) } else { Err("the kernels did not give 3 times the values".into()) }
}

fn device_name(device: &CudaDevice) -> &str {
    use vmm_core::VirtualMemoryDevice;
    &device.properties().name
}
