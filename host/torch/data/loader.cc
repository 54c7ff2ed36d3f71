#include "data/loader.h"

#include <coupler/detail/batch_slots.h>
#include <coupler/detail/loader.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace coupler::detail {
namespace {

std::shared_ptr<void> (*make_reading_scope)() = nullptr;

void require_no_loop(bool looping, const char* call) {
  if (looping)
    fail_usage(fmt::format("{} called inside a loop over the data loader", call), "data loader",
               "call it before the loop begins");
}

DataLoaderOptions checked_options(const DataLoaderOptions& options, const BatchSource& source) {
  constexpr int64_t kMost = 1024;
  const bool is_stream = source.is_stream();
  if (options.dispatch_batches && !source.sends_tensors())
    refuse_batch_type(source.batch_type(), "sent to other processes (dispatch_batches)");
  if (options.workers < 0 || options.workers > kMost)
    fail_argument(fmt::format("the data loader's workers is {}", options.workers), "workers",
                  "give 0 (none) to 1024");
  if (options.prefetch < 1 || options.prefetch > kMost)
    fail_argument(fmt::format("the data loader's prefetch is {}", options.prefetch), "prefetch",
                  "give 1 to 1024 batches per worker; workers = 0 reads nothing ahead");
  if (is_stream && options.workers > 1)
    fail_argument(fmt::format("the data loader's workers is {}, but its dataset is a stream",
                              options.workers),
                  "workers", "a stream is read in order, so set workers to 0 or 1");
  if (is_stream && options.shuffle)
    fail_argument("the data loader's shuffle is set, but its dataset is a stream", "shuffle",
                  "shuffle in the stream itself");
  return options;
}

std::optional<size_t> checked_samples(const BatchSource& source) {
  if (source.is_stream()) return std::nullopt;
  const std::optional<size_t> samples = source.samples();
  if (!samples)
    fail_argument("the data loader's dataset does not know its size", "dataset",
                  "return a number from the map-style dataset's size(), or use a stream dataset");
  if (*samples == 0)
    fail_argument("the data loader's dataset has no samples", "dataset",
                  "check the path or filter it was made with");
  return samples;
}

}  // namespace

LoaderCore::State::State(BatchSource& batch_source, const DataLoaderOptions& given)
    : source(batch_source),
      options(checked_options(given, batch_source)),
      samples(checked_samples(batch_source)),
      sampler(sampler_from(0, rank, world_size)) {}

data::BatchSampler LoaderCore::State::sampler_from(size_t from, int of_rank, int ranks) const {
  const data::BatchSampler result({.samples = samples.value_or(0),
                                   .batch_size = options.batch_size,
                                   .rank = of_rank,
                                   .world_size = ranks,
                                   .split_batches = options.split_batches,
                                   .drop_last = options.drop_last,
                                   .even_batches = even_batches(),
                                   .start = samples ? from : 0});
  if (!samples) return result;
  if (*samples < static_cast<size_t>(ranks))
    fail_argument(
        fmt::format("the data loader's dataset has {} samples, fewer than the {} processes",
                    *samples, ranks),
        "dataset", "every process needs a sample of its own: start fewer processes");
  if (options.drop_last && from == 0 && result.size() == 0)
    fail_argument(fmt::format("a dataset of {} samples yields no batch: with drop_last every step "
                              "needs {} (batch_size {}, {} processes{})",
                              *samples, result.step_samples(), options.batch_size, ranks,
                              options.split_batches ? ", split_batches" : ""),
                  "drop_last", "lower batch_size or leave drop_last out");
  return result;
}

size_t LoaderCore::State::steps_left() const {
  const size_t step = sampler.step_samples(), rest = samples.value_or(0) - start;
  return options.drop_last ? rest / step : (rest + step - 1) / step;
}

void LoaderCore::State::plan_next(size_t from) {
  sampler = sampler_from(from, rank, world_size);
  start = from;
}

LoaderCore::LoaderCore(BatchSource& source, const DataLoaderOptions& options)
    : state_(std::make_unique<State>(source, options)) {}

LoaderCore::~LoaderCore() = default;

void LoaderCore::bind(int rank, int world_size, at::Device device,
                      std::shared_ptr<LoaderPeers> peers) {
  State& s = *state_;
  const data::BatchSampler sampler = s.sampler_from(s.looping ? 0 : s.start, rank, world_size);
  if (s.looping) s.finish();
  s.sampler = sampler;
  s.rank = rank;
  s.world_size = world_size;
  s.device = device;
  s.peers = std::move(peers);
  ++s.pass;
}

