#include "kernels/points.h"

#include <limits>

namespace assay {

template <int width>
static void search(const float* v, const float* w, int64_t rows, const Book& book, int32_t* out) {
    for (int64_t r = 0; r < rows; ++r, v += width, w += width) {
        int64_t code = 0;
        for (int j = width - 1; j >= 0; --j) {
            int digit = 0;
            for (int i = 0; i < book.base - 1; ++i) digit += v[j] > book.middles[i];
            code = code * book.base + digit;
        }
        const uint16_t* near = book.near + code * book.count;
        float least = std::numeric_limits<float>::infinity();
        int best = near[0];
        for (int c = 0; c < book.count; ++c) {
            const float* point = book.points + static_cast<int64_t>(near[c]) * width;
            float lost = 0;
            for (int j = 0; j < width; ++j) {
                const float difference = point[j] - v[j];
                lost += w[j] * difference * difference;
            }
            if (lost < least) {
                least = lost;
                best = near[c];
            }
        }
        out[r] = best;
    }
}

void nearest_points(const float* v, const float* w, int64_t rows, const Book& book, int32_t* out) {
    book.width == 4 ? search<4>(v, w, rows, book, out) : search<8>(v, w, rows, book, out);
}

}  // namespace assay
