// What is asked of the CUDA runtime: events, captures, and waits for devices.
#pragma once

#include "uses.h"

#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

namespace vmm {

// Lets this thread make calls that captures forbid otherwise, whoever captures; those that follow
// concern no stream that does.
class Relaxed {
  public:
    Relaxed() : error_(cudaThreadExchangeStreamCaptureMode(&mode_)) {}
    Relaxed(const Relaxed &) = delete;
    Relaxed &operator=(const Relaxed &) = delete;
    ~Relaxed() {
        if (error_ == cudaSuccess) {
            (void)cudaThreadExchangeStreamCaptureMode(&mode_);
        }
    }

    // Where that did not work, calls are as they were.
    cudaError_t error() const { return error_; }

  private:
    // The mode that was, after the exchange.
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
    cudaError_t error_;
};

// Until it ends, calls are for a device, and may be made whatever other threads capture.
class OnDevice {
  public:
    explicit OnDevice(int device) : guard_(static_cast<c10::DeviceIndex>(device)) {
        C10_CUDA_CHECK(relaxed_.error());
    }

  private:
    c10::cuda::CUDAGuard guard_;
    Relaxed relaxed_;
};

inline int current_device() {
    c10::DeviceIndex device = -1;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
}

// Whether a stream captures a graph, see `Routes::is_capturing`.
inline std::optional<bool> is_capturing(Stream stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &status);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        // The legacy stream, while another one captures. Others are no streams any more.
        return error == cudaErrorStreamCaptureImplicit ? std::nullopt : std::optional(false);
    }
    return status != cudaStreamCaptureStatusNone;
}

// Waits for all work of a device. False while a graph is captured that PyTorch said nothing of.
inline bool wait_for(int index) {
    c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
    cudaError_t error = cudaSuccess;
    {
        // Captures on other devices are not disturbed, so they need not forbid it.
        Relaxed relaxed;
        error = cudaDeviceSynchronize();
    }
    if (error == cudaErrorStreamCaptureUnsupported || error == cudaErrorStreamCaptureInvalidated) {
        (void)cudaGetLastError();
        return false;
    }
    C10_CUDA_CHECK(error);
    return true;
}

class CudaEvents final : public Orders {
  public:
    Order record(const Use &use, Event &event) override {
        return on(use, [&] {
            cudaEvent_t made = nullptr;
            cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
            if (error != cudaSuccess) {
                return error;
            }
            error = cudaEventRecord(made, use.stream);
            if (error != cudaSuccess) {
                (void)cudaEventDestroy(made);
                return error;
            }
            event = made;
            return error;
        });
    }

    Order wait(const Use &stream, Event event) override {
        return on(stream, [&] {
            return cudaStreamWaitEvent(stream.stream, static_cast<cudaEvent_t>(event), 0);
        });
    }

    bool is_over(Event event) override {
        Relaxed relaxed;
        cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
        if (error != cudaSuccess) {
            (void)cudaGetLastError();
        }
        return error == cudaSuccess;
    }

    void destroy(Event event) override { (void)cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

  private:
    // Makes calls for a stream unless it captures: they would become part of the graph, or break it.
    template <typename Calls> static Order on(const Use &stream, Calls calls) {
        try {
            OnDevice device(stream.device);
            cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
            cudaError_t error = cudaStreamIsCapturing(stream.stream, &status);
            if (error == cudaErrorStreamCaptureImplicit || status != cudaStreamCaptureStatusNone) {
                (void)cudaGetLastError();
                return Order::LATER;
            }
            error = error == cudaSuccess ? calls() : error;
            if (error != cudaSuccess) {
                (void)cudaGetLastError();
                return Order::NEVER;
            }
            return Order::GIVEN;
        } catch (...) {
            return Order::NEVER;
        }
    }
};

} // namespace vmm
