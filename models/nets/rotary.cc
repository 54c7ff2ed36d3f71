#include "nets/rotary.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <coupler/error.h>

#include <cmath>
#include <numbers>

#include "base/file_text.h"
#include "json_file.h"

namespace coupler {
namespace {

// Llama 3.1's scaling: divides low frequencies, keeps high ones, and interpolates in between.
at::Tensor stretched(const at::Tensor& frequencies, const JsonObject& rope) {
  const double factor = rope.number("factor"), low = rope.number("low_freq_factor"),
               high = rope.number("high_freq_factor"),
               original = rope.number("original_max_position_embeddings");
  const at::Tensor lengths = frequencies.reciprocal().mul(2 * std::numbers::pi);
  const at::Tensor smooth = lengths.reciprocal().mul(original).sub(low).div(high - low);
  const at::Tensor between =
      frequencies.mul(smooth.neg().add(1.0)).div(factor).add(frequencies.mul(smooth));
  const at::Tensor slow = at::where(lengths.gt(original / low), frequencies.div(factor), between);
  return at::where(lengths.lt(original / high), frequencies, slow);
}

}  // namespace

at::Tensor rotary_frequencies(int64_t size, double base) {
  const at::Tensor exponents = at::arange(0, size, 2, at::kFloat).div(double(size));
  return at::pow(base, exponents).reciprocal();
}

at::Tensor rotary_frequencies(const JsonObject& config, int64_t size) {
  auto rope = config.maybe_object("rope_parameters");
  if (!rope) rope = config.maybe_object("rope_scaling");
  const double base = rope ? rope->number("rope_theta", config.number("rope_theta", 10000.0))
                           : config.number("rope_theta", 10000.0);
  const at::Tensor frequencies = rotary_frequencies(size, base);
  const std::string type =
      rope ? rope->text("rope_type", rope->text("type", "default")) : "default";
  if (type == "default") return frequencies;
  if (type == "linear") return frequencies.div(rope->number("factor"));
  if (type == "llama3") return stretched(frequencies, *rope);
  throw Error(ErrorCode::kUnsupported,
              rope->where() + ": rope_type '" + shown(type) + "' is not supported",
              {.subject = "rope_type", .hint = "use default, linear or llama3"});
}

Rotation::Rotation(const at::Tensor& positions, const at::Tensor& frequencies, Turned turned,
                   at::ScalarType type)
    : turned_(turned) {
  const at::Tensor angles =
      positions.to(at::kFloat)
          .unsqueeze(-1)
          .mul(frequencies.to(positions.device()));  // [batch?, tokens, size / 2]
  at::Tensor twice =
      turned == Turned::kHalves ? at::cat({angles, angles}, -1) : angles.repeat_interleave(2, -1);
  if (twice.dim() == 2) twice = twice.unsqueeze(0);
  twice = twice.unsqueeze(1);
  cosine_ = twice.cos().to(type);
  sine_ = twice.sin().to(type);
}

at::Tensor Rotation::turn(const at::Tensor& x) const {
  const int64_t size = cosine_.size(-1), rest = x.size(-1) - size;
  const at::Tensor part = rest == 0 ? x : x.narrow(-1, 0, size);
  at::Tensor other;
  if (turned_ == Turned::kHalves) {
    other = at::cat({part.narrow(-1, size / 2, size / 2).neg(), part.narrow(-1, 0, size / 2)}, -1);
  } else {
    other =
        at::stack({part.slice(-1, 1, size, 2).neg(), part.slice(-1, 0, size, 2)}, -1).flatten(-2);
  }
  at::Tensor result = part.mul(cosine_.to(x.device())).addcmul_(other, sine_.to(x.device()));
  return rest == 0 ? result : at::cat({result, x.narrow(-1, size, rest)}, -1);
}

}  // namespace coupler
