// A loop over a data loader: its start, its steps and its end.
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "data/batch_sampler.h"
#include "data/loader.h"
#include "device/device_memory.h"

namespace coupler::detail {
namespace {

std::atomic<uint64_t> loops_begun = 0;

[[noreturn]] void no_batch(const std::string& message, const char* hint) {
  fail_argument(message, "dataset", hint);
}

}  // namespace

void rethrow_at(const std::string& place) {
  ErrorCode code = ErrorCode::kInvalidArgument;
  ErrorDetail detail{.subject = "dataset"};
  std::string what = "an exception not derived from std::exception";
  try {
    throw;
  } catch (const Error& error) {
    code = error.code();
    detail = error.detail();
    detail.hint.clear();  // the message has it
    what = error.what();
  } catch (const c10::Error& error) {
    what = error.what_without_backtrace();
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
  }
  std::throw_with_nested(Error(code, fmt::format("{}: {}", place, what), detail));
}

void LoaderCore::State::request_of(size_t step, StepRequest& wanted) const {
  const data::BatchSampler& read_sampler = whole ? *whole : sampler;
  wanted.pin = options.pin_memory && !device.is_cpu() && device::can_pin(device);
  if (!samples) {
    wanted.first = divided() ? 0 : read_sampler.first();
    wanted.slice = read_sampler.slice();
    wanted.drop_last = options.drop_last;
    wanted.fill = fill;
    return;
  }
  read_sampler.batch(step, wanted.indices);
  if (of_batches) {
    const auto batch = order.begins.begin() + static_cast<std::ptrdiff_t>(wanted.indices.front());
    const auto samples_of_epoch = order.samples.begin();
    wanted.indices.assign(samples_of_epoch + static_cast<std::ptrdiff_t>(batch[0]),
                          samples_of_epoch + static_cast<std::ptrdiff_t>(batch[1]));
  } else if (!order.samples.empty()) {
    for (size_t& index : wanted.indices) index = order.samples[index];
  }
}

StepRead LoaderCore::State::read(size_t worker, size_t step, size_t slot, StepRequest& wanted) {
  const data::BatchSampler& read_sampler = whole ? *whole : sampler;
  if (samples && step >= read_sampler.size()) return {};
  request_of(step, wanted);
  // Pinning uses the current device, which is not set on worker threads.
  const c10::OptionalDeviceGuard guard(wanted.pin ? std::optional(device) : std::nullopt);
  try {
    StepRead result = source.fetch(worker, slot, wanted);
    if (samples)
      result.own = of_batches ? read_sampler.own(step) * result.rows : read_sampler.own(step);
    return result;
  } catch (...) {
    rethrow_at(place_of(step, wanted));
  }
}

std::string LoaderCore::State::place_of(size_t step, const StepRequest& wanted) const {
  std::string place = fmt::format("batch {} of epoch {}", step, epoch);
  if (!samples) {
    const size_t parts = divided() ? static_cast<size_t>(world_size) : 1;
    const size_t count = sampler.step_samples() / parts, first = start / parts + step * count;
    place += fmt::format(" (samples {} to {} of the stream", first, first + count - 1);
    return place + (parts > 1 ? fmt::format("'s part {} of {})", rank, parts) : ")");
  }
  constexpr size_t kNamed = 8;
  const size_t count = std::min(wanted.indices.size(), kNamed);
  if (count == 0) return place;
  return place + fmt::format(" (samples {}{})",
                             fmt::join(wanted.indices.data(), wanted.indices.data() + count, ", "),
                             count < wanted.indices.size() ? ", …" : "");
}

StepRead LoaderCore::State::local(size_t step) {
  const size_t slot = slot_of(step);
  if (workers != nullptr) workers->await(step);  // an absent step has no rows in `ready`
  const StepRead result = workers != nullptr ? ready[slot] : read(0, step, slot, request);
  // When ranks are joined and each reads its own stream, streams may end at different times.
  if (step == 0 && !samples && (dispatcher != nullptr || !joined)) require_samples(result);
  return result;
}

void LoaderCore::State::require_samples(const StepRead& first) const {
  const size_t parts = divided() ? static_cast<size_t>(world_size) : 1;
  if (parts == 1 && first.read < start)
    no_batch(fmt::format("the stream has {} samples, but {} were to be skipped", first.read, start),
             "resume or skip with the stream in which the position was counted");
  if (start > 0) return;
  if (first.read == 0)
    no_batch(parts == 1 ? "the stream has no samples"
                        : fmt::format("the stream's part {} of {} has no samples", rank, parts),
             "check its input and its reset()");
  if (parts == 1 && first.read < static_cast<size_t>(world_size))
    no_batch(fmt::format("the stream has {} samples, fewer than the {} processes", first.read,
                         world_size),
             "every process needs a sample of its own: start fewer processes");
  if (parts == 1 && options.drop_last && first.read < sampler.step_samples())
    no_batch(fmt::format("a stream of {} samples yields no batch: with drop_last every step needs "
                         "{} (batch_size {}, {} processes{})",
                         first.read, sampler.step_samples(), options.batch_size, world_size,
                         options.split_batches ? ", split_batches" : ""),
             "lower batch_size or leave drop_last out");
}

StepRead LoaderCore::State::look(size_t step) {
  looked_at = step;
  if (dispatcher != nullptr)
    return dispatcher->next(source, slot_of(step), sampler.step_samples(), sampler.first(),
                            sampler.slice(), [&] { return local(step); });
  if (!samples) return local(step);
  if (step >= sampler.size()) return {};
  if (!of_batches) return {sampler.slice(), sampler.own(step), 0};
  std::vector<size_t> batch;
  sampler.batch(step, batch);
  const size_t size = order.begins[batch.front() + 1] - order.begins[batch.front()];
  return {size, sampler.own(step) * size, 0};
}

void LoaderCore::State::begin() {
  require_same_parts();
  dispatcher.reset();
  if (options.dispatch_batches && peers != nullptr)
    dispatcher = std::make_unique<BatchDispatcher>(peers, rank);
  make_order(dispatcher == nullptr || rank == 0);
  const size_t parts = divided() ? static_cast<size_t>(world_size) : 1;
  // Parts may end at different times.
  joined = peers != nullptr && (joining || (parts > 1 && (options.drop_last || even_batches())));
  together = joined && !joining && options.drop_last;
  fill = !options.drop_last && even_batches();
  whole.reset();
  if (dispatcher != nullptr) {
    whole.emplace(
        data::BatchSamplerOptions{.samples = samples.value_or(0),
                                  .batch_size = static_cast<int64_t>(sampler.step_samples()),
                                  .drop_last = options.drop_last,
                                  .even_batches = even_batches(),
                                  .start = samples ? start : 0});
  }
  const bool reads = dispatcher == nullptr || rank == 0;
  const size_t count = reads ? static_cast<size_t>(options.workers) : 0;
  slots = std::max<size_t>(1, count * static_cast<size_t>(options.prefetch));
  const bool has_state = !is_empty(stream_state.saved) && stream_state.at <= start;
  const StreamAbilities abilities = source.abilities();
  if (!samples && start > 0 && rank == 0 && !abilities.skips && !(abilities.saves && has_state))
    log(LogLevel::kWarning, "data",
        fmt::format(
            "the stream is read again up to sample {} of epoch {}: give it skip(), or save() "
            "and load(), to resume at once",
            start / parts, epoch));
  source.begin({.epoch = epoch,
                .slots = slots,
                .workers = count,
                .reads = reads,
                .part = parts > 1 ? static_cast<size_t>(rank) : 0,
                .parts = parts,
                .skip = samples ? 0 : start / parts,
                .step_samples = sampler.step_samples() / parts,
                .state = abilities.saves && has_state ? &stream_state.saved : nullptr,
                .state_at = stream_state.at / parts});
  if (count > 0) {
    ready.assign(slots, {});
    worker_requests.resize(count + 1);
    workers = std::make_unique<data::Workers>(count, slots, [this](size_t worker, uint64_t step) {
      StepRead& result = ready[slot_of(step)];
      result = read(worker, step, slot_of(step), worker_requests[worker]);
      return result.rows > 0;
    });
  }
  upcoming = look(0);
  more = upcoming.rows > 0;
  if (parts > 1 && peers != nullptr && start == 0 && !std::exchange(parts_compared, true))
    warn_if_parts_are_equal();
  if (joined) agree_on_first();
}

int64_t hash_of_values(const std::vector<at::Tensor>& tensors) {
  size_t hash = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const at::Tensor values = tensor.cpu().contiguous();
    const std::string_view bytes(static_cast<const char*>(values.const_data_ptr()),
                                 values.nbytes());
    hash = hash * 31 + std::hash<std::string_view>()(bytes);
  }
  return static_cast<int64_t>(hash);
}

