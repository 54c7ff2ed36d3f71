// LoaderPeers: how a data loader communicates with the other ranks, passed to bind, so that loaders
// do not depend on communicators. Used by the iterating thread; every call is collective. Internal
// to data_loader.h; not included by users.
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

  // Whether any rank passes true.
  virtual bool any(bool mine) = 0;
  // The values of all ranks, in rank order.
  virtual std::vector<int64_t> all(int64_t mine) = 0;
  // Overwrites a contiguous tensor in host memory, of the same size on every rank, with rank 0's.
  virtual void broadcast(const at::Tensor& tensor) = 0;
};

}  // namespace coupler::detail
