// The Python module of the native engine (nanobind). No other file under native/ includes Python.
//
// src/assay/_native.pyi has the types and says what each function does.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "kernels/blocks.h"
#include "kernels/kernels.h"
#include "kernels/points.h"
#include "program/foreign.h"
#include "program/mapped.h"
#include "program/program.h"
#include "row_digest.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace assay;

namespace {

template <class T, int dims>
using Array = nb::ndarray<const T, nb::numpy, nb::ndim<dims>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<float, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Encode dispatches into a compute pass of wgpu-native. Its C functions are given by address, set pipeline, set group, dispatch;
// a command is the handle of a pipeline (0: as before), that of a bind group, and three counts of workgroups.
void encode_dispatches(uintptr_t pass, const std::array<uintptr_t, 3>& calls, Array<uint64_t, 2> commands) {
    if (commands.shape(1) != 5) throw std::invalid_argument("commands: a row has five numbers");
    const auto set_pipeline = reinterpret_cast<void (*)(void*, void*)>(calls[0]);
    const auto set_group =
        reinterpret_cast<void (*)(void*, uint32_t, void*, size_t, const uint32_t*)>(calls[1]);
    const auto dispatch = reinterpret_cast<void (*)(void*, uint32_t, uint32_t, uint32_t)>(calls[2]);
    void* const run = reinterpret_cast<void*>(pass);
    const uint64_t* command = commands.data();
    nb::gil_scoped_release released;
    for (size_t i = 0; i < commands.shape(0); i++, command += 5) {
        if (command[0]) set_pipeline(run, reinterpret_cast<void*>(uintptr_t(command[0])));
        set_group(run, 0, reinterpret_cast<void*>(uintptr_t(command[1])), 0, nullptr);
        dispatch(run, uint32_t(command[2]), uint32_t(command[3]), uint32_t(command[4]));
    }
}

// A copy of a small vector of weights: a norm, a bias.
struct Vector {
    Floats values;
};

template <class T>
T choose(const std::map<std::string, T>& table, const std::string& name, const char* what) {
    if (const auto found = table.find(name); found != table.end()) return found->second;
    throw std::invalid_argument(std::string(what) + ": unknown name '" + name + "'");
}
const std::map<std::string, Domain> domains = {{"tokens", Domain::tokens},
                                               {"outputs", Domain::outputs},
                                               {"keys", Domain::keys},
                                               {"scores", Domain::scores},
                                               {"sequences", Domain::sequences}};
const std::map<std::string, Act> activations = {
    {"silu", Act::silu}, {"gelu_tanh", Act::gelu_tanh}, {"gelu_erf", Act::gelu_erf},
    {"relu", Act::relu}, {"relu_sqr", Act::relu_sqr},   {"tanh", Act::tanh}};
const std::map<std::string, KvType> kv_types = {
    {"f32", KvType::f32}, {"f16", KvType::f16}, {"bf16", KvType::bf16}, {"q8_0", KvType::q8_0}};
const std::map<std::string, kernels::Acts> formats = {{"q8", kernels::Acts::Q8}, {"f32", kernels::Acts::F32}};

Floats floats(const Vector* vector) { return vector ? vector->values : Floats(); }

// Rejects a value number that the program does not have: Program does not check.
int known(const Program& program, int value) {
    program.width(value);  // throws
    return value;
}
int known_or_none(const Program& program, int value) { return value < 0 ? -1 : known(program, value); }

// For each product its adapters: scale, factor, rank and pair.
using AdapterRows = std::vector<std::vector<std::tuple<int, float, int64_t, const Vector*>>>;
std::vector<std::vector<Adapter>> adapters_of(const Program& program, const AdapterRows& rows) {
    std::vector<std::vector<Adapter>> found;
    for (const auto& of : rows) {
        found.emplace_back();
        for (const auto& [scale, factor, rank, pair] : of)
            found.back().push_back({known(program, scale), factor, rank, floats(pair)});
    }
    return found;
}

void nearest(Array<float, 2> v, Array<float, 2> w, Array<float, 2> points, Array<float, 1> middles,
             Array<uint16_t, 2> near, nb::ndarray<int32_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
    const size_t rows = v.shape(0), width = v.shape(1), base = middles.shape(0) + 1;
    size_t codes = 1;
    for (size_t j = 0; j < width; ++j) codes *= base;
    if ((width != 4 && width != 8) || w.shape(0) != rows || w.shape(1) != width || points.shape(1) != width ||
        out.shape(0) != rows || near.shape(0) != codes || !near.shape(1))
        throw std::invalid_argument("nearest_points: shapes do not fit");
    for (size_t i = 0; i < near.size(); ++i)
        if (near.data()[i] >= points.shape(0)) throw std::invalid_argument("nearest_points: no such point");
    const Book book{points.data(), static_cast<int>(width),        middles.data(), static_cast<int>(base),
                    near.data(),   static_cast<int>(near.shape(1))};
    nb::gil_scoped_release release;
    nearest_points(v.data(), w.data(), rows, book, out.data());
}

// The memory of a page or of a state slot, for `exchange`.
using Memory = std::pair<uint8_t*, size_t>;

Memory page_bytes(const Cache& cache, int32_t page, int group) {
    if (group < 0 || group >= static_cast<int>(cache.groups().size()))
        throw std::invalid_argument("cache: no such group");
    const Cache::Group& g = cache.groups()[group];
    if (page < 0 || page >= g.n_pages)
        throw std::invalid_argument("cache: no page " + std::to_string(page) + " of " + std::to_string(g.n_pages));
    return {g.pages.data() + page * g.page_bytes, g.page_bytes};
}

Memory state_bytes(const Cache& cache, int32_t slot) {
    return {reinterpret_cast<uint8_t*>(cache.state(slot)), cache.state_floats() * sizeof(float)};
}

// Copy the cache's bytes to an array, or with `write` the array's bytes to the cache. No program may run meanwhile.
void exchange(Cache& cache, Memory at, const Bytes& array, bool write) {
    if (array.shape(0) != at.second)
        throw std::invalid_argument("cache: " + std::to_string(array.shape(0)) + " bytes do not fit (expected " +
                                    std::to_string(at.second) + ")");
    nb::gil_scoped_release release;
    std::lock_guard turn(cache.busy);
    if (write)
        std::memcpy(at.first, array.data(), at.second);
    else
        std::memcpy(array.data(), at.first, at.second);
}

// The places of the last chunk's state. A row of `states`: tokens, slot before, slot after, 1 if the sequence begins. A
// chunk has one row, or several where its state is kept at several of its tokens.
void add_stops(Batch& batch, const Cache& cache, const Array<int32_t, 2>& states) {
    Chunk& c = batch.chunks.back();
    c.first_stop = static_cast<int32_t>(batch.stops.size());
    int32_t left = c.n_tokens;
    while (left > 0) {
        if (batch.stops.size() >= states.shape(0)) throw std::invalid_argument("batch: states do not fit the chunks");
        const int32_t* s = states.data() + 4 * batch.stops.size();
        if (s[0] < 1 || s[0] > left) throw std::invalid_argument("batch: states do not fit the tokens of their chunk");
        if (left == c.n_tokens) c.state_from = s[3] ? nullptr : cache.state(s[1]);
        batch.stops.push_back({s[0], cache.state(s[2])});
        left -= s[0];
    }
    c.n_stops = static_cast<int32_t>(batch.stops.size()) - c.first_stop;
    c.state_to = batch.stops.back().to;
}

// Rows [cos | sin] as Program::rope_table fills them; pair i is turned by number axes[i] of a row of positions (M-RoPE).
void rope_rows(const Pool& pool, const std::vector<double>& frequencies, float magnitude, Array<int32_t, 2> positions,
               const std::vector<int>& axes, Result out) {
    const size_t half = frequencies.size(), n = positions.shape(1);
    const bool known = std::all_of(axes.begin(), axes.end(), [n](int a) { return a >= 0 && size_t(a) < n; });
    if (axes.size() != half || out.shape(0) != positions.shape(0) * 2 * half || !known)
        throw std::invalid_argument("rope_rows: operands do not fit together");
    std::vector<float> turned(2 * half);
    for (size_t i = 0; i < positions.shape(0); ++i) {
        const int32_t* at = positions.data() + i * n;
        float* y = out.data() + i * 2 * half;
        for (size_t a = 0; a < n; ++a) {
            if (!a || at[a] != at[a - 1])  // a row of text has n equal positions: one table is enough
                pool.isa().rows->rope_table(frequencies.data(), static_cast<int>(half), at[a], magnitude, turned.data(),
                                            turned.data() + half);
            for (size_t j = 0; j < half; ++j)
                if (size_t(axes[j]) == a) y[j] = turned[j], y[half + j] = turned[half + j];
        }
    }
}

void run(Program& program, Array<int32_t, 1> tokens, Array<int32_t, 1> positions, Array<int32_t, 2> chunks,
         Array<int32_t, 1> pages, Array<int32_t, 2> states, const std::vector<Result>& externals, bool interruptible) {
    const Cache& cache = program.cache();
    const size_t n_stops = states.shape(0);
    if (cache.state_slots() ? n_stops < chunks.shape(0) || states.shape(1) != 4 : n_stops != 0)
        throw std::invalid_argument("batch: states do not fit the chunks");
    if (chunks.shape(1) != 5) throw std::invalid_argument("batch: chunks must have 5 columns");
    if (positions.shape(0) != tokens.shape(0))
        throw std::invalid_argument("batch: positions and tokens differ in number");
    Batch batch;
    batch.n_tokens = static_cast<int32_t>(tokens.shape(0));
    batch.tokens = tokens.data();
    batch.positions = positions.data();
    const int64_t groups = static_cast<int64_t>(program.cache().groups().size());
    int32_t row = 0;
    for (size_t i = 0; i < chunks.shape(0); ++i) {
        // n_tokens, start, index of its first page table, pages of a table, n_outputs
        const int32_t* c = chunks.data() + 5 * i;
        const int64_t end = int64_t(c[0]) + c[1];
        if (c[0] < 1 || c[1] < 0 || end > INT32_MAX || c[2] < 0 || c[3] < 0 ||
            c[2] + groups * c[3] > int64_t(pages.shape(0)) || int64_t(c[3]) * kPage < end)
            throw std::invalid_argument("batch: chunk " + std::to_string(i) + " does not fit its pages");
        batch.chunks.push_back({row, c[0], c[1], pages.data() + c[2], c[3], c[4]});
        if (int64_t(row) + c[0] > batch.n_tokens) throw std::invalid_argument("batch: chunks do not fit the tokens");
        row += c[0];
        if (cache.state_slots()) add_stops(batch, cache, states);
    }
    if (batch.stops.size() != n_stops) throw std::invalid_argument("batch: states do not fit the chunks");
    for (const Result& e : externals) {
        batch.externals.push_back(e.data());
        batch.capacity.push_back(static_cast<int64_t>(e.size()));
    }
    const auto signals = [] {
        nb::gil_scoped_acquire gil;
        return PyErr_CheckSignals() == 0;
    };
    bool finished;
    {
        nb::gil_scoped_release release;
        finished = program.run(batch, interruptible ? std::function<bool()>(signals) : std::function<bool()>());
    }
    if (!finished) throw nb::python_error();
}

// Decode rows of a quantised type to int8 codes, with a scale and a minimum per 16.
nb::tuple unpack(Array<uint8_t, 2> rows, uint32_t type, int64_t columns) {
    const kernels::TypeInfo* info = kernels::type_info(kernels::Type(type));
    if (!info || !info->unpack || columns < 1 || columns % info->block_size ||
        int64_t(rows.shape(1)) != columns / info->block_size * info->block_bytes)
        throw std::invalid_argument("unpack: the rows do not fit the type");
    const size_t n = rows.shape(0), k = size_t(columns);
    const auto owned = [](auto* data, size_t a, size_t b) {
        using T = std::remove_pointer_t<decltype(data)>;
        nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
        return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(data, {a, b}, owner));
    };
    int8_t* q = new int8_t[n * k];
    float *d = new float[n * k / 16], *m = new float[n * k / 16];
    nb::tuple result = nb::make_tuple(owned(q, n, k), owned(d, n, k / 16), owned(m, n, k / 16));
    nb::gil_scoped_release release;
    for (size_t r = 0; r < n; ++r)
        for (size_t b = 0; b < k / 32; ++b) {
            kernels::Block32 block;
            info->unpack(rows.data() + r * rows.shape(1), int64_t(b), block);
            std::memcpy(q + r * k + 32 * b, block.q, 32);
            std::memcpy(d + (r * k + 32 * b) / 16, block.d, 8);
            std::memcpy(m + (r * k + 32 * b) / 16, block.m, 8);
        }
    return result;
}

