#include "data/loader.h"

#include <coupler/detail/batch_slots.h>
#include <coupler/detail/loader.h>
#include <coupler/detail/stream_source.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace coupler::detail {
namespace {

std::shared_ptr<void> (*make_dataset_scope)() = nullptr;

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
  if (is_stream && (options.sampler || options.batch_sampler))
    fail_argument("the data loader has a sampler, but its dataset is a stream", "sampler",
                  "choose the samples in the stream itself");
  if (options.sampler && options.shuffle)
    fail_argument("the data loader has both shuffle and a sampler", "sampler",
                  "leave shuffle out: the sampler sets the order");
  if (options.batch_sampler && (options.batch_size != 1 || options.shuffle || options.sampler))
    fail_argument(fmt::format("the data loader has both a batch sampler and {}",
                              options.sampler   ? "a sampler"
                              : options.shuffle ? "shuffle"
                                                : "a batch_size"),
                  "batch_sampler", "leave the other out: the batch sampler chooses the batches");
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

void load_sampler(SamplerBase& sampler, const StateDict& state, const char* name) {
  sampler.load(state);
  if (const auto differs = first_difference(state, saved_by(sampler)))
    fail_argument(fmt::format("the {} was not restored: '{}' has another value in save() right "
                              "after load()",
                              name, *differs),
                  name, "let load() restore all that save() saves");
}

// Throws unless a stream that was divided into so many parts still is.
void require_parts(int64_t saved, int64_t now) {
  if (saved == now) return;
  const auto describe = [](int64_t parts) {
    return parts == 0 ? std::string("as a whole") : fmt::format("in {} parts", parts);
  };
  fail_argument(
      fmt::format("the loader cursor is within an epoch of a stream that was read {}, but "
                  "this job reads it {}",
                  describe(saved), describe(now)),
      "cursor",
      saved == 0 || now == 0
          ? "resume with the stream and dispatch_batches it was saved with"
          : fmt::format("each process reads a part: resume with {} processes, or from a "
                        "checkpoint at the end of an epoch",
                        saved));
}

}  // namespace

StateDict saved_by(const SamplerBase& sampler) {
  StateDict state;
  sampler.save(state);
  return state;
}

bool is_empty(const StateDict& state) { return state.values().empty() && state.tensors().empty(); }

void LoaderCore::State::require_same_parts() const {
  if (stream_state.resumed) require_parts(stream_state.parts, divided() ? world_size : 0);
}

LoaderCore::State::State(BatchSource& batch_source, const DataLoaderOptions& given)
    : source(batch_source),
      options(checked_options(given, batch_source)),
      dataset_samples(checked_samples(batch_source)),
      sampler({.samples = 0}) {
  adopt(measured(), 0);
}

SamplerBase* LoaderCore::State::chooser() const {
  if (options.batch_sampler) return options.batch_sampler.get();
  return options.sampler.get();
}

bool LoaderCore::State::divided() const {
  return !dataset_samples && !options.dispatch_batches && source.abilities().shards;
}

LoaderCore::State::EpochSize LoaderCore::State::measured() const {
  if (chooser() == nullptr) return {.samples = dataset_samples, .batch_size = options.batch_size};
  const size_t size = chooser()->size();
  if (size == 0)
    fail_argument(fmt::format("the data loader's {} is empty: size() is 0", chooser_name()),
                  chooser_name(), "check what it was made with");
  if (!options.batch_sampler) return {.samples = size, .batch_size = options.batch_size};
  const size_t each = options.batch_sampler->batch_size();
  if (each == 0) {
    if (options.split_batches || options.dispatch_batches)
      fail_argument(fmt::format("{} needs batches of one size, but the batch sampler's differ",
                                options.split_batches ? "split_batches" : "dispatch_batches"),
                    "batch_sampler",
                    "let batch_size() return the size of all batches, or leave the option out");
    return {.samples = size, .of_batches = true};
  }
  constexpr auto kMost = static_cast<size_t>(std::numeric_limits<int64_t>::max());
  if (size > kMost / each)
    fail_argument(
        fmt::format("the batch sampler's size {} times its batch_size {} exceeds 2^63 - 1", size,
                    each),
        "batch_sampler", "check what it was made with");
  return {.samples = size * each, .batch_size = static_cast<int64_t>(each)};
}

void LoaderCore::State::adopt(const EpochSize& size, size_t from) {
  const EpochSize old{samples, batch_size, of_batches};
  const auto set = [&](const EpochSize& now) {
    samples = now.samples;
    batch_size = now.batch_size;
    of_batches = now.of_batches;
  };
  set(size);
  try {
    sampler_from(0, rank, world_size);  // later loops, too, have batches
    plan_next(from);
  } catch (...) {
    set(old);
    throw;
  }
}

