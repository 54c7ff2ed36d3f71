#include "data/batch_dispatcher.h"

#include <ATen/ops/empty.h>
#include <coupler/detail/dataset_source.h>
#include <coupler/error.h>

#include <algorithm>
#include <utility>

namespace coupler::detail {
namespace {

// The header that rank 0 broadcasts before the tensors of a step.
struct Head {
  enum : uint64_t { kStep, kStepLaidOutAsBefore, kError } kind = kStep;
  uint64_t rows = 0;    // of the step over all ranks, including filling
  uint64_t own = 0;     // the same without filling
  uint64_t length = 0;  // of the layout, or of the error message
};

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

}  // namespace

BatchDispatcher::BatchDispatcher(std::shared_ptr<LoaderPeers> peers, int rank)
    : peers_(std::move(peers)), rank_(rank) {}

StepRead BatchDispatcher::next(BatchSource& source, size_t slot, size_t step_samples, size_t first,
                               size_t slice, const std::function<StepRead()>& read) {
  if (ended_) return {};
  Head head;
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> layout;
  std::string text;
  std::exception_ptr error;
  if (rank_ == 0) {
    try {
      const StepRead step = read();
      head.rows = step.rows;
      head.own = step.own;
      if (step.rows > 0) {
        tensors = source.tensors(slot);
        for (at::Tensor& tensor : tensors) {
          if (tensor.defined()) tensor = tensor.contiguous();
        }
        require_rows(tensors, step.rows);
      }
      layout = encode(tensors);
      if (layout == layout_) head.kind = Head::kStepLaidOutAsBefore;
      head.length = layout.size();
    } catch (const std::exception& caught) {
      error = std::current_exception();
      text = caught.what();
      head.kind = Head::kError;
      head.length = text.size();
    }
  }
  peers_->broadcast(&head, sizeof head);
  if (head.kind == Head::kError) {
    ended_ = true;
    text.resize(head.length);
    if (head.length > 0) peers_->broadcast(text.data(), head.length);
    if (error) std::rethrow_exception(error);
    throw Error(ErrorCode::kAborted, "rank 0, which reads for all ranks, failed: " + text,
                {.rank = 0, .subject = "dataset"});
  }
  if (head.kind == Head::kStep) {
    layout.resize(head.length);
    if (head.length > 0) peers_->broadcast(layout.data(), head.length * sizeof layout[0]);
    layout_ = layout;
  }
  if (rank_ != 0) tensors = empty_tensors(layout_);
  for (const at::Tensor& tensor : tensors) {
    // As bytes, so that types unknown to backends work, too.
    if (tensor.defined() && tensor.numel() > 0) {
      peers_->broadcast(tensor.data_ptr(), tensor.nbytes());
    }
  }

  ended_ = head.rows < step_samples;
  const auto of_slice = [&](size_t count) {
    return std::min(count - std::min(count, first), slice);
  };
  const StepRead mine{of_slice(head.rows), of_slice(head.own), 0};
  if (head.rows > 0) {
    // A view would keep the other ranks' rows alive, so these rows are copied.
    auto part = mine.rows > 0 ? narrow_rows(tensors, first, mine.rows) : narrow_rows(tensors, 0, 1);
    if (mine.rows < head.rows) {
      for (at::Tensor& tensor : part) {
        if (tensor.defined()) tensor = tensor.clone();
      }
    }
    source.put(slot, std::move(part));
  }
  return mine;
}

}  // namespace coupler::detail
