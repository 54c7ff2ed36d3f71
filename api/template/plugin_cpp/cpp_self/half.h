// Converts f16 and bf16 to float and back, rounding to even. Pure functions.
#pragma once

#include <cstdint>

namespace plugin {

float from_f16(uint16_t half);
uint16_t to_f16(float value);
float from_bf16(uint16_t half);
uint16_t to_bf16(float value);

}  // namespace plugin
