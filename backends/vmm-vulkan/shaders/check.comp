#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_GOOGLE_include_directive : require
#include "pattern.glsl"

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Counters {
    uint count_low;
    uint count_high;
    uint taken;      // 1 once the address below is somebody's
    uint first_low;
    uint first_high;
};

void note(uint i, uint difference) {
    uint bytes = 0;
    uint first = 4;
    for (uint b = 0; b < 4; b++) {
        if (((difference >> (8u * b)) & 0xFFu) != 0) {
            bytes++;
            first = min(first, b);
        }
    }
    Counters counters = Counters(p.results);
    uint before = atomicAdd(counters.count_low, bytes);
    if (before > 0xFFFFFFFFu - bytes) {
        atomicAdd(counters.count_high, 1u);
    }
    if (atomicCompSwap(counters.taken, 0u, 1u) == 0u) {
        uint carry;
        counters.first_low = uaddCarry(p.data.x, 4u * i + first, carry);
        counters.first_high = p.data.y + carry;
    }
}

void main() {
    Words data = Words(p.data);
    uint threads = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < p.words; i += threads) {
        uint difference = data.word[i] ^ expected(i);
        if (difference != 0) {
            note(i, difference);
        }
    }
    if (gl_GlobalInvocationID.x == 0 && p.tail > 0) {
        uint difference = (data.word[p.words] ^ expected(p.words)) & tail_mask();
        if (difference != 0) {
            note(p.words, difference);
        }
    }
}
