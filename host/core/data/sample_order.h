// SampleOrder: the samples of an epoch in the order in which all ranks together see them, and where
// batches begin if they differ in size; and the checks of what a program's own sampler gives. The
// functions are pure; any thread may call them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace coupler::data {

struct SampleOrder {
  std::vector<size_t> samples;
  // For batches of different sizes, one more than batches: batch b has samples[begins[b]] up to
  // samples[begins[b + 1]]. Empty otherwise.
  std::vector<size_t> begins;
};

// What a sampler's epoch must keep to.
struct OrderLimits {
  int64_t epoch = 0;
  size_t size = 0;             // what the sampler said
  size_t batch_size = 0;       // likewise; 0: batches differ in size
  size_t dataset_samples = 0;  // every index is below
};

// Throw Error(kInvalidArgument) naming the epoch and position at which a limit is not kept.
SampleOrder order_of_indices(std::vector<size_t> indices, const OrderLimits& limits);
SampleOrder order_of_batches(const std::vector<std::vector<size_t>>& batches,
                             const OrderLimits& limits);

// A number that differs for different orders, except with a probability of about 2^-63. Never
// negative.
int64_t fingerprint(const SampleOrder& order);

// An order as one list, for comparison: each batch that has a size of its own is followed by
// kEndOfBatch.
inline constexpr int64_t kEndOfBatch = -1, kNothingMore = -2;
std::vector<int64_t> flattened(const SampleOrder& order);

// What a list has at a position, as text: "sample 7 at position 3", "the end of batch 2"; and an
// entry, or kNothingMore: "sample 7".
std::string describe_place(const std::vector<int64_t>& flat, size_t position);
std::string describe_value(int64_t entry);

// The first position at which the lists differ; nullopt if they are equal.
std::optional<size_t> first_difference(const std::vector<int64_t>& one,
                                       const std::vector<int64_t>& other);

}  // namespace coupler::data
