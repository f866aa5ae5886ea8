// 64 rows by 8 J tokens on tensor cores, by four warps: d = d + a b over 16 columns of halves, sums in float32. The warps of a
// group come together. A warp has 16 of the rows, in registers as `mma` has them; b lies in shared memory, [8 J tokens][64 columns],
// the 16-byte pieces of token t at place (piece ^ t % 8). From sm_90 on (`wgmma`) the product goes on behind the warps' back: `a`, `d` and
// b are left alone until `products_done<N>` says that all but the last N sent ones are over, and `products_over` says it of all and
// gives the sums: a compiler that is not told so may compute with them before (tests/engines/test_cuda_code.py). Part of platform.h.
#pragma once

#ifdef ASSAY_SHIM
DEVICE void products_begin() {}
DEVICE void products_sent() { shim::products().send(); }
template <int LEFT>
DEVICE void products_done() { shim::products().finish(LEFT); }
template <int J>
DEVICE void products_over(float (&)[J][4]) { products_done<0>(); }
DEVICE void fence_copies() {}

template <int J>
DEVICE void multiply_now(const shim::Work& w) {
    auto& d = *static_cast<float (*)[J][4]>(w.to);
    const auto& a = *static_cast<const uint32_t (*)[4]>(w.a);
    const uint8_t* const b = static_cast<const uint8_t*>(w.b);
    const int k = w.n, me = lane(), g = me / 4, t = me % 4;
    for (int i = 0; i < 4; i++) shim::warp_slots(me)[i] = a[i];
    sync_warp();
    double x[2][16];
    for (int i = 0; i < 32; i++)
        x[i / 16][i % 16] = half_to_float(uint16_t(shim::warp_slots(4 * g + i % 8 / 2)[i % 16 / 8 * 2 + i / 16] >> 16 * (i % 2)));
    shim::exchanged();
    for (int n = 0; n < 2 * J; n++) {
        const int token = n / 2 * 8 + 2 * t + n % 2;
        double sums[2] = {d[n / 2][n % 2], d[n / 2][2 + n % 2]};
        for (int i = 0; i < 16; i++) {
            const double y = half_to_float(reinterpret_cast<const uint16_t*>(b + token * 128 + ((2 * k + i / 8) ^ token % 8) * 16)[i % 8]);
            sums[0] += x[0][i] * y;
            sums[1] += x[1][i] * y;
        }
        d[n / 2][n % 2] = float(sums[0]), d[n / 2][2 + n % 2] = float(sums[1]);
    }
    sync_warp();
}
template <int J>
DEVICE void multiply_rows(float (&d)[J][4], const uint32_t (&a)[4], const uint8_t* b, int k) {
    shim::products().add({multiply_now<J>, &d, &a, b, k, 0});
}
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }  // registers are as the products shall see them
DEVICE void products_sent() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT>
DEVICE void products_done() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
template <int J>
DEVICE void products_over(float (&d)[J][4]) {
    products_done<0>();
#pragma unroll
    for (int j = 0; j < J; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[j][e]));
}
// What this thread has copied to shared memory, `multiply_rows` may read.
DEVICE void fence_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Of b: 1024 bytes from eight tokens to the next, pieces swapped within 128 bytes; the word before it says where it begins.
constexpr uint32_t kSwapped = 64u | 1u << 30;
DEVICE void multiply_rows_(float (&d)[1][4], const uint32_t (&a)[4], uint32_t b) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 desc;\n\tmov.b64 desc, {%8, %9};\n\tsetp.eq.u32 p, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {"
                 "%0, %1, %2, %3"
                 "}, {%4, %5, %6, %7}, desc, p, 1, 1, 0;\n\t}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kSwapped));
}
DEVICE void multiply_rows_(float (&d)[2][4], const uint32_t (&a)[4], uint32_t b) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 desc;\n\tmov.b64 desc, {%12, %13};\n\tsetp.eq.u32 p, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7"
                 "}, {%8, %9, %10, %11}, desc, p, 1, 1, 0;\n\t}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kSwapped));
}
DEVICE void multiply_rows_(float (&d)[4][4], const uint32_t (&a)[4], uint32_t b) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 desc;\n\tmov.b64 desc, {%20, %21};\n\tsetp.eq.u32 p, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, desc, p, 1, 1, 0;\n\t}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
                   "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kSwapped));
}
DEVICE void multiply_rows_(float (&d)[8][4], const uint32_t (&a)[4], uint32_t b) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 desc;\n\tmov.b64 desc, {%36, %37};\n\tsetp.eq.u32 p, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, desc, p, 1, 1, 0;\n\t}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
                   "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
                   "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kSwapped));
}
DEVICE void multiply_rows_(float (&d)[16][4], const uint32_t (&a)[4], uint32_t b) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 desc;\n\tmov.b64 desc, {%68, %69};\n\tsetp.eq.u32 p, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, {%64, %65, %66, %67}, desc, p, 1, 1, 0;\n\t}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
                   "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
                   "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
                   "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
                   "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
                   "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kSwapped));
}
DEVICE void multiply_rows_(float (&d)[32][4], const uint32_t (&a)[4], uint32_t b) {
    asm volatile("{\n\t.reg .pred p;\n\t.reg .b64 desc;\n\tmov.b64 desc, {%132, %133};\n\tsetp.eq.u32 p, 0, 0;\n\twgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
                 "}, {%128, %129, %130, %131}, desc, p, 1, 1, 0;\n\t}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]),
                   "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]),
                   "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]),
                   "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]),
                   "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]),
                   "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3]),
                   "+f"(d[16][0]), "+f"(d[16][1]), "+f"(d[16][2]), "+f"(d[16][3]), "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]), "+f"(d[17][3]),
                   "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3]), "+f"(d[19][0]), "+f"(d[19][1]), "+f"(d[19][2]), "+f"(d[19][3]),
                   "+f"(d[20][0]), "+f"(d[20][1]), "+f"(d[20][2]), "+f"(d[20][3]), "+f"(d[21][0]), "+f"(d[21][1]), "+f"(d[21][2]), "+f"(d[21][3]),
                   "+f"(d[22][0]), "+f"(d[22][1]), "+f"(d[22][2]), "+f"(d[22][3]), "+f"(d[23][0]), "+f"(d[23][1]), "+f"(d[23][2]), "+f"(d[23][3]),
                   "+f"(d[24][0]), "+f"(d[24][1]), "+f"(d[24][2]), "+f"(d[24][3]), "+f"(d[25][0]), "+f"(d[25][1]), "+f"(d[25][2]), "+f"(d[25][3]),
                   "+f"(d[26][0]), "+f"(d[26][1]), "+f"(d[26][2]), "+f"(d[26][3]), "+f"(d[27][0]), "+f"(d[27][1]), "+f"(d[27][2]), "+f"(d[27][3]),
                   "+f"(d[28][0]), "+f"(d[28][1]), "+f"(d[28][2]), "+f"(d[28][3]), "+f"(d[29][0]), "+f"(d[29][1]), "+f"(d[29][2]), "+f"(d[29][3]),
                   "+f"(d[30][0]), "+f"(d[30][1]), "+f"(d[30][2]), "+f"(d[30][3]), "+f"(d[31][0]), "+f"(d[31][1]), "+f"(d[31][2]), "+f"(d[31][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kSwapped));
}
template <int J>
DEVICE void multiply_rows(float (&d)[J][4], const uint32_t (&a)[4], const uint8_t* b, int k) {
    multiply_rows_(d, a, (shared_address(b) >> 4 | 1u << 16) + 2 * k);
}
#else
DEVICE void products_begin() {}
DEVICE void products_sent() {}
template <int LEFT>
DEVICE void products_done() {}
template <int J>
DEVICE void products_over(float (&)[J][4]) {}
DEVICE void fence_copies() {}

template <int J>
DEVICE void multiply_rows(float (&d)[J][4], const uint32_t (&a)[4], const uint8_t* b, int k) {
    const int token = lane() % 8 + lane() / 16 * 8 * (J > 1), piece = 2 * k + lane() / 8 % 2;
#pragma unroll
    for (int j = 0; j < J; j += 2) {
        uint32_t two[4];
        load_matrices(two, b + (8 * j + token) * 128 + (piece ^ token % 8) * 16);
        mma_f16(d[j], a, two[0], two[1]);
        if constexpr (J > 1) mma_f16(d[j + 1], a, two[2], two[3]);
    }
}
#endif
