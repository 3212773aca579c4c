// The CUDA runtime that PyTorch has loaded, by the names of its functions: for what is compiled without
// its headers.
#pragma once

#include "uses.h"

namespace vmm {

// What is needed of it. Its results are numbers here.
struct Runtime final : Orders {
    int (*get_device)(int *) = nullptr;
    int (*set_device)(int) = nullptr;
    int (*synchronize)() = nullptr;
    int (*last_error)() = nullptr;
    // The second parameters are enumerations of the runtime.
    int (*stream_status)(Stream, int *) = nullptr;
    int (*exchange_mode)(int *) = nullptr;
    int (*can_access)(int *, int, int) = nullptr;
    int (*event_create)(Event *, unsigned) = nullptr;
    int (*event_record)(Event, Stream) = nullptr;
    int (*event_query)(Event) = nullptr;
    int (*event_destroy)(Event) = nullptr;
    int (*stream_wait)(Stream, Event, unsigned) = nullptr;
    // NULL before CUDA 12.8: all streams are taken for such of the memory's device.
    int (*stream_device)(Stream, int *) = nullptr;

    bool load(const char *path) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle != nullptr) {
            find(handle, "cudaStreamGetDevice", stream_device);
        }
        return handle != nullptr && find(handle, "cudaGetDevice", get_device) &&
               find(handle, "cudaSetDevice", set_device) &&
               find(handle, "cudaDeviceSynchronize", synchronize) &&
               find(handle, "cudaGetLastError", last_error) &&
               find(handle, "cudaStreamIsCapturing", stream_status) &&
               find(handle, "cudaThreadExchangeStreamCaptureMode", exchange_mode) &&
               find(handle, "cudaEventCreateWithFlags", event_create) &&
               find(handle, "cudaEventRecord", event_record) &&
               find(handle, "cudaEventQuery", event_query) &&
               find(handle, "cudaEventDestroy", event_destroy) &&
               find(handle, "cudaStreamWaitEvent", stream_wait) &&
               find(handle, "cudaDeviceCanAccessPeer", can_access);
    }

    // Whether a device can reach memory of another one.
    bool reaches(int device, int other) const {
        int can = 0;
        if (can_access(&can, device, other) != 0) {
            (void)last_error();
            return false;
        }
        return can != 0;
    }

    // Waits for all work of a device. False where that cannot be done, as during a capture.
    bool wait_for(int device) const {
        return on_device(device, [&] { return synchronize(); }) == 0;
    }

    // The device that a stream belongs to; a default one has one on each device.
    std::optional<int> device_of(Stream stream) const {
        int device = 0;
        if (is_default(stream) || stream_device == nullptr) {
            return std::nullopt;
        }
        if (stream_device(stream, &device) != 0) {
            (void)last_error();
            return std::nullopt;
        }
        return device;
    }

    static bool is_default(Stream stream) {
        // NULL, cudaStreamLegacy, cudaStreamPerThread.
        return reinterpret_cast<uintptr_t>(stream) <= 2;
    }

    Order record(const Use &use, Event &event) override {
        return order(use, [&] {
            Event made = nullptr;
            // cudaEventDisableTiming
            if (int error = event_create(&made, 2); error != 0) {
                return error;
            }
            int error = event_record(made, use.stream);
            if (error != 0) {
                (void)event_destroy(made);
            } else {
                event = made;
            }
            return error;
        });
    }

    Order wait(const Use &stream, Event event) override {
        return order(stream, [&] { return stream_wait(stream.stream, event, 0); });
    }

    bool is_over(Event event) override {
        return relaxed([&] { return event_query(event); }) == 0;
    }

    void destroy(Event event) override { (void)event_destroy(event); }

    std::optional<bool> is_capturing(Stream stream) const {
        int status = 0;
        if (int error = stream_status(stream, &status); error != 0) {
            (void)last_error();
            // The legacy stream, while another one captures: cudaErrorStreamCaptureImplicit. Others
            // are no streams any more.
            return error == 906 ? std::nullopt : std::optional(false);
        }
        // Not cudaStreamCaptureStatusNone.
        return status != 0;
    }

  private:
    // Makes calls for a device, whatever other threads capture. What came of them.
    template <typename Calls> int on_device(int device, Calls calls) const {
        int before = 0;
        int error = get_device(&before);
        if (error == 0) {
            error = set_device(device);
        }
        if (error != 0) {
            (void)last_error();
            return error;
        }
        error = relaxed(calls);
        (void)set_device(before);
        return error;
    }

    // Makes calls that concern no stream which captures, whoever does. What came of them.
    template <typename Calls> int relaxed(Calls calls) const {
        // cudaStreamCaptureModeRelaxed
        int mode = 2;
        int error = exchange_mode(&mode);
        if (error == 0) {
            error = calls();
            (void)exchange_mode(&mode);
        }
        if (error != 0) {
            (void)last_error();
        }
        return error;
    }

    // Makes calls for a stream unless it captures: they would become part of the graph, or break it.
    template <typename Calls> Order order(const Use &use, Calls calls) const {
        // cudaErrorStreamCaptureImplicit
        constexpr int IMPLICIT = 906;
        bool captures = false;
        int error = on_device(use.device, [&] {
            int status = 0;
            int asked = stream_status(use.stream, &status);
            captures = asked == IMPLICIT || status != 0;
            return captures || asked != 0 ? asked : calls();
        });
        return captures ? Order::LATER : error == 0 ? Order::GIVEN : Order::NEVER;
    }

    template <typename Function>
    static bool find(void *handle, const char *name, Function *&function) {
        function = reinterpret_cast<Function *>(dlsym(handle, name));
        return function != nullptr;
    }
};

} // namespace vmm
