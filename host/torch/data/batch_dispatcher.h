// BatchDispatcher: sends the steps of an epoch, which rank 0 reads, to all ranks. Used by the
// thread that runs the loop; every call is collective.
#pragma once

#include <coupler/detail/loader.h>

#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace coupler::detail {

class BatchDispatcher {
 public:
  BatchDispatcher(std::shared_ptr<LoaderPeers> peers, int rank);

  // The source's batches must be tensors. On rank 0, read() puts a whole step of `step_samples`
  // into the slot. Afterwards each rank's slot holds its slice of the step or, if that is empty,
  // the step's first row. If read() throws on rank 0, every rank throws. After an incomplete step,
  // nothing more is read or sent.
  StepRead next(BatchSource& source, size_t slot, size_t step_samples, size_t first, size_t slice,
                const std::function<StepRead()>& read);

 private:
  std::shared_ptr<LoaderPeers> peers_;
  int rank_;
  bool ended_ = false;
  std::vector<int64_t> layout_;  // of the latest step's tensors; see encode() in the definition
};

}  // namespace coupler::detail
