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

// Values divided among ranks, and their codes: those of a rank's part take sizes[rank] bytes,
// padding included. Each rank sends every other rank that rank's part.
struct CodedParts {
  // counts: of each rank's values. own_rank: this rank.
  CodedParts(std::shared_ptr<const GradientCodec> codec, const std::vector<uint64_t>& counts,
             int own_rank);

  int64_t count(int r) const { return begins[index(r) + 1] - begins[index(r)]; }
  int64_t code_bytes() const;      // of all ranks
  int64_t received_bytes() const;  // what the other ranks send
  at::Tensor of(const at::Tensor& values, int r) const;

  // Encodes the other ranks' parts into sent [code_bytes() or more of kByte]. Returns the
  // collective that fills received [received_bytes() or more of kByte]; neither may be empty.
  // error: like values, or undefined; is added to values, then set to what encoding lost, except
  // in this rank's own part, which is not encoded.
  db_op exchange(const at::Tensor& values, const at::Tensor& error, const at::Tensor& sent,
                 const at::Tensor& received) const;
  // Adds what the other ranks sent to this rank's part.
  void add_received(const at::Tensor& received, const at::Tensor& own) const;

  std::shared_ptr<const GradientCodec> codec;
  int rank;
  std::vector<int64_t> begins;
  std::vector<uint64_t> sizes, to_send, to_receive;

 private:
  static size_t index(int r) { return static_cast<size_t>(r); }
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
  db_op gather_sums();

  const at::Tensor memory_, error_;
  std::vector<at::Tensor> padding_;
  const CodedParts parts_;
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
  CompressedReduceScatter(comm::Communicator& comm, std::shared_ptr<const GradientCodec> codec,
                          const std::vector<uint64_t>& counts, const at::Tensor& values,
                          at::Tensor own, const at::Tensor& error, residency::BufferPool& pool,
                          bool overlap);
  CompressedReduceScatter(CompressedReduceScatter&&) = default;

  // Waits; `own` then holds the sum.
  void wait();

 private:
  CodedParts parts_;
  at::Tensor own_values_, own_;
  residency::BufferPool::Buffer sent_, received_;
  comm::Work work_;  // last: its destructor waits before the memory is freed
};

}  // namespace coupler::strategy
