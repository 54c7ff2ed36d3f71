#include <ATen/ops/cat.h>
#include <coupler/error.h>
#include <coupler/split.h>
#include <fmt/format.h>

#include <algorithm>

namespace coupler::detail {

Part part_of(int64_t count, int rank, int world, bool apply_padding) {
  if (rank < 0 || rank >= world) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("split_between: rank {} is outside the world of {}", rank, world),
                {.rank = -1, .subject = "rank", .hint = "name a rank from 0 to world - 1"});
  }
  const int64_t each = count / world, more = count % world;
  Part part;
  part.start = rank * each + std::min<int64_t>(rank, more);
  part.end = part.start + each + (rank < more ? 1 : 0);
  if (apply_padding && more > 0 && rank >= more) part.repeats = 1;
  return part;
}

void refuse_lengths(const std::string& first, int64_t count, const std::string& other,
                    int64_t other_count) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("split_between_processes: \"{}\" has {} elements and \"{}\" has {}",
                          first, count, other, other_count),
              {.rank = -1, .subject = other, .hint = "the values of a map must be equally long"});
}

int64_t rows_to_split(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.dim() > 0) return tensor.size(0);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("split_between_processes: {} tensor has no rows to split",
                          tensor.defined() ? "a scalar" : "an undefined"),
              {.rank = -1, .subject = {}, .hint = "give a tensor of one dimension or more"});
}

at::Tensor take(const at::Tensor& tensor, const Part& part) {
  const at::Tensor own = tensor.slice(0, part.start, part.end);
  if (part.repeats == 0) return own;
  return at::cat({own, tensor.slice(0, tensor.size(0) - 1)});
}

}  // namespace coupler::detail
