#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <coupler/error.h>
#include <coupler/tensor_dataset.h>
#include <fmt/format.h>

#include <utility>

namespace coupler {
namespace {

int64_t rows(const at::Tensor& tensor, const char* name) {
  if (!tensor.defined() || tensor.dim() == 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the TensorDataset's {} is {}", name,
                            tensor.defined() ? "a scalar" : "an undefined tensor"),
                {.subject = name, .hint = "give a tensor whose first dimension counts samples"});
  return tensor.size(0);
}

}  // namespace

TensorDataset::TensorDataset(at::Tensor data, at::Tensor target)
    : data_(std::move(data)), target_(std::move(target)) {
  const int64_t samples = rows(data_, "data");
  const int64_t targets = rows(target_, "target");
  if (samples != targets)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the TensorDataset's data has {} rows, but its target has {}", samples,
                            targets),
                {.subject = "target", .hint = "every sample needs exactly one target"});
}

torch::data::Example<> TensorDataset::get(size_t index) const {
  const auto row = static_cast<int64_t>(index);
  return {data_.select(0, row), target_.select(0, row)};
}

torch::data::Example<> TensorDataset::get_batch(c10::ArrayRef<size_t> indices) {
  // The indices are used in place: size_t and the kLong of index_select have the same size.
  const at::Tensor rows_wanted =
      at::from_blob(const_cast<size_t*>(indices.data()), {static_cast<int64_t>(indices.size())},
                    at::TensorOptions(at::kLong));
  const auto gather = [&](const at::Tensor& tensor) {
    return at::index_select(tensor, 0, rows_wanted.to(tensor.device()));
  };
  return {gather(data_), gather(target_)};
}

std::optional<size_t> TensorDataset::size() const { return static_cast<size_t>(data_.size(0)); }

}  // namespace coupler
