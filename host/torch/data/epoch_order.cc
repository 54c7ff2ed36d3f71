// The order of an epoch's samples: the dataset's, shuffled, or a program's own sampler's, which all
// ranks must share.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "data/batch_sampler.h"
#include "data/loader.h"
#include "data/sample_order.h"

namespace coupler::detail {

void LoaderCore::State::make_order(bool reads) {
  order.samples.clear();
  order.begins.clear();
  if (chooser() == nullptr) {
    if (options.shuffle && reads)
      data::shuffled_order(*samples, options.seed, static_cast<uint64_t>(epoch), order.samples);
    return;
  }
  std::exception_ptr failure;
  try {
    choose_order(reads);
  } catch (...) {
    failure = std::current_exception();
  }
  if (peers != nullptr) agree_on_order(failure != nullptr);
  if (failure) std::rethrow_exception(failure);
}

void LoaderCore::State::choose_order(bool reads) {
  EpochSize size;
  std::vector<size_t> indices;
  std::vector<std::vector<size_t>> batches;
  sampler_state = {};
  try {
    sampler_state = saved_by(*chooser());
    chooser()->set_epoch(epoch);
    size = measured();
    if (reads && options.batch_sampler) {
      batches = options.batch_sampler->batches();
    } else if (reads) {
      indices = options.sampler->indices();
    }
  } catch (...) {
    rethrow_at(fmt::format("the {} in epoch {}", chooser_name(), epoch));
  }
  if (reads) {
    const bool sized = options.batch_sampler && !size.of_batches;
    const data::OrderLimits limits{
        .epoch = epoch,
        .size = sized ? *size.samples / static_cast<size_t>(size.batch_size) : *size.samples,
        .batch_size = sized ? static_cast<size_t>(size.batch_size) : 0,
        .dataset_samples = *dataset_samples};
    order = options.batch_sampler ? data::order_of_batches(batches, limits)
                                  : data::order_of_indices(std::move(indices), limits);
    if (sized) size.samples = order.samples.size();  // the last batch may be smaller
  }
  adopt(size, start);
}

void LoaderCore::State::agree_on_order(bool failed) const {
  constexpr int64_t kFailed = -1;
  const bool compared = dispatcher == nullptr;
  const std::vector<int64_t> all = peers->all(failed     ? kFailed
                                              : compared ? data::fingerprint(order)
                                                         : 0);
  const auto who = std::find(all.begin(), all.end(), kFailed);
  if (failed) return;  // the caller throws
  if (who != all.end()) {
    const int of = static_cast<int>(who - all.begin());
    throw Error(ErrorCode::kAborted,
                fmt::format("rank {}'s {} failed in epoch {}", of, chooser_name(), epoch),
                {.rank = of,
                 .subject = chooser_name(),
                 .hint = "that rank's own error says why: see its output"});
  }
  if (std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) != all.end())
    refuse_difference();
}

// The ranks' orders differ: finds out where. Collective.
void LoaderCore::State::refuse_difference() const {
  const std::vector<int64_t> mine = data::flattened(order);
  std::vector<int64_t> theirs(
      static_cast<size_t>(peers->all(static_cast<int64_t>(mine.size())).front()));
  if (rank == 0) theirs = mine;
  peers->broadcast(theirs.data(), theirs.size() * sizeof theirs[0]);
  const auto difference = data::first_difference(mine, theirs);
  const std::vector<int64_t> places =
      peers->all(difference ? static_cast<int64_t>(*difference) : -1);
  const auto found =
      std::find_if(places.begin(), places.end(), [](int64_t place) { return place >= 0; });
  const int who = static_cast<int>(found - places.begin());
  const auto place = static_cast<size_t>(*found);
  // What that rank has there, so that every rank can name it.
  const std::vector<int64_t> values =
      peers->all(place < mine.size() ? mine[place] : data::kNothingMore);
  const auto value = values[static_cast<size_t>(who)];
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("the {}s of ranks 0 and {} differ in epoch {}: rank 0's has {}, rank {}'s {}",
                  chooser_name(), who, epoch, data::describe_place(theirs, place), who,
                  data::describe_value(value)),
      {.rank = who,
       .subject = chooser_name(),
       .hint = "give every rank the same order: let what is random depend on the epoch or on a "
               "seed that all share"});
}

}  // namespace coupler::detail
