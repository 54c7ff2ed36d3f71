// Comm hooks: functions of a program that reduce gradients instead of Coupler, one bucket at a
// time, while backward runs. What register_comm_hook is to torch's DistributedDataParallel.
//
//   auto signs = accelerator.register_comm_hook(net, "signs", [](coupler::GradientBucket& bucket) {
//     at::Tensor sign = bucket.buffer().sign();
//     const int ranks = bucket.world_size();
//     return bucket.all_reduce(sign).then([=](const at::Tensor& sum) { return sum / ranks; });
//   });
//
// Hooks and their steps run on the thread that runs backward, without recording gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace coupler {

namespace strategy {
class GradientChain;
}

// How the values of all ranks are combined.
enum class ReduceOp { kSum, kMean, kMin, kMax, kProduct };

// GradientFuture: a tensor that is there once a collective is complete and the steps added by
// then() have run. A handle: copies refer to the same future. Do not use it again once a hook or a
// step has returned it.
class GradientFuture {
 public:
  // Complete: the tensor itself.
  GradientFuture(at::Tensor value);  // NOLINT(google-explicit-constructor)
  // Made by the functions of GradientBucket.
  explicit GradientFuture(std::shared_ptr<strategy::GradientChain> chain)
      : chain_(std::move(chain)) {}

  // Adds a step: next is called with the value so far. What it returns decides when:
  // - A tensor, the new value: at the end of backward, or when the gradients are needed. It must
  //   not start collectives.
  // - Another GradientFuture, whose value is the new one: when a later bucket begins, at the latest
  //   at the end of backward; at the same place on every rank. It may start collectives.
  template <class Next>
  GradientFuture then(Next next) const {
    using Result = std::invoke_result_t<Next&, at::Tensor>;
    static_assert(std::is_same_v<Result, at::Tensor> || std::is_same_v<Result, GradientFuture>,
                  "a step returns an at::Tensor or a GradientFuture");
    return add(std::move(next), std::is_same_v<Result, GradientFuture>);
  }
  // Runs all steps now and returns the value: simple, but backward waits.
  at::Tensor wait() const;

  // For the implementation.
  const std::shared_ptr<strategy::GradientChain>& chain() const { return chain_; }

 private:
  GradientFuture add(std::function<GradientFuture(at::Tensor)> next, bool communicates) const;

  std::shared_ptr<strategy::GradientChain> chain_;
};

// GradientBucket: gradients that are reduced together, and the ranks that do so. Every rank's hooks
// get the same buckets in the same order and must start the same collectives in the same order;
// those of the Accelerator are in another order, so do not call them here. Lives until the bucket
// is reduced, so steps may refer to it.
class GradientBucket {
 public:
  GradientBucket() = default;
  virtual ~GradientBucket() = default;
  GradientBucket(const GradientBucket&) = delete;
  GradientBucket& operator=(const GradientBucket&) = delete;

  // The same bucket has the same index in every step, from 0. is_last: no other one follows in this
  // backward.
  virtual size_t index() const = 0;
  virtual bool is_last() const = 0;
  // Of the ranks that reduce it: under hybrid_shard those of a group, otherwise all.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // This rank's own gradients [n], not divided by the number of ranks, with zeros where a parameter
  // has none and between parameters. With gradient accumulation those of the whole window; with
  // fp16 times loss_scale(). The hook may write to it.
  virtual const at::Tensor& buffer() const = 0;
  // The names of its parameters, in the order of buffer(); and, unless it is sharded, the
  // parameters and the parts of buffer() that are their gradients.
  virtual const std::vector<std::string>& names() const = 0;
  virtual const std::vector<at::Tensor>& parameters() const = 0;
  virtual const std::vector<at::Tensor>& gradients() const = 0;
  // If it is sharded: how many elements of buffer() each rank keeps, by rank. Empty: all ranks keep
  // all. A hook returns what this rank keeps.
  virtual const std::vector<int64_t>& shard_sizes() const = 0;

  // What the hook replaces: the mean over ranks of buffer(), or this rank's shard of it, as
  // communication.gradients says. Once for each bucket.
  virtual GradientFuture average() = 0;

  // Collectives over contiguous tensors of any dtype that the transport supports, on the gradients'
  // device. The tensor must not change until the future is complete. All of them throw
  // Error(kUnsupported) if the transport lacks the operation, Error(kInvalidArgument) for wrong
  // sizes.

  // In place.
  virtual GradientFuture all_reduce(const at::Tensor& tensor, ReduceOp reduction) = 0;
  GradientFuture all_reduce(const at::Tensor& tensor) { return all_reduce(tensor, ReduceOp::kSum); }
  // In place: rank `from`'s.
  virtual GradientFuture broadcast(const at::Tensor& tensor, int from) = 0;
  // [n…] of every rank into a new [world_size, n…].
  virtual GradientFuture all_gather(const at::Tensor& tensor) = 0;
  // [world_size, n…] into a new [n…]: row r goes to rank r. If the bucket is sharded: elements laid
  // out like buffer() into this rank's shard.
  virtual GradientFuture reduce_scatter(const at::Tensor& tensor, ReduceOp reduction) = 0;
  GradientFuture reduce_scatter(const at::Tensor& tensor) {
    return reduce_scatter(tensor, ReduceOp::kSum);
  }
  // [world_size, n…] into a new one of the same sizes: row r goes to rank r, row s comes from s.
  virtual GradientFuture all_to_all(const at::Tensor& tensor) = 0;
};

// Returns the reduced gradients, usually their mean over ranks: a tensor like buffer() (which it
// may be), or like this rank's shard of it, of the same dtype.
using CommHook = std::function<GradientFuture(GradientBucket&)>;

}  // namespace coupler
