// llama.cpp's vision tower as a worker of bench/vision.py: vision MMPROJ THREADS [gpu].
//
// It prints what it was built with and a zero. Then it answers each line "WIDTH HEIGHT PICTURES" with the seconds of encoding
// preprocessed pixels of this size, on the wall clock and of the CPU. PICTURES are encoded one by one. Flash attention is
// chosen by llama.cpp.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "clip-impl.h"
#include "clip.h"
#include "llama.h"

int main(int argc, char** argv) {
    if (argc != 3 && argc != 4) return 2;
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    std::printf("%s\n", llama_print_system_info());
    clip_context_params params{};
    params.use_gpu = argc == 4;
    params.flash_attn_type = CLIP_FLASH_ATTN_TYPE_AUTO;
    params.image_min_tokens = params.image_max_tokens = -1;
    clip_ctx* tower = clip_init(argv[1], params).ctx_v;
    if (!tower) return 1;
    std::printf("0\n");
    std::fflush(stdout);
    for (int width, height, count; std::scanf("%d %d %d", &width, &height, &count) == 3;) {
        clip_image_f32 image;
        image.set_size({width, height}, false, false);
        std::vector<float> pixels(size_t(width) * height * 3), out;
        for (size_t i = 0; i < pixels.size(); i++) pixels[i] = float(i * 7919 % 256) / 128 - 1;
        image.cpy_buf(pixels);
        const size_t tokens = clip_n_output_tokens(tower, &image);
        out.resize(tokens * clip_n_mmproj_embd(tower));
        const auto began = std::chrono::steady_clock::now();
        const auto cpu = std::clock();
        for (int i = 0; i < count; i++)
            if (!clip_image_encode(tower, std::atoi(argv[2]), &image, out)) return 1;
        const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
        std::printf("%.6f %.6f\n", wall.count(), double(std::clock() - cpu) / CLOCKS_PER_SEC);
        std::fflush(stdout);
    }
}
