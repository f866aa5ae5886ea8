// llama.cpp as a worker of bench/compare.py and bench/load.py: peer MODEL THREADS CLOCK CONTEXT CACHE [PROMPT], the cache
// f16 or q8_0.
//
// It prints what it was built with, then the seconds from nothing to the first token after PROMPT tokens (1); then
// answers each line
// "prefill N DEPTH FRESH" or "decode N DEPTH FRESH" with the seconds it took, on the clock `wall` or `cpu`. FRESH: the
// DEPTH tokens before are computed first, untimed; else they are in the cache.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "llama.h"

static bool cpu_clock;

static double now() {
    if (cpu_clock) return double(std::clock()) / CLOCKS_PER_SEC;
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static llama_token id(int i) { return llama_token((i * 7919LL + 11) % 1000); }  // as compare.py has them

static void step(llama_context* context, int first, int n, int start) {
    llama_memory_seq_rm(llama_get_memory(context), 0, start, -1);
    for (int at = 0; at < n; at += 512) {
        std::vector<llama_token> tokens;
        for (int i = at; i < n && i < at + 512; i++) tokens.push_back(id(first + i));
        if (llama_decode(context, llama_batch_get_one(tokens.data(), int(tokens.size())))) std::exit(1);
        llama_synchronize(context);
    }
}

int main(int argc, char** argv) {
    if (argc != 6 && argc != 7) return 2;
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    cpu_clock = std::strcmp(argv[3], "cpu") == 0;
    std::printf("%s\n", llama_print_system_info());
    const double began = now();
    llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = std::atoi(argv[4]);
    params.type_k = params.type_v = std::strcmp(argv[5], "q8_0") ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context* context = llama_init_from_model(model, params);
    if (!context) return 1;
    step(context, 0, argc == 7 ? std::atoi(argv[6]) : 1, 0);
    std::printf("%.9f\n", now() - began);
    std::fflush(stdout);
    char what[16];
    for (int n, depth, fresh; std::scanf("%15s %d %d %d", what, &n, &depth, &fresh) == 4;) {
        if (fresh && depth) step(context, 0, depth, 0);
        double start = now();
        if (std::strcmp(what, "prefill") == 0) {
            step(context, 0, n, depth);
        } else {
            step(context, 0, 1, depth);
            start = now();
            for (int i = 0; i < n; i++) step(context, depth + i, 1, depth + 1 + i);
        }
        std::printf("%.9f\n", now() - start);
        std::fflush(stdout);
    }
}
