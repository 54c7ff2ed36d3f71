#include "data/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace coupler::data {
namespace {

[[noreturn]] void refuse_order(const OrderLimits& limits, const char* who,
                               const std::string& problem, const char* hint) {
  fail_argument(fmt::format("the {} in epoch {}: {}", who, limits.epoch, problem), who, hint);
}

void require_size(const OrderLimits& limits, const char* who, const char* call, size_t given) {
  if (given != limits.size)
    refuse_order(limits, who,
                 fmt::format("{}() returned {}, but size() is {}", call, given, limits.size),
                 "size() must be the number of entries of the epoch given to set_epoch");
}

// Spreads a number over 64 bits: the finalizer of splitmix64.
uint64_t spread(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

SampleOrder order_of_indices(std::vector<size_t> indices, const OrderLimits& limits) {
  require_size(limits, "sampler", "indices", indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= limits.dataset_samples)
      refuse_order(limits, "sampler",
                   fmt::format("it gives sample {} at position {}, but the dataset has {}",
                               indices[i], i, limits.dataset_samples),
                   "indices count from 0 and are below the dataset's size()");
  }
  return {std::move(indices), {}};
}

SampleOrder order_of_batches(const std::vector<std::vector<size_t>>& batches,
                             const OrderLimits& limits) {
  constexpr const char* kWho = "batch sampler";
  require_size(limits, kWho, "batches", batches.size());
  SampleOrder order;
  size_t total = 0;
  for (const auto& batch : batches) total += batch.size();
  order.samples.reserve(total);
  if (limits.batch_size == 0) order.begins.push_back(0);
  for (size_t b = 0; b < batches.size(); ++b) {
    const auto& batch = batches[b];
    if (batch.empty())
      refuse_order(limits, kWho, fmt::format("its batch {} is empty", b),
                   "leave empty batches out");
    const bool last = b + 1 == batches.size();
    if (limits.batch_size > 0 &&
        (last ? batch.size() > limits.batch_size : batch.size() != limits.batch_size))
      refuse_order(limits, kWho,
                   fmt::format("its batch {} has {} samples, but batch_size() is {}", b,
                               batch.size(), limits.batch_size),
                   "only the last batch may be smaller: let batch_size() return 0 if they differ");
    for (size_t i = 0; i < batch.size(); ++i) {
      if (batch[i] >= limits.dataset_samples)
        refuse_order(limits, kWho,
                     fmt::format("it gives sample {} at position {} of batch {}, but the dataset "
                                 "has {}",
                                 batch[i], i, b, limits.dataset_samples),
                     "indices count from 0 and are below the dataset's size()");
    }
    order.samples.insert(order.samples.end(), batch.begin(), batch.end());
    if (limits.batch_size == 0) order.begins.push_back(order.samples.size());
  }
  return order;
}

int64_t fingerprint(const SampleOrder& order) {
  uint64_t hash = spread(order.samples.size());
  for (const size_t sample : order.samples) hash = spread(hash + sample + 1);
  for (const size_t begin : order.begins) hash = spread(hash + begin + 1);
  return static_cast<int64_t>(hash >> 1);
}

std::vector<int64_t> flattened(const SampleOrder& order) {
  std::vector<int64_t> flat;
  flat.reserve(order.samples.size() + order.begins.size());
  size_t batch = 1;
  for (size_t i = 0; i < order.samples.size(); ++i) {
    flat.push_back(static_cast<int64_t>(order.samples[i]));
    if (batch < order.begins.size() && order.begins[batch] == i + 1) {
      flat.push_back(kEndOfBatch);
      ++batch;
    }
  }
  return flat;
}

std::string describe_place(const std::vector<int64_t>& flat, size_t position) {
  const auto end = flat.begin() + static_cast<std::ptrdiff_t>(std::min(position, flat.size()));
  const auto batches = std::count(flat.begin(), end, kEndOfBatch);
  if (position >= flat.size()) return fmt::format("only {} entries", flat.size());
  if (flat[position] == kEndOfBatch) return fmt::format("the end of batch {}", batches);
  return flat.back() == kEndOfBatch
             ? fmt::format("sample {} in batch {}", flat[position], batches)
             : fmt::format("sample {} at position {}", flat[position], position);
}

std::string describe_value(int64_t entry) {
  if (entry == kNothingMore) return "nothing more";
  return entry == kEndOfBatch ? "the end of the batch" : fmt::format("sample {}", entry);
}

std::optional<size_t> first_difference(const std::vector<int64_t>& one,
                                       const std::vector<int64_t>& other) {
  const auto [a, b] = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  if (a == one.end() && b == other.end()) return std::nullopt;
  return static_cast<size_t>(a - one.begin());
}

}  // namespace coupler::data
