// What fill.comp writes and check.comp expects. Addresses and 64-bit numbers come in two halves, so
// that devices without 64-bit integers can run this, too.

layout(local_size_x = 256) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words {
    uint word[];
};

layout(push_constant) uniform Parameters {
    uvec2 data;     // address of the first word
    uvec2 results;  // address of the counters
    uvec2 seed;     // low half, high half
    uvec2 first;    // index of the first word in the whole range
    uint words;     // whole words here
    uint tail;      // bytes behind them, 0 to 3
    uint constant;  // 1: every word is the low half of the seed
} p;

uint expected(uint i) {
    if (p.constant != 0) {
        return p.seed.x;
    }
    uint carry;
    uint low = uaddCarry(p.first.x, i, carry);
    uint high = p.first.y + carry;
    // The finisher of MurmurHash3, over index and seed.
    uint h = low * 0x9E3779B1u ^ p.seed.x;
    h = (h ^ (h >> 16)) * 0x85EBCA6Bu + (high ^ p.seed.y);
    h = (h ^ (h >> 13)) * 0xC2B2AE35u;
    return h ^ (h >> 16);
}

// The bytes of the last, incomplete word that count.
uint tail_mask() {
    return (1u << (8u * p.tail)) - 1u;
}