data::BatchSampler LoaderCore::State::sampler_from(size_t from, int of_rank, int ranks) const {
  const data::BatchSampler result({.samples = samples.value_or(0),
                                   .batch_size = batch_size,
                                   .rank = of_rank,
                                   .world_size = ranks,
                                   .split_batches = options.split_batches,
                                   .drop_last = options.drop_last,
                                   .even_batches = even_batches(),
                                   .start = samples ? from : 0});
  if (!samples) return result;
  if (*samples < static_cast<size_t>(ranks))
    fail_argument(fmt::format("the data loader's {} has {} {}, fewer than the {} processes",
                              chooser() == nullptr ? "dataset" : chooser_name(), *samples,
                              of_batches ? "batches" : "samples", ranks),
                  "dataset", "every process needs one of its own: start fewer processes");
  if (options.drop_last && from == 0 && result.size() == 0)
    fail_argument(fmt::format("a dataset of {} samples yields no batch: with drop_last every step "
                              "needs {} (batch_size {}, {} processes{})",
                              *samples, result.step_samples(), batch_size, ranks,
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
  s.bound = true;
  s.parts_compared = false;
  s.peers = std::move(peers);
  ++s.pass;
}

int64_t LoaderCore::size() const {
  const State& s = *state_;
  if (!(s.looping ? s.joined : s.joining && s.peers != nullptr))
    return static_cast<int64_t>(s.sampler.size());
  return static_cast<int64_t>(s.steps_left());  // the count of rank 0, which has the most batches
}

std::shared_ptr<Sampler> LoaderCore::sampler() const { return state_->options.sampler; }

void LoaderCore::set_sampler(std::shared_ptr<Sampler> sampler) {
  State& s = *state_;
  require_no_loop(s.looping, "set_sampler");
  if (s.options.batch_sampler)
    fail_usage("set_sampler on a data loader with a batch sampler, which chooses the samples",
               "data loader", "give the batch sampler the other sampler");
  if (!s.dataset_samples)
    fail_usage("set_sampler on a data loader whose dataset is a stream", "data loader",
               "choose the samples in the stream itself");
  std::swap(s.options.sampler, sampler);
  try {
    s.adopt(s.measured(), 0);
  } catch (...) {
    std::swap(s.options.sampler, sampler);
    throw;
  }
}

int64_t LoaderCore::epoch() const { return state_->epoch; }
void LoaderCore::set_on_first_batch(
    std::function<void(const std::vector<at::Tensor>& batch)> call) {
  state_->on_first_batch = std::move(call);
}

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
  const bool within = s.looping && s.more;
  LoaderCursor cursor{
      .epoch = within ? s.epoch : s.next_epoch,
      .seed = s.options.seed,
      .dataset_samples = s.dataset_samples ? static_cast<int64_t>(*s.dataset_samples) : -1};
  const size_t place = within      ? s.start + s.position * s.sampler.step_samples()
                       : s.looping ? 0  // at the epoch's end
                                   : s.start;
  (s.of_batches ? cursor.batches : cursor.samples) = static_cast<int64_t>(place);
  if (const SamplerBase* chooser = s.chooser())
    cursor.sampler = within ? s.sampler_state : saved_by(*chooser);
  if (s.samples || place == 0) return cursor;
  cursor.parts = s.divided() ? s.world_size : 0;
  if (within) {
    cursor.stream = s.source.state_before(s.slot_of(s.looked_at));
  } else {
    if (s.stream_state.resumed) cursor.parts = s.stream_state.parts;
    if (s.stream_state.at == place) cursor.stream = s.stream_state.saved;
  }
  return cursor;
}

void LoaderCore::check_state(const LoaderCursor& cursor) const {
  const State& s = *state_;
  if (cursor.epoch < 0 || cursor.samples < 0 || cursor.batches < 0 || cursor.parts < 0)
    fail_argument(fmt::format("invalid loader cursor: {} parts, batch {}, sample {} of epoch {}",
                              cursor.parts, cursor.batches, cursor.samples, cursor.epoch),
                  "cursor", "all count from 0");
  const int64_t samples = s.dataset_samples ? static_cast<int64_t>(*s.dataset_samples) : -1;
  if (cursor.dataset_samples != samples) {
    const auto describe = [](int64_t count) {
      return count < 0 ? std::string("a stream") : fmt::format("a dataset of {} samples", count);
    };
    fail_argument(fmt::format("the loader cursor was saved with {}, but this loader has {}",
                              describe(cursor.dataset_samples), describe(samples)),
                  "cursor", "resume with the dataset it was saved with");
  }
  if (s.of_batches ? cursor.samples > 0 : cursor.batches > 0)
    fail_argument(
        fmt::format(
            "the loader cursor was saved {} a batch sampler of batches that differ in size, "
            "but this loader has {}",
            s.of_batches ? "without" : "with", s.of_batches ? "one" : "none"),
        "cursor", "resume with the kind of sampler it was saved with");
  if (s.chooser() == nullptr && !is_empty(cursor.sampler))
    fail_argument("the loader cursor has the state of a sampler, but this loader has none",
                  "cursor", "resume with the sampler it was saved with");
  if (s.bound && cursor.samples > 0) require_parts(cursor.parts, s.divided() ? s.world_size : 0);
}

void LoaderCore::load_state(const LoaderCursor& cursor) {
  State& s = *state_;
  require_no_loop(s.looping, "load_state");
  check_state(cursor);
  const auto place = static_cast<size_t>(s.of_batches ? cursor.batches : cursor.samples);
  if (SamplerBase* chooser = s.chooser()) {
    if (!is_empty(cursor.sampler)) load_sampler(*chooser, cursor.sampler, s.chooser_name());
    chooser->set_epoch(cursor.epoch);
    s.adopt(s.measured(), place);
  } else {
    s.plan_next(place);
  }
  s.stream_state = {};
  if (!s.samples && place > 0) s.stream_state = {cursor.stream, place, cursor.parts, true};
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

void set_dataset_scope(std::shared_ptr<void> (*make)()) { make_dataset_scope = make; }

std::shared_ptr<void> dataset_scope() {
  return make_dataset_scope != nullptr ? make_dataset_scope() : nullptr;
}

}  // namespace coupler::detail
