#include "data/batch_dispatcher.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <coupler/detail/dataset_source.h>
#include <coupler/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace coupler::detail {
namespace {

// The header that rank 0 broadcasts before the tensors of a step.
enum Head : size_t {
  kKind,    // a Kind
  kRows,    // rows of the step over all ranks, including filling
  kOwn,     // the same without filling
  kLength,  // of the layout, or of the error message
  kHeadSize,
};
enum Kind : int64_t { kStep, kStepLaidOutAsBefore, kError };

// Concatenates (scalar type, dimensions, sizes…) of each tensor, (-1, 0) for an undefined one.
std::vector<int64_t> encode(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> layout;
  for (const at::Tensor& tensor : tensors) {
    layout.push_back(tensor.defined() ? static_cast<int64_t>(tensor.scalar_type()) : -1);
    layout.push_back(tensor.defined() ? tensor.dim() : 0);
    if (tensor.defined()) layout.insert(layout.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  return layout;
}

std::vector<at::Tensor> empty_tensors(const std::vector<int64_t>& layout) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i + 1 < layout.size();) {
    const int64_t type = layout[i];
    const auto dims = static_cast<size_t>(layout[i + 1]);
    const at::IntArrayRef sizes(layout.data() + i + 2, dims);
    tensors.push_back(type < 0 ? at::Tensor()
                               : at::empty(sizes, static_cast<at::ScalarType>(type)));
    i += 2 + dims;
  }
  return tensors;
}

// A tensor that borrows the memory of `numbers`.
at::Tensor view_of(int64_t* numbers, size_t count) {
  return at::from_blob(numbers, {static_cast<int64_t>(count)}, at::TensorOptions(at::kLong));
}

}  // namespace

BatchDispatcher::BatchDispatcher(std::shared_ptr<LoaderPeers> peers, int rank)
    : peers_(std::move(peers)), rank_(rank) {}

StepRead BatchDispatcher::next(BatchSource& source, size_t slot, size_t step_samples, size_t first,
                               size_t slice, const std::function<StepRead()>& read) {
  if (ended_) return {};
  std::vector<int64_t> head(kHeadSize, 0);
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> layout;
  std::string text;
  std::exception_ptr error;
  if (rank_ == 0) {
    try {
      const StepRead step = read();
      head[kRows] = static_cast<int64_t>(step.rows);
      head[kOwn] = static_cast<int64_t>(step.own);
      if (step.rows > 0) {
        tensors = source.tensors(slot);
        for (at::Tensor& tensor : tensors) {
          if (tensor.defined()) tensor = tensor.contiguous();
        }
        require_rows(tensors, step.rows);
      }
      layout = encode(tensors);
      head[kKind] = layout == layout_ ? kStepLaidOutAsBefore : kStep;
      head[kLength] = static_cast<int64_t>(layout.size());
    } catch (const std::exception& caught) {
      error = std::current_exception();
      text = caught.what();
      head[kKind] = kError;
      head[kLength] = static_cast<int64_t>(text.size());
    }
  }
  peers_->broadcast(view_of(head.data(), head.size()));
  const auto length = static_cast<size_t>(head[kLength]);
  if (head[kKind] == kError) {
    ended_ = true;
    text.resize(length);
    if (length > 0) {
      peers_->broadcast(
          at::from_blob(text.data(), {static_cast<int64_t>(length)}, at::TensorOptions(at::kByte)));
    }
    if (error) std::rethrow_exception(error);
    throw Error(ErrorCode::kAborted, "rank 0, which reads for all ranks, failed: " + text,
                {.rank = 0, .subject = "dataset"});
  }
  if (head[kKind] == kStep) {
    layout.resize(length);
    if (length > 0) peers_->broadcast(view_of(layout.data(), length));
    layout_ = layout;
  }
  if (rank_ != 0) tensors = empty_tensors(layout_);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0) peers_->broadcast(tensor);
  }

  const auto rows = static_cast<size_t>(head[kRows]);
  const auto own = static_cast<size_t>(head[kOwn]);
  ended_ = rows < step_samples;
  const auto of_slice = [&](size_t count) {
    return std::min(count - std::min(count, first), slice);
  };
  const StepRead mine{of_slice(rows), of_slice(own), 0};
  if (rows > 0) {
    // A view would keep the other ranks' rows alive, so these rows are copied.
    auto part = mine.rows > 0 ? narrow_rows(tensors, first, mine.rows) : narrow_rows(tensors, 0, 1);
    if (mine.rows < rows) {
      for (at::Tensor& tensor : part) {
        if (tensor.defined()) tensor = tensor.clone();
      }
    }
    source.put(slot, std::move(part));
  }
  return mine;
}

}  // namespace coupler::detail