// Data may repeat, so equal samples are no error.
void LoaderCore::State::warn_if_parts_are_equal() {
  const int64_t hash =
      upcoming.rows > 0 && source.sends_tensors() ? hash_of_values(source.tensors(0)) : 0;
  const std::vector<int64_t> all = peers->all(hash);
  for (size_t r = 1; rank == 0 && hash != 0 && r < all.size(); ++r) {
    if (all[r] != all[0]) continue;
    log(LogLevel::kWarning, "data",
        fmt::format("rank {} reads the same first batch of the stream as rank 0: let "
                    "shard(part, parts) give each part other samples",
                    r));
    return;
  }
}

// Agrees on which ranks have a batch and which can stand in with a repeated one. If a rank can do
// neither, every rank throws an Error that names it.
void LoaderCore::State::agree_on_first() {
  enum : int64_t { kNothing, kStandsIn, kHasBatch };
  int64_t mine = kHasBatch;
  if (upcoming.rows == 0)
    mine = samples || dispatcher != nullptr || upcoming.read > 0 ? kStandsIn : kNothing;
  const std::vector<int64_t> all = peers->all(mine);
  const auto nothing = std::find(all.begin(), all.end(), kNothing);
  if (nothing != all.end()) {
    const int who = static_cast<int>(nothing - all.begin());
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("rank {} has no data at all: its stream ended before the first sample", who),
        {.rank = who,
         .subject = joining ? "join_uneven_inputs" : "dataset",
         .hint = "a rank without a batch repeats one, so give each at least one sample"});
  }
  const auto without = std::find(all.begin(), all.end(), kStandsIn);
  if (together && start == 0 && without != all.end()) {
    const int who = static_cast<int>(without - all.begin());
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("the stream yields no batch: with drop_last every rank needs {} samples "
                    "(batch_size), but rank {}'s part has fewer",
                    sampler.slice(), who),
        {.rank = who, .subject = "drop_last", .hint = "lower batch_size or leave drop_last out"});
  }
  more =
      together ? without == all.end() : std::find(all.begin(), all.end(), kHasBatch) != all.end();
  if (!more || upcoming.rows > 0) return;
  if (samples && dispatcher == nullptr) {
    request.indices = {order.samples.empty() ? 0 : order.samples.front()};
    source.fetch(0, 0, request);
  }
  source.keep_slot(0, device);
}

