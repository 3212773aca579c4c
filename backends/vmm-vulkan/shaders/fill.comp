#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require
#extension GL_GOOGLE_include_directive : require
#include "pattern.glsl"

void main() {
    Words data = Words(p.data);
    uint threads = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < p.words; i += threads) {
        data.word[i] = expected(i);
    }
    if (gl_GlobalInvocationID.x == 0 && p.tail > 0) {
        uint mask = tail_mask();
        data.word[p.words] = (data.word[p.words] & ~mask) | (expected(p.words) & mask);
    }
}
