// The CUDA runtime's events.
#pragma once

#include "uses.h"

#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

namespace vmm {

// Until it ends, calls are for a device, and may be made whatever other threads capture.
class OnDevice {
  public:
    explicit OnDevice(int device) : guard_(static_cast<c10::DeviceIndex>(device)) {
        C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode_));
    }
    OnDevice(const OnDevice &) = delete;
    OnDevice &operator=(const OnDevice &) = delete;
    ~OnDevice() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

  private:
    c10::cuda::CUDAGuard guard_;
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Beside orders, what is to be known on the host.
struct Events : Orders {
    // Whether the work before an event is over. Does not throw.
    virtual bool is_over(Event event) = 0;
};

class CudaEvents final : public Events {
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
        cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
        bool exchanged = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
        cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
        if (exchanged) {
            (void)cudaThreadExchangeStreamCaptureMode(&mode);
        }
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
