#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
// For examples/compute.rs: element i becomes i * i, in memory that is given by its address or, with
// DESCRIPTOR, by a descriptor.

layout(local_size_x = 64) in;

#ifdef DESCRIPTOR
layout(set = 0, binding = 0, std430) buffer Storage {
    uint element[];
} storage;
#else
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Elements {
    uint element[];
};
#endif

layout(push_constant) uniform Parameters {
    uvec2 target;  // address of the first element, if it counts
    uint first;    // index of the first element to write
    uint end;      // index behind the last
} p;

void main() {
    uint i = p.first + gl_GlobalInvocationID.x;
    if (i >= p.end) {
        return;
    }
#ifdef DESCRIPTOR
    storage.element[i] = i * i;
#else
    Elements(p.target).element[i] = i * i;
#endif
}
