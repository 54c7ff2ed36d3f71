#include "cpp_self/half.h"

#include <bit>
#include <cmath>

namespace plugin {

float from_bf16(uint16_t half) {
  return std::bit_cast<float>(uint32_t{half} << 16);
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_f16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u)
    return std::bit_cast<float>(sign | 0x7f800000u |
                                (magnitude & 0x3ffu) << 13);
  // The exponent is shifted into place with f16's bias; the product corrects
  // the bias, also for subnormals.
  return std::bit_cast<float>(
      sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) *
                                     0x1p112f));
}

uint16_t to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return static_cast<uint16_t>(sign | 0x7e00u);  // not a number
  if (magnitude >= 0x477ff000u)
    return static_cast<uint16_t>(sign | 0x7c00u);  // infinity from 65520 on
  if (magnitude < 0x38800000u) {                   // below 2^-14: a subnormal
    // Between 0.5 and 1 a float's last bit is 2^-24, the unit of f16
    // subnormals, so the addition rounds to it.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign |
                                 (std::bit_cast<uint32_t>(sum) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(
      sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

}  // namespace plugin
