// Decoders of the IQ1, IQ2 and IQ3 types (Unpack functions of blocks.h).
#pragma once
#include "blocks.h"

namespace assay::kernels {

void iq2_xxs(const uint8_t* row, int64_t b, Block32& o);
void iq2_xs(const uint8_t* row, int64_t b, Block32& o);
void iq2_s(const uint8_t* row, int64_t b, Block32& o);
void iq3_xxs(const uint8_t* row, int64_t b, Block32& o);
void iq3_s(const uint8_t* row, int64_t b, Block32& o);
void iq1_s(const uint8_t* row, int64_t b, Block32& o);
void iq1_m(const uint8_t* row, int64_t b, Block32& o);

}  // namespace assay::kernels
