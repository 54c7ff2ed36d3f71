// CompressedAllReduce: sums a bucket over the ranks through a GradientCodec. Each rank sends every
// other rank that rank's part of the bucket, encoded, sums in fp32 what it receives for its own
// part (its own contribution loses nothing), and sends that sum, encoded, to all. So each number is
// rounded twice, whatever the number of ranks, and every rank ends with the same bits. With error
// feedback each rank keeps what encoding lost and adds it to the next step's gradients. Threads: as
// for BucketReduction.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "residency/buffer_pool.h"
#include "strategy/bucket_reduction.h"

namespace coupler::strategy {

// How n elements are divided: rank r has [begins[r], begins[r + 1]); its code starts at bytes[r],
// aligned, and takes sizes[r] bytes, padding included.
struct CodedParts {
  // Even parts.
  CodedParts(const GradientCodec& codec, int64_t n, int ranks);
  // counts: of each rank.
  CodedParts(const GradientCodec& codec, const std::vector<uint64_t>& counts);

  int64_t count(int rank) const { return begins[index(rank) + 1] - begins[index(rank)]; }
  at::Tensor of(const at::Tensor& values, int rank) const;
  // The code of a rank's part, within the memory of all codes.
  at::Tensor code_of(const at::Tensor& code, const GradientCodec& codec, int rank) const;

  std::vector<int64_t> begins, bytes;
  std::vector<uint64_t> sizes;

 private:
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  void lay_out(const GradientCodec& codec);
};

class CompressedAllReduce final : public BucketReduction {
 public:
  // memory: the bucket, [n] of kFloat. error: [n], carried from step to step; undefined if the
  // codec needs no feedback. padding: parts of memory that belong to no gradient. The reduction
  // sets them to zero at its end, since an infinite element makes its whole block NaN.
  CompressedAllReduce(at::Tensor memory, at::Tensor error,
                      std::shared_ptr<const GradientCodec> codec, std::vector<at::Tensor> padding,
                      int rank, int ranks);

  int operations() const override { return 2; }
  db_op operation(int i) override;
  void finish() override;

 private:
  db_op exchange_parts();
  db_op gather_sums();

  const at::Tensor memory_, error_;
  const std::shared_ptr<const GradientCodec> codec_;
  std::vector<at::Tensor> padding_;
  const int rank_, ranks_;
  const CodedParts parts_;
  std::vector<uint64_t> to_send_, to_receive_;
  at::Tensor sent_, received_, sums_;
};

// CompressedReduceScatter: a reduce-scatter of fp32 through a GradientCodec: each rank sends every
// other rank its part, encoded, and sums what it receives in fp32 (its own contribution loses
// nothing). Collective on the communicator, whose thread rules apply.
class CompressedReduceScatter {
 public:
  // values: [sum of counts] of kFloat, by rank; counts[r] of them are for rank r. own: [counts of
  // this rank], may alias their place in values. error: like values, or undefined; is added to
  // values, then set to what encoding lost. The tensors must stay valid until wait() has returned.
  // Without overlap the collective is complete on return.
  CompressedReduceScatter(comm::Communicator& comm, const GradientCodec& codec,
                          const std::vector<uint64_t>& counts, at::Tensor values, at::Tensor own,
                          at::Tensor error, residency::BufferPool& pool, bool overlap);
  CompressedReduceScatter(CompressedReduceScatter&&) = default;

  // Waits; `own` then holds the sum.
  void wait();

 private:
  const GradientCodec* codec_;
  int64_t message_ = 0;  // bytes from each rank
  int others_;
  at::Tensor own_values_, own_;
  std::vector<uint64_t> to_send_, to_receive_;
  residency::BufferPool::Buffer sent_, received_;
  comm::Work work_;  // last: its destructor waits before the memory is freed
};

}  // namespace coupler::strategy
