// ExchangeReduction: the sum of a bucket over the ranks by way of a GradientCodec. Each rank sends
// every other one its encoded part of the bucket, adds up in fp32 what it gets for its own part (of
// its own contribution nothing is lost), and sends that sum, encoded, to all. So whatever the
// number of ranks, a number is rounded twice, and every rank ends with the same bits. With error
// feedback each rank keeps what encoding lost and adds it to the next step's gradients. Thread
// rule: BucketReduction's.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "strategy/bucket_reduction.h"
#include "strategy/gradient_codec.h"

namespace coupler {

// How n elements are parted: rank r has [begins[r], begins[r + 1]); bytes[r] is where its code
// begins, aligned, and sizes[r] how long that is with the room behind it.
struct CodedParts {
  // Even parts.
  CodedParts(const GradientCodec& codec, int64_t n, int ranks);
  // counts: of each rank.
  CodedParts(const GradientCodec& codec, const std::vector<uint64_t>& counts);

  int64_t count(int rank) const { return begins[index(rank) + 1] - begins[index(rank)]; }
  at::Tensor of(const at::Tensor& values, int rank) const;
  // The code of a rank's part, in the memory of all.
  at::Tensor code_of(const at::Tensor& code, const GradientCodec& codec, int rank) const;

  std::vector<int64_t> begins, bytes;
  std::vector<uint64_t> sizes;

 private:
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  void lay_out(const GradientCodec& codec);
};

class ExchangeReduction final : public BucketReduction {
 public:
  // memory: the bucket, [n] of kFloat. error: [n] of what is carried from step to step; undefined
  // where the codec needs no feedback. padding: parts of memory that are nobody's gradient, and
  // zero again behind the reduction: an infinite element makes its whole block NaN.
  ExchangeReduction(at::Tensor memory, at::Tensor error, std::shared_ptr<const GradientCodec> codec,
                    std::vector<at::Tensor> padding, int rank, int ranks);

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

}  // namespace coupler