double on_all_threads(unsigned threads, const std::function<double(unsigned)>& measure) {
    std::vector<double> found(threads);
    std::vector<std::thread> team;
    for (unsigned i = 0; i < threads; ++i) team.emplace_back([&, i] { found[i] = measure(i); });
    for (auto& thread : team) thread.join();
    double total = 0;
    for (double f : found) total += f;
    return total;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Native CPU engine: matrix kernels, the paged KV cache, and programs that the cpu compiler builds from graphs.";
    m.attr("PAGE") = kPage;
    m.attr("ARITHMETIC") = kernels::kArithmetic;
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const OutOfMemory& e) {
            PyErr_SetString(PyExc_MemoryError, e.what());
        }
    });

    m.def("isas", [] {
        std::vector<std::string> names;
        for (const kernels::Isa* isa : kernels::isas()) names.push_back(isa->name);
        return names;
    });
    m.def(
        "acts_format",
        [](uint32_t type, bool exact) {
            return kernels::acts_format(kernels::Type(type), exact) == kernels::Acts::Q8 ? "q8" : "f32";
        },
        "type"_a, "exact"_a);
    m.def(
        "supported", [](uint32_t type) { return kernels::supported(kernels::Type(type)); }, "type"_a);
    m.def("nearest_points", &nearest, "v"_a.noconvert(), "w"_a.noconvert(), "points"_a.noconvert(),
          "middles"_a.noconvert(), "near"_a.noconvert(), "out"_a.noconvert());
    m.def(
        "row_digest",
        [](Array<uint32_t, 1> words) {
            const std::array<uint64_t, 2> found = row_digest(words.data(), int64_t(words.size()));
            return nb::make_tuple(found[0], found[1]);
        },
        "words"_a.noconvert());
    m.def("encode_dispatches", &encode_dispatches, "pass_"_a, "calls"_a, "commands"_a.noconvert());
    m.def("unpack", &unpack, "rows"_a.noconvert(), "type"_a, "columns"_a);
    m.def(
        "measure_dot_peak",
        [](unsigned threads, double seconds) {
            const kernels::Isa& isa = kernels::find_isa();
            return on_all_threads(threads, [&](unsigned) { return kernels::measure_dot_peak(isa, seconds); });
        },
        "threads"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>());
    m.def(
        "measure_read_bandwidth",
        [](unsigned threads, size_t bytes, double seconds) {
            Pages room(bytes * threads, "bandwidth test");
            std::memset(room.data(), 1, room.size());
            return on_all_threads(threads, [&](unsigned i) {
                return kernels::measure_read_bandwidth(room.data() + i * bytes, bytes, seconds);
            });
        },
        "threads"_a, "bytes"_a, "seconds"_a, nb::call_guard<nb::gil_scoped_release>());

    nb::class_<Pool>(m, "Pool")
        .def(
            "__init__",
            [](Pool* self, unsigned threads, const std::string& isa) {
                new (self) Pool(threads, kernels::find_isa(isa));
            },
            "threads"_a, "isa"_a = "")
        .def_prop_ro("threads", &Pool::threads)
        .def("rope_rows", &rope_rows, "frequencies"_a, "magnitude"_a, "positions"_a.noconvert(), "axes"_a,
             "out"_a.noconvert())
        .def(
            "weight_bytes",
            [](const Pool& pool, uint32_t type, int64_t rows, int64_t columns) {
                const auto kind = kernels::Type(type);
                if (!kernels::supported(kind)) return size_t(rows * columns) * sizeof(float);
                return kernels::packable(kind) ? pool.isa().packed_bytes(kind, rows, columns)
                                               : kernels::row_bytes(kind, columns) * size_t(rows);
            },
            "type"_a, "rows"_a, "columns"_a)
        .def_prop_ro("isa", [](const Pool& pool) { return pool.isa().name; });

    nb::class_<Guard>(m, "Guard")
        .def(
            "__init__",
            [](Guard* self, nb::ndarray<const uint8_t, nb::numpy, nb::c_contig, nb::device::cpu> view) {
                new (self) Guard(view.data(), view.size());
            },
            "view"_a.noconvert(), nb::keep_alive<1, 2>())
        .def_prop_ro("lost", &Guard::lost);

    nb::class_<Loader>(m, "Loader").def(nb::init<std::shared_ptr<Pool>>(), "pool"_a);

    nb::class_<Weight>(m, "Weight")
        .def(
            "__init__",
            [](Weight* self, std::shared_ptr<Loader> loader,
               nb::ndarray<const uint8_t, nb::numpy, nb::c_contig, nb::device::cpu> raw, uint32_t type,
               std::tuple<int64_t, int64_t, int64_t> shape, bool pack, bool mapped) {
                const auto [count, rows, columns] = shape;
                const auto kind = kernels::Type(type);
                const int64_t block = kernels::block_size(kind);
                if (block < 1 || count < 1 || rows < 1 || columns < 1 || columns % block ||
                    raw.size() != kernels::row_bytes(kind, columns) * size_t(rows) * size_t(count))
                    throw std::invalid_argument("weight: " + std::to_string(raw.size()) + " bytes are not " +
                                                std::to_string(count) + " x " + std::to_string(rows) + " x " +
                                                std::to_string(columns) + " values of ggml type " +
                                                std::to_string(type));
                nb::gil_scoped_release release;
                new (self) Weight(std::move(loader), raw.data(), type, count, rows, columns, pack, mapped);
            },
            "loader"_a, "raw"_a.noconvert(), "type"_a, "shape"_a, "pack"_a, "mapped"_a, nb::keep_alive<1, 3>())
        .def_prop_ro("packed",
                     [](const Weight& weight) {
                         nb::gil_scoped_release release;
                         weight.ready();  // whether it is packed depends on its values
                         return weight.packed();
                     })
        .def_prop_ro("bytes", &Weight::bytes);

    nb::class_<Vector>(m, "Vector")
        .def(
            "__init__",
            [](Vector* self, Array<float, 1> values) {
                new (self)
                    Vector{std::make_shared<const std::vector<float>>(values.data(), values.data() + values.size())};
            },
            "values"_a.noconvert());

    nb::class_<Cache>(m, "Cache")
        .def(
            "__init__",
            [](Cache* self, const std::vector<std::pair<int, int>>& groups,
               const std::vector<std::tuple<std::string, bool, int, int, int>>& pools) {
                std::vector<Cache::Group> sized;
                for (const auto& [window, n_pages] : groups) sized.push_back({window, n_pages});
                std::vector<PageShape> shapes;
                std::vector<int> group_of;
                for (const auto& [type, keys, heads, dim, group] : pools) {
                    shapes.push_back({choose(kv_types, type, "kv type"), keys, heads, dim});
                    group_of.push_back(group);
                }
                new (self) Cache(std::move(sized), std::move(shapes), std::move(group_of));
            },
            "groups"_a, "pools"_a)
        .def_prop_ro("page_bytes",
                     [](const Cache& cache) {
                         std::vector<size_t> bytes;
                         for (const Cache::Group& g : cache.groups()) bytes.push_back(g.page_bytes);
                         return bytes;
                     })
        .def("copy_page", &Cache::copy_page, "source"_a, "to"_a, "group"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("add_states", &Cache::add_states, "slots"_a, "floats"_a)
        .def("copy_state", &Cache::copy_state, "source"_a, "to"_a, nb::call_guard<nb::gil_scoped_release>())
        .def(
            "read_page",
            [](Cache& c, int page, int group, Bytes to) { exchange(c, page_bytes(c, page, group), to, false); },
            "page"_a, "group"_a, "to"_a.noconvert())
        .def(
            "write_page",
            [](Cache& c, int page, int group, Bytes from) { exchange(c, page_bytes(c, page, group), from, true); },
            "page"_a, "group"_a, "from_"_a.noconvert())
        .def(
            "read_state", [](Cache& c, int slot, Bytes to) { exchange(c, state_bytes(c, slot), to, false); }, "slot"_a,
            "to"_a.noconvert())
        .def(
            "write_state", [](Cache& c, int slot, Bytes from) { exchange(c, state_bytes(c, slot), from, true); },
            "slot"_a, "from_"_a.noconvert());

    nb::class_<Mask>(m, "Mask").def(
        "__init__",
        [](Mask* self, float scale, int window, int chunk, bool causal, const Vector* sinks, const Vector* slopes) {
            new (self) Mask{scale, window, chunk, causal, floats(sinks), floats(slopes)};
        },
        "scale"_a, "window"_a, "chunk"_a, "causal"_a, "sinks"_a.none(), "slopes"_a.none());

    nb::class_<Program>(m, "Program")
        .def(nb::init<std::shared_ptr<Pool>, std::shared_ptr<Cache>, bool>(), "pool"_a, "cache"_a, "exact"_a)
        .def(
            "value",
            [](Program& p, int64_t width, const std::string& domain, bool external) {
                const Domain d = choose(domains, domain, "domain");
                return external ? p.external(width, d) : p.value(width, d);
            },
            "width"_a, "domain"_a, "external"_a = false)
        .def(
            "acts",
            [](Program& p, int64_t width, const std::string& domain, const std::string& format) {
                return p.acts(width, choose(domains, domain, "domain"), choose(formats, format, "format"));
            },
            "width"_a, "domain"_a, "format"_a)
        .def("embed", &Program::embed, "table"_a, "by_position"_a, "out"_a)
        .def(
            "rms_norm",
            [](Program& p, int x, const Vector* w, float eps, int parts, int out) {
                p.rms_norm(x, floats(w), eps, parts, out);
            },
            "x"_a, "w"_a.none(), "eps"_a, "parts"_a, "out"_a)
        .def(
            "layer_norm",
            [](Program& p, int x, const Vector& w, const Vector* b, float eps, int parts, int out) {
                p.layer_norm(x, w.values, floats(b), eps, parts, out);
            },
            "x"_a, "w"_a, "b"_a.none(), "eps"_a, "parts"_a, "out"_a)
        .def(
            "bias", [](Program& p, int x, const Vector& b, int out) { p.bias(x, b.values, out); }, "x"_a, "b"_a,
            "out"_a)
        .def(
            "gain", [](Program& p, int x, const Vector& w, int out) { p.gain(x, w.values, out); }, "x"_a, "w"_a,
            "out"_a)
        .def(
            "binary",
            [](Program& p, const std::string& op, int a, int b, int out, const std::string& act) {
                p.binary(op, a, b, out, choose(activations, act, "activation"));
            },
            "op"_a, "a"_a, "b"_a, "out"_a, "act"_a = "silu")
        .def("unary", &Program::unary, "op"_a, "x"_a, "argument"_a, "out"_a)
        .def(
            "act",
            [](Program& p, int x, const std::string& act, int out) {
                p.act(x, choose(activations, act, "activation"), out);
            },
            "x"_a, "act"_a, "out"_a)
        .def(
            "glu_split",
            [](Program& p, int x, const std::string& act, int parts, int out) {
                p.glu_split(x, choose(activations, act, "activation"), parts, out);
            },
            "x"_a, "act"_a, "parts"_a, "out"_a)
        .def("glu_oai", &Program::glu_oai, "gate"_a, "up"_a, "alpha"_a, "limit"_a, "out"_a)
        .def("clamp", &Program::clamp, "x"_a, "lo"_a, "hi"_a, "out"_a)
        .def("slice", &Program::slice, "x"_a, "start"_a, "parts"_a, "out"_a)
        .def("concat", &Program::concat, "a"_a, "b"_a, "parts_a"_a, "parts_b"_a, "parts"_a, "out"_a)
        .def("pos_scale", &Program::pos_scale, "x"_a, "beta"_a, "unit"_a, "offset"_a, "out"_a)
        .def("pool_rows", &Program::pool_rows, "x"_a, "kind"_a, "out"_a)
        .def("group_mask", &Program::group_mask, "x"_a, "groups"_a, "used"_a, "out"_a)
        .def(
            "expert_rows",
            [](Program& p, const std::string& op, int x, int idx, const Vector& rows, int out) {
                p.expert_rows(op, x, idx, rows.values, out);
            },
            "op"_a, "x"_a, "idx"_a, "rows"_a, "out"_a)
        .def("expert_sum", &Program::expert_sum, "x"_a, "out"_a)
        .def("rope_table", &Program::rope_table, "frequencies"_a, "magnitude"_a, "out"_a)
        .def("rope", &Program::rope, "x"_a, "table"_a, "heads"_a, "offset"_a, "neox"_a, "out"_a)
        .def("cache_write", &Program::cache_write, "x"_a, "pool"_a)
        .def("cache_read", &Program::cache_read, "pool"_a, "out"_a)
        .def("output_rows", &Program::output_rows, "x"_a, "out"_a)
        .def("prepare", &Program::prepare, "x"_a, "acts"_a)
        .def("kq", &Program::kq, "q"_a, "k"_a, "heads"_a, "kv_heads"_a, "out"_a)
        .def(
            "attn_softmax",
            [](Program& p, int x, const Mask& mask, int out, int last) {
                p.attn_softmax(known(p, x), mask, known(p, out), known_or_none(p, last));
            },
            "x"_a, "mask"_a, "out"_a, "last"_a = -1)
        .def("kqv", &Program::kqv, "p"_a, "v"_a, "kv_heads"_a, "out"_a)
        .def(
            "causal_conv",
            [](Program& p, int x, const Vector& w, int64_t state, int out) { p.causal_conv(x, w.values, state, out); },
            "x"_a, "w"_a, "state"_a, "out"_a)
        .def("shift", &Program::shift, "x"_a, "state"_a, "out"_a)
        .def(
            "scan",
            [](Program& p, const std::string& op, const std::vector<int>& in, const Vector* weight, int64_t heads,
               int64_t groups, int64_t channels, float scale, int64_t state, int out) {
                p.scan(op, in, floats(weight), {heads, groups, channels, state, scale}, out);
            },
            "op"_a, "inputs"_a, "weight"_a.none(), "heads"_a, "groups"_a, "channels"_a, "scale"_a, "state"_a, "out"_a)
        .def("show_state", &Program::show_state, "parts"_a, "after"_a, "out"_a)
        .def(
            "rows_of_many",
            [](Program& p, const std::string& op, const std::vector<int>& in, const Vector* w,
               const std::vector<double>& numbers, int out) { p.rows_of_many(op, in, floats(w), numbers, out); },
            "op"_a, "inputs"_a, "w"_a.none(), "numbers"_a, "out"_a)
        .def(
            "products",
            [](Program& p, int acts,
               const std::vector<std::tuple<std::shared_ptr<Weight>, int, const Vector*, int>>& list,
               const AdapterRows& adapters, int x) {
                std::vector<Product> products;
                for (const auto& [weight, out, bias, residual] : list)
                    products.push_back({weight, known(p, out), floats(bias), known_or_none(p, residual)});
                p.products(known(p, acts), std::move(products), adapters_of(p, adapters), known_or_none(p, x));
            },
            "acts"_a, "products"_a, "adapters"_a = AdapterRows(), "x"_a = -1)
        .def(
            "glu_products",
            [](Program& p, int acts, std::shared_ptr<Weight> gate, std::shared_ptr<Weight> up, int gate_out, int up_out,
               int out, const std::string& act, const AdapterRows& adapters, int x) {
                p.glu_products(known(p, acts), gate, up, known_or_none(p, gate_out), known_or_none(p, up_out),
                               known(p, out), choose(activations, act, "activation"), adapters_of(p, adapters),
                               known_or_none(p, x));
            },
            "acts"_a, "gate"_a, "up"_a, "gate_out"_a, "up_out"_a, "out"_a, "act"_a, "adapters"_a = AdapterRows(),
            "x"_a = -1)
        .def(
            "expert_product",
            [](Program& p, int x, int idx, std::shared_ptr<Weight> weight, int out) {
                p.expert_product(known(p, x), known_or_none(p, idx), weight, known(p, out));
            },
            "x"_a, "idx"_a, "weight"_a, "out"_a)
        .def(
            "attention",
            [](Program& p, int q, int k_pool, int v_pool, int n_head, float cap, const Mask& mask, int v_first, int out,
               int kq, int capped, int soft_max, int last) {
                p.attention({known(p, q), known(p, out), k_pool, v_pool, n_head, cap, mask, v_first,
                             known_or_none(p, kq), known_or_none(p, capped), known_or_none(p, soft_max),
                             known_or_none(p, last)});
            },
            "q"_a, "k_pool"_a, "v_pool"_a, "n_head"_a, "cap"_a, "mask"_a, "v_first"_a, "out"_a, "kq"_a = -1,
            "capped"_a = -1, "soft_max"_a = -1, "last"_a = -1)
        .def(
            "foreign",
            [](Program& p, uintptr_t function, const std::vector<int>& inputs, const std::vector<const Vector*>& weights,
               const std::vector<double>& attrs, int out) {
                ForeignOp op{reinterpret_cast<ForeignRows>(function), {}, {}, attrs, known(p, out)};
                for (int input : inputs) op.inputs.push_back(known(p, input));
                for (const Vector* weight : weights) op.weights.push_back(weight->values);
                add_foreign(p, std::move(op));
            },
            "function"_a, "inputs"_a, "weights"_a, "attrs"_a, "out"_a)
        .def("run", &run, "tokens"_a.noconvert(), "positions"_a.noconvert(), "chunks"_a.noconvert(),
             "pages"_a.noconvert(), "states"_a.noconvert(), "externals"_a.noconvert(), "interruptible"_a)
        .def_prop_ro("arena_bytes", &Program::arena_bytes);
}
