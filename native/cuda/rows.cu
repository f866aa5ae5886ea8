// Maps and row operations (rows.h): a thread a value or a block of threads a row, any number of rows; and several of them in turn.
#include "rows.h"

namespace assay {

KERNEL(map, MapArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t total = a.rows * a.width;
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < total; i += int64_t(grid_x()) * threads())
        a.out[i] = map_value(a, i / a.width, int(i % a.width));
}

KERNEL(rope, RopeArgs, 256) {
    next_may_start();
    wait_for_previous();
    const int64_t total = a.rows * a.width;
    for (int64_t i = int64_t(block_x()) * threads() + thread(); i < total; i += int64_t(grid_x()) * threads())
        a.out[i] = rope_value(a, i / a.width, int(i % a.width));
}

KERNEL(rms_norm, RowArgs, 256) {
    SHARED;
    next_may_start();
    wait_for_previous();
    rms_norm_part(a, block_x(), reinterpret_cast<float*>(shared));
}

KERNEL(layer_norm, RowArgs, 256) {
    SHARED;
    next_may_start();
    wait_for_previous();
    layer_norm_part(a, block_x(), reinterpret_cast<float*>(shared));
}

KERNEL(quantise_rows, RowArgs, 1024) {
    SHARED;
    next_may_start();
    quantise_row(a, block_x(), block_y(), grid_y(), reinterpret_cast<float*>(shared), [&] {
        touch(a);
        wait_for_previous();
    });
}

// The row, normed if there are weights, rounded to 16-bit floats and padded with zeros to the stride; w_step: to bf16
KERNEL(halve_rows, RowArgs, 256) {
    SHARED;
    next_may_start();
    wait_for_previous();
    float* row = reinterpret_cast<float*>(shared) + 4;
    const float* x = a.x + int64_t(block_x()) * a.width;
    for (int i = thread(); i < a.width; i += threads()) row[i] = x[i];
    sync_block();
    const float f = a.w ? norm_factor(row, a.width, a.eps, row - 4) : 0.0f;
    uint16_t* to = reinterpret_cast<uint16_t*>(a.acts.q) + int64_t(block_x()) * a.acts.stride;
    for (int i = thread(); i < a.acts.stride; i += threads()) {
        const float y = i >= a.width ? 0.0f : a.w ? (row[i] * f) * a.w[i] : row[i];
        to[i] = a.w_step ? float_to_brain(y) : float_to_half(y);
    }
}

KERNEL(group_mask, RowArgs, 256) {
    next_may_start();
    wait_for_previous();
    mask_groups(a, block_x());
}

KERNEL(softmax, RowArgs, 32) {
    next_may_start();
    wait_for_previous();
    softmax_row(a.x + int64_t(block_x()) * a.width, a.out + int64_t(block_x()) * a.width, a.width);
}

KERNEL(argsort, RowArgs, 256) {
    next_may_start();
    wait_for_previous();
    sort_row(a, block_x());
}

enum class Link { MAP, ROPE, RMS_NORM, LAYER_NORM, QUANTISE, GROUP_MASK, SOFTMAX, ARGSORT };
constexpr int kChain = 12;  // most operations of a chain

struct ChainStep {
    union {
        MapArgs map;
        RopeArgs rope;
        RowArgs row;
    };
    int32_t kind, rows, blocks, padding;  // rows and blocks of threads: of the kernel that it stands for
};
struct ChainArgs {
    ChainStep steps[kChain];
    int32_t n_steps, padding;
};

// Operations in turn, of which each needs of a token only what those before it made of the same token: block_x is the token.
KERNEL(chain, ChainArgs, 512) {
    SHARED;
    float* const room = reinterpret_cast<float*>(shared);
    const int64_t token = block_x();
    next_may_start();
    touch(a);
    wait_for_previous();
#pragma unroll 1
    for (int n = 0; n < a.n_steps; n++) {
        const ChainStep& s = a.steps[n];
        if (n > 0) sync_block();  // what was written is there, and shared memory is free
        switch (Link(s.kind)) {
            case Link::MAP:
                for (int j = thread(); j < s.map.width; j += threads()) s.map.out[token * s.map.width + j] = map_value(s.map, token, j);
                break;
            case Link::ROPE:
                for (int j = thread(); j < s.rope.width; j += threads()) s.rope.out[token * s.rope.width + j] = rope_value(s.rope, token, j);
                break;
            case Link::RMS_NORM:
                if (s.row.parts == 1) rms_norm_part(s.row, token, room);
                else
                    for (int part = thread() / 32; part < s.row.parts; part += threads() / 32) rms_norm_by_warp(s.row, token * s.row.parts + part);
                break;
            case Link::LAYER_NORM:
                for (int part = 0; part < s.row.parts; part++) {
                    if (part > 0) sync_block();
                    layer_norm_part(s.row, token * s.row.parts + part, room);
                }
                break;
            case Link::GROUP_MASK: mask_groups(s.row, token); break;
            case Link::ARGSORT: sort_row(s.row, token); break;
            case Link::SOFTMAX:
                if (thread() < 32) softmax_row(s.row.x + token * s.row.width, s.row.out + token * s.row.width, s.row.width);
                break;
            case Link::QUANTISE: {
                const int each = s.rows / grid_x();
                for (int i = 0; i < each; i++)
                    for (int64_t row = token * each + i; row < s.blocks; row += s.rows) {  // and copies of it
                        if (s.row.w) sync_block();
                        quantise_row(s.row, row, 0, 1, room, [] {});
                    }
                break;
            }
        }
    }
}

}  // namespace assay
