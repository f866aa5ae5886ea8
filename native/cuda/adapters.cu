// LoRA adapters: y = base + (s * factor) * B (A x) for rows whose scale s is not 0. Other rows copy their base.
//
// Two launches for each adapter of a matrix: h = A x, scaled, by a warp for each value; then y, by a thread for each
// value. Both read A or B once for every row, which L2 serves. docs/reference/arithmetic.md has the order of sums.
#include "recurrent.h"

namespace assay {

// out[row][k] = (s[row] * scale) * dot(A[k], x[row]). x: rows, s; weight: A [rows][channels]; rows: the rank.
// block_x: four of k; block_y: row
KERNEL(adapter_inputs, ScanArgs, 128) {
    next_may_start();
    wait_for_previous();
    const int k = block_x() * 4 + thread() / 32, n = a.channels;
    const float s = a.x[1][block_y()];
    if (s == 0.0f || k >= a.rows) return;
    const float sum = warp_dot(a.weight + int64_t(k) * n, a.x[0] + int64_t(block_y()) * n, n);
    if (lane() == 0) a.out[int64_t(block_y()) * a.rows + k] = (s * a.scale) * sum;
}

// out[row][i] = base[row][i], then fma(h[row][k], B[i][k], ·), k ascending, where s[row] is not 0.
// x: base, s, h; weight: B [channels][rows]. block_x: 128 columns; block_y: row
KERNEL(adapter_outputs, ScanArgs, 128) {
    next_may_start();
    wait_for_previous();
    const int64_t row = block_y(), i = int64_t(block_x()) * 128 + thread();
    if (i >= a.channels) return;
    float y = a.x[0][row * a.channels + i];
    if (a.x[1][row] != 0.0f)
        for (int k = 0; k < a.rows; k++) y = fma(a.x[2][row * a.rows + k], a.weight[i * a.rows + k], y);
    a.out[row * a.channels + i] = y;
}

}  // namespace assay
