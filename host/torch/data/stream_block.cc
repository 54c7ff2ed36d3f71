#include <ATen/ops/cat.h>
#include <coupler/detail/batch_slots.h>
#include <coupler/detail/map_source.h>
#include <coupler/detail/stream_block.h>
#include <coupler/detail/stream_source.h>
#include <coupler/error.h>
#include <fmt/format.h>

namespace coupler::detail {
namespace {

[[noreturn]] void cannot_split(const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "a batch cannot be split: " + why,
              {.subject = "batch",
               .hint = "the first dimension of every tensor of a batch must count its samples"});
}

// -1 for a scalar.
int64_t rows_of(const at::Tensor& tensor) { return tensor.dim() == 0 ? -1 : tensor.size(0); }

}  // namespace

size_t common_rows(const std::vector<at::Tensor>& tensors) {
  int64_t rows = -1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    const int64_t own = rows_of(tensors[i]);
    if (own < 0) cannot_split(fmt::format("its tensor {} is a scalar", i));
    if (rows >= 0 && own != rows)
      cannot_split(fmt::format("its tensor {} has {} rows, another has {}", i, own, rows));
    rows = own;
  }
  if (rows < 0) cannot_split("it has no defined tensor");
  return static_cast<size_t>(rows);
}

void require_rows(const std::vector<at::Tensor>& tensors, size_t rows) {
  const size_t found = common_rows(tensors);
  if (found != rows)
    cannot_split(fmt::format("it has {} rows, but {} samples were requested", found, rows));
}

std::vector<at::Tensor> narrow_rows(const std::vector<at::Tensor>& tensors, size_t first,
                                    size_t count) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) {
    parts.push_back(tensor.defined()
                        ? tensor.narrow(0, static_cast<int64_t>(first), static_cast<int64_t>(count))
                        : at::Tensor());
  }
  return parts;
}

std::vector<at::Tensor> join_rows(const std::vector<at::Tensor>& one,
                                  const std::vector<at::Tensor>& other) {
  std::vector<at::Tensor> joined;
  for (size_t i = 0; i < one.size(); ++i) {
    if (one[i].defined() != other[i].defined())
      cannot_split(fmt::format("its tensor {} is undefined in one part of the stream only", i));
    joined.push_back(one[i].defined() ? at::cat({one[i], other[i]}) : at::Tensor());
  }
  return joined;
}

void refuse_block(size_t asked, size_t given) {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("the stream's get_batch({}) returned {} samples", asked, given),
      {.subject = "dataset", .hint = "return at most as many as requested, and none at the end"});
}

void refuse_batch_type(const std::string& type, const char* done) {
  throw Error(
      ErrorCode::kUnsupported, fmt::format("a batch of type {} cannot be {}", type, done),
      {.subject = "batch", .hint = "let the dataset return tensors, or examples of tensors"});
}

void refuse_to_copy(const std::string& type, size_t workers) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the dataset {} cannot be copied for its {} workers", type, workers),
              {.subject = "workers",
               .hint = "make it copyable, share it through torch's SharedBatchDataset, or set "
                       "workers to 0"});
}

}  // namespace coupler::detail
