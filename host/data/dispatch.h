// Dispatcher: sends the steps of an epoch, which rank 0 reads, to all ranks. Used by the loop's
// thread; every call is collective.
#pragma once

#include <coupler/detail/batch_source.h>
#include <coupler/detail/loader_peers.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace coupler::detail {

class Dispatcher {
 public:
  Dispatcher(std::shared_ptr<LoaderPeers> peers, int rank);

  // Of a source whose batches are tensors: rank 0's read() puts a whole step of `step_samples` into
  // the slot; afterwards every rank has its slice of it there, or, where that is empty, the step's
  // first row. What read() throws on rank 0 is thrown by all. Behind an incomplete step nothing is
  // read or sent any more.
  StepRead next(BatchSource& source, size_t slot, size_t step_samples, size_t first, size_t slice,
                const std::function<StepRead()>& read);

 private:
  std::shared_ptr<LoaderPeers> peers_;
  int rank_;
  bool ended_ = false;
  std::vector<int64_t> layout_;  // of the latest step's tensors; see encode() in the definition
};

}  // namespace coupler::detail
