// Search of the IQ encoders: the nearest point of a code book, among candidates near the nearest lattice point.
#pragma once
#include <cstdint>

namespace assay {

// A code book [points, width] on a lattice whose coordinates take `base` values. `middles` are the base - 1 numbers
// between them. near[code] lists the `count` points nearest to a lattice point; the code has the first coordinate as
// its lowest digit.
struct Book {
    const float* points;
    int width;
    const float* middles;
    int base;
    const uint16_t* near;
    int count;
};

// out[r] = the k of near[code of v[r]] with the least sum_j w[r, j] * (points[k, j] - v[r, j])^2, the first of equals.
// v, w: [rows, width]; sums in float32, over j in order.
void nearest_points(const float* v, const float* w, int64_t rows, const Book& book, int32_t* out);

}  // namespace assay
