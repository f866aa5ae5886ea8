// An operation that another package adds: a C function which the program calls on ranges of rows.
//
// The thread pool splits the rows of a step into ranges and calls the function once for each range, from several
// threads at the same time. So a row of the result must depend on the same row of each input only, and the function
// must not keep data between two calls.
#pragma once

#include "program.h"

namespace assay {

// inputs[i]   the first of `rows` rows of input i, which lie one after the other.
// weights[i]  weight i as float32, row-major, whole.
// out         the first row of the result. It never overlaps an input.
// widths      floats in a row of each input, then floats in each weight, then floats in a row of the result.
// attrs       the numeric attributes of the operation, in the order of its row of the operation table.
using ForeignRows = void (*)(const float* const* inputs, const float* const* weights, float* out, int64_t rows,
                             const int64_t* widths, const double* attrs);

struct ForeignOp {
    ForeignRows function;
    std::vector<int> inputs;  // values of one domain
    std::vector<Floats> weights;
    std::vector<double> attrs;
    int out;
};

// Append the operation to the program as a row step.
void add_foreign(Program& program, ForeignOp op);

}  // namespace assay