void LoaderCore::State::advance() {
  const bool mine = upcoming.rows > 0;
  if (mine) {
    rows = (samples && dispatcher == nullptr ? local(position) : upcoming).rows;
    if (on_first_batch && source.sends_tensors()) {
      on_first_batch(source.tensors(slot_of(position)));
      on_first_batch = nullptr;  // unless it has thrown
    }
    source.take(slot_of(position), device, options.non_blocking);
    if (workers != nullptr) workers->release(position);
  } else {
    source.stand_in();
  }
  own = upcoming.own;
  stands_in = !mine;
  ++position;
  upcoming = mine ? look(position) : StepRead{};
  more = upcoming.rows > 0;
  if (!joined) return;
  more = together ? !peers->any(!more) : peers->any(more);
  if (more && mine && upcoming.rows == 0) source.keep();
}

void LoaderCore::State::finish() noexcept {
  begun_at.reset();
  body.reset();
  workers.reset();
  source.clear();
  looping = false;
  position = 0;
  upcoming = {};
  more = false;
  rows = 0;
  own = 0;
  stands_in = false;
  stream_state = {};
  plan_next(0);
}

LoaderCore::State::Place LoaderCore::State::place() const {
  return {epoch, next_epoch, {samples, batch_size, of_batches}, sampler, start, stream_state};
}

void LoaderCore::State::begin_again() {
  Place from = *std::move(begun_at);
  finish();
  epoch = from.epoch;
  next_epoch = from.next_epoch;
  samples = from.size.samples;
  batch_size = from.size.batch_size;
  of_batches = from.size.of_batches;
  sampler = from.sampler;
  start = from.start;
  stream_state = std::move(from.stream_state);
  if (chooser() != nullptr && !is_empty(sampler_state)) chooser()->load(sampler_state);
}

uint64_t LoaderCore::start_epoch() {
  State& s = *state_;
  if (s.looping) s.finish();
  s.begun_at = s.place();
  s.epoch = s.next_epoch++;
  s.looping = true;
  s.loop_number = ++loops_begun;
  const uint64_t pass = ++s.pass;
  try {
    const auto reading = dataset_scope();
    const auto own = s.reading_scope ? s.reading_scope() : nullptr;
    s.begin();
  } catch (...) {
    s.begin_again();
    throw;
  }
  return pass;
}

bool LoaderCore::next(uint64_t pass) {
  State& s = *state_;
  if (pass != s.pass)
    fail_usage("a loop over a data loader continues after another one began (or after prepare)",
               "data loader", "nest loops over two loaders, not over the same one");
  s.body.reset();
  if (s.position > 0 && s.on_step_end) s.on_step_end();
  if (!s.more) {
    s.finish();
    return false;
  }
  {
    const auto reading = dataset_scope();
    const auto own = s.reading_scope ? s.reading_scope() : nullptr;
    try {
      s.advance();
    } catch (...) {
      if (s.begun_at) s.begin_again();
      throw;
    }
    s.begun_at.reset();
  }
  if (s.body_scope) s.body = s.body_scope();
  return true;
}

void LoaderCore::end(uint64_t pass) noexcept {
  if (pass == state_->pass && state_->looping) state_->finish();
}

}  // namespace coupler::detail
