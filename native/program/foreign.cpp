// Row steps that call a function of another package (foreign.h has the contract).
#include "foreign.h"

#include <memory>

namespace assay {

void add_foreign(Program& program, ForeignOp op) {
    fits(op.function && !op.inputs.empty(), "foreign operation");
    std::vector<int64_t> widths;
    int64_t cost = program.width(op.out);
    for (int input : op.inputs) {
        fits(program.domain(input) == program.domain(op.out), "foreign operation");
        widths.push_back(program.width(input));
        cost += program.width(input);
    }
    for (const Floats& weight : op.weights) widths.push_back(static_cast<int64_t>(weight->size()));
    widths.push_back(program.width(op.out));
    const Domain domain = program.domain(op.out);
    const std::vector<int> reads = op.inputs, writes = {op.out};
    const auto shared = std::make_shared<const ForeignOp>(std::move(op));
    program.row({domain, cost, reads, writes, [shared, widths](Run& run, int64_t first, int64_t last) {
                     if (first >= last) return;
                     std::vector<const float*> inputs, weights;
                     for (int input : shared->inputs) inputs.push_back(run.row(input, first));
                     for (const Floats& weight : shared->weights) weights.push_back(weight->data());
                     shared->function(inputs.data(), weights.data(), run.row(shared->out, first), last - first,
                                      widths.data(), shared->attrs.data());
                 }});
}

}  // namespace assay
