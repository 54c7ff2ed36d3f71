// LoaderPeers: what a data loader asks of the other ranks, given to it when it is bound; so loaders
// need to know nothing of communicators. Used by the thread that iterates; every call is
// collective. Behind data_loader.h; not included by users.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace coupler::detail {

class LoaderPeers {
 public:
  LoaderPeers() = default;
  LoaderPeers(const LoaderPeers&) = delete;
  LoaderPeers& operator=(const LoaderPeers&) = delete;
  virtual ~LoaderPeers() = default;

  // Whether any rank says yes.
  virtual bool any(bool mine) = 0;
  // What each rank says, in rank order.
  virtual std::vector<int64_t> all(int64_t mine) = 0;
  // Overwrites a contiguous tensor in host memory, of the same size on every rank, with rank 0's.
  virtual void broadcast(const at::Tensor& tensor) = 0;
};

}  // namespace coupler::detail
