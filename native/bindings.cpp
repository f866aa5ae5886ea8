// The Python face of the native engine: the only file that knows Python.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) {
    m.doc() = "assay's native kernels";
    m.def("version", [] { return "0.1.0"; });
}
