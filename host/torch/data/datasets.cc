#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/stack.h>
#include <coupler/data_loader.h>
#include <coupler/detail/batch_slots.h>
#include <coupler/detail/dataset_source.h>
#include <coupler/detail/stream_source.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace coupler::detail {
namespace {

[[noreturn]] void cannot_split(const std::string& why) {
  fail_argument("a batch cannot be split: " + why, "batch",
                "the first dimension of every tensor of a batch must count its samples");
}

}  // namespace

at::Tensor stack(const std::vector<at::Tensor>& samples) {
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!samples[i].defined())
      fail_argument(
          fmt::format("sample {} of a batch of {} is an undefined tensor", i, samples.size()),
          "batch", "return a tensor from the dataset's get()");
    if (samples[i].sizes() != samples[0].sizes())
      fail_argument(
          fmt::format("the samples of a batch differ in shape: sample 0 has [{}], sample {} "
                      "has [{}]",
                      fmt::join(samples[0].sizes(), ", "), i, fmt::join(samples[i].sizes(), ", ")),
          "batch", "pad them, or let the dataset's get_batch return the batch itself");
  }
  return at::stack(samples);
}

size_t common_rows(const std::vector<at::Tensor>& tensors) {
  int64_t rows = -1;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    if (tensors[i].dim() == 0) cannot_split(fmt::format("its tensor {} is a scalar", i));
    const int64_t own = tensors[i].size(0);
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
  fail_argument(fmt::format("the stream's get_batch({}) returned {} samples", asked, given),
                "dataset", "return at most as many as requested, and none at the end");
}

void refuse_skip(size_t asked, size_t given) {
  fail_argument(
      fmt::format("the stream's skip({}) returned {}", asked, given), "dataset",
      "return how many samples were skipped: at most as many as requested, and fewer only "
      "at the end");
}

namespace {

[[noreturn]] void refuse_restoring(const EpochStart& start, const std::string& problem,
                                   const char* hint) {
  fail_argument(
      fmt::format("the stream's state after {} samples{} cannot be restored: {}", start.state_at,
                  start.parts > 1 ? fmt::format(" of part {} of {}", start.part, start.parts) : "",
                  problem),
      "dataset", hint);
}

bool same_tensor(const at::Tensor& one, const at::Tensor& other) {
  if (!one.defined() || !other.defined()) return one.defined() == other.defined();
  return one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
         at::equal(one.cpu(), other.cpu());
}

}  // namespace

void refuse_state(const EpochStart& start, const std::string& problem) {
  refuse_restoring(start, problem,
                   "resume with the stream it was saved with, or begin at an epoch's start");
}

void refuse_unrestored(const EpochStart& start, const std::string& name) {
  refuse_restoring(start, fmt::format("'{}' has another value in save() right after load()", name),
                   "let load() restore all that save() saves");
}

std::optional<std::string> first_difference(const StateDict& one, const StateDict& other) {
  const auto among = [](const auto& left, const auto& right,
                        const auto& same) -> std::optional<std::string> {
    for (const auto& [name, value] : left) {
      const auto found = right.find(name);
      if (found == right.end() || !same(value, found->second)) return name;
    }
    for (const auto& entry : right) {
      if (left.count(entry.first) == 0) return entry.first;
    }
    return std::nullopt;
  };
  const auto equal = [](const auto& a, const auto& b) { return a == b; };
  if (auto name = among(one.values(), other.values(), equal)) return name;
  return among(one.tensors(), other.tensors(), same_tensor);
}

void refuse_empty_batch(const std::string& type) {
  fail_argument(fmt::format("collate returned a batch of type {} without a tensor", type),
                "collate", "return the batch of the samples that it got");
}

void refuse_batch_type(const std::string& type, const char* done) {
  throw Error(
      ErrorCode::kUnsupported, fmt::format("a batch of type {} cannot be {}", type, done),
      {.subject = "batch", .hint = "let the dataset return tensors, or examples of tensors"});
}

void refuse_to_copy(const std::string& type, size_t workers) {
  fail_argument(
      fmt::format("the data loader's {} cannot be copied for its {} workers", type, workers),
      "workers",
      "make it copyable, share it through torch's SharedBatchDataset, or set "
      "workers to 0");
}

}  // namespace coupler::detail

namespace coupler {
namespace {

int64_t rows(const at::Tensor& tensor, const char* name) {
  if (!tensor.defined() || tensor.dim() == 0)
    fail_argument(fmt::format("the TensorDataset's {} is {}", name,
                              tensor.defined() ? "a scalar" : "an undefined tensor"),
                  name, "give a tensor whose first dimension counts samples");
  return tensor.size(0);
}

}  // namespace

TensorDataset::TensorDataset(at::Tensor data, at::Tensor target)
    : data_(std::move(data)), target_(std::move(target)) {
  const int64_t samples = rows(data_, "data");
  const int64_t targets = rows(target_, "target");
  if (samples != targets)
    fail_argument(fmt::format("the TensorDataset's data has {} rows, but its target has {}",
                              samples, targets),
                  "target", "every sample needs exactly one target");
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