int64_t LoaderCore::size() const {
  const State& s = *state_;
  if (!(s.looping ? s.joined : s.joining && s.peers != nullptr))
    return static_cast<int64_t>(s.sampler.size());
  return static_cast<int64_t>(s.steps_left());  // the count of rank 0, which has the most batches
}

int64_t LoaderCore::epoch() const { return state_->epoch; }
void LoaderCore::set_on_step_end(std::function<void()> call) {
  state_->on_step_end = std::move(call);
}
void LoaderCore::set_scopes(MakeScope body, MakeScope reading) {
  state_->body_scope = std::move(body);
  state_->reading_scope = std::move(reading);
}
bool LoaderCore::in_loop() const { return state_->looping; }
uint64_t LoaderCore::loop_number() const { return state_->loop_number; }
bool LoaderCore::at_last_batch() const { return state_->position > 0 && !state_->more; }
int64_t LoaderCore::own_samples() const { return static_cast<int64_t>(state_->own); }
int64_t LoaderCore::batch_samples() const { return static_cast<int64_t>(state_->rows); }
bool LoaderCore::stands_in() const { return state_->stands_in; }

void LoaderCore::set_epoch(int64_t epoch) {
  if (epoch < 0) fail_argument(fmt::format("set_epoch({})", epoch), "epoch", "epochs count from 0");
  state_->next_epoch = epoch;
}

LoaderCursor LoaderCore::state() const {
  const State& s = *state_;
  LoaderCursor cursor{.epoch = s.next_epoch,
                      .samples = static_cast<int64_t>(s.start),
                      .seed = s.options.seed,
                      .dataset_samples = s.samples ? static_cast<int64_t>(*s.samples) : -1};
  if (!s.looping) return cursor;
  cursor.samples = 0;
  if (!s.more) return cursor;  // at the epoch's end
  cursor.epoch = s.epoch;
  cursor.samples = static_cast<int64_t>(s.start + s.position * s.sampler.step_samples());
  return cursor;
}

void LoaderCore::load_state(const LoaderCursor& cursor) {
  State& s = *state_;
  require_no_loop(s.looping, "load_state");
  if (cursor.epoch < 0 || cursor.samples < 0)
    fail_argument(
        fmt::format("invalid loader cursor: sample {} of epoch {}", cursor.samples, cursor.epoch),
        "cursor", "both count from 0");
  const int64_t samples = s.samples ? static_cast<int64_t>(*s.samples) : -1;
  if (cursor.dataset_samples != samples) {
    const auto describe = [](int64_t count) {
      return count < 0 ? std::string("a stream") : fmt::format("a dataset of {} samples", count);
    };
    fail_argument(fmt::format("the loader cursor was saved with {}, but this loader has {}",
                              describe(cursor.dataset_samples), describe(samples)),
                  "cursor", "resume with the dataset it was saved with");
  }
  s.plan_next(static_cast<size_t>(cursor.samples));
  s.next_epoch = cursor.epoch;
  s.options.seed = cursor.seed;
}

void LoaderCore::skip_first_batches(int64_t count) {
  State& s = *state_;
  require_no_loop(s.looping, "skip_first_batches");
  if (count < 0)
    fail_argument(fmt::format("skip_first_batches({})", count), "count", "give 0 or more batches");
  const auto batches = static_cast<size_t>(count);
  const size_t step = s.sampler.step_samples();
  if (!s.samples) {
    s.start += batches * step;
    return;
  }
  if (batches > s.steps_left())
    fail_argument(fmt::format("skip_first_batches({}) on a data loader with {} batches", count,
                              s.steps_left()),
                  "count", "skip at most as many batches as the epoch has");
  s.plan_next(std::min(s.start + batches * step, *s.samples));
}

void LoaderCore::join(bool on, std::optional<bool> even_batches) {
  State& s = *state_;
  if (on) {
    require_no_loop(s.looping, "join_uneven_inputs");
    if (s.joining)
      fail_usage("join_uneven_inputs called inside join_uneven_inputs", "data loader",
                 "one scope around the loop is enough");
  }
  s.joining = on;
  s.even = even_batches;
  if (!s.looping) s.plan_next(s.start);
}

void set_reading_scope(std::shared_ptr<void> (*make)()) { make_reading_scope = make; }

std::shared_ptr<void> reading_scope() {
  return make_reading_scope != nullptr ? make_reading_scope() : nullptr;
}

}  // namespace coupler::detail
