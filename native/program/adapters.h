// The terms that LoRA adapters add to products of one input (adapters.cpp).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "program.h"

namespace assay {

// y += h[k] * B[.][k], k ascending, with h[k] = (s * factor) * dot(A[k], x). Adapters come in order; those whose scale s of
// the row is 0 are left out.
class AdapterTerms {
public:
    struct Pair {
        Adapter adapter;
        const std::vector<int64_t>* rows;  // those that use the adapter, ascending
        float* h = nullptr;                // [rows][rank]
    };
    AdapterTerms(int x, const Adapters& adapters);
    void begin(Run& run);  // find the rows of each adapter; called once for a run

    // Add the terms of columns [c0, c1) to rows [first, first + n): row `first` is y, the others follow `step` floats
    // apart, and y[0] is column 0.
    void add(const Run& run, size_t product, int64_t first, int64_t n, float* y, int64_t step, int64_t c0,
             int64_t c1) const;

    const int x;
    std::vector<std::vector<Pair>> products;  // the pairs of each product
    std::map<int, std::vector<int64_t>> rows_of;  // by the value with the scales

private:
    std::vector<float> room_;  // h of all pairs
};

}  // namespace assay
