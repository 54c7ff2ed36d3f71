// LogValue: a value for accelerator.log: a number, a string, a bool, or a one-element tensor, which
// is read only on the rank that logs it. A plain value type.
//
//   accelerator.log({{"loss", loss}, {"lr", 1e-3}, {"epoch", epoch}, {"note", "warm"}}, step);
#pragma once

#include <ATen/core/Tensor.h>
#include <coupler/tracker.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace coupler {

class LogValue {
 public:
  // Integers beyond 2^63 - 1 become floating-point numbers.
  template <class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>
  LogValue(Number value) : value_(of_number(value)) {}
  LogValue(std::string text) : value_(TrackValue(std::move(text))) {}
  LogValue(std::string_view text) : LogValue(std::string(text)) {}
  LogValue(const char* text) : LogValue(std::string(text)) {}
  LogValue(at::Tensor tensor) : value_(std::move(tensor)) {}

  // Returns the value; for a tensor its element, waiting for its device. `name` is the logged name,
  // for errors. Throws Error(kInvalidArgument) for complex tensors and other numbers of elements.
  TrackValue take(const std::string& name) &&;

 private:
  template <class Number>
  static TrackValue of_number(Number value) {
    if constexpr (std::is_same_v<Number, bool>) {
      return value;
    } else if constexpr (std::is_floating_point_v<Number>) {
      return static_cast<double>(value);
    } else {
      if constexpr (std::is_unsigned_v<Number> && sizeof(Number) >= sizeof(int64_t)) {
        if (value > static_cast<Number>(std::numeric_limits<int64_t>::max())) {
          return static_cast<double>(value);
        }
      }
      return static_cast<int64_t>(value);
    }
  }

  std::variant<TrackValue, at::Tensor> value_;
};

// LogImage: an image for accelerator.log_images. A plain value type.
struct LogImage {
  std::string name;  // as of a value: "samples/first"
  // Values of uint8, or floating-point ones from 0 to 1, which others are clamped to: [height,
  // width], or with 1 (gray), 3 (RGB) or 4 (RGBA) channels [height, width, channels] or [channels,
  // height, width]; the former if both are possible. On any device. Undefined: see `file`.
  at::Tensor pixels = {};
  std::string caption = {};
  std::string file = {};  // an image file instead, such as a figure
};

// Reads the pixels, waiting for their device, or the file. Throws Error(kInvalidArgument) naming
// the image; Error(kIo) for a file that cannot be read.
TrackedImage take_image(const LogImage& image);

// The argument of Accelerator::log: {{"train/loss", loss}, {"train/lr", 1e-3}}.
using LogValues = std::vector<std::pair<std::string, LogValue>>;

}  // namespace coupler
