#include "coupler/detail/loader_core.h"

#include <fmt/format.h>

#include <atomic>

#include "coupler/error.h"
#include "data/batch_plan.h"
#include "data/shuffle.h"

namespace coupler::detail {
namespace {

std::atomic<uint64_t> loops_begun = 0;

BatchPlan make_plan(size_t samples, const DataLoaderOptions& options, int rank, int world) {
  const BatchPlan plan({.samples = samples,
                        .batch_size = options.batch_size,
                        .rank = rank,
                        .world = world,
                        .split_batches = options.split_batches,
                        .drop_last = options.drop_last,
                        .even_batches = options.even_batches});
  if (options.drop_last && plan.size() == 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("a dataset of {} samples yields no batch: with drop_last every step "
                    "needs {} (batch_size {}, {} processes{})",
                    samples, options.batch_size * (options.split_batches ? 1 : world),
                    options.batch_size, world, options.split_batches ? ", split_batches" : ""),
        {.subject = "drop_last", .hint = "lower batch_size or leave drop_last out"});
  return plan;
}

size_t checked_samples(std::optional<size_t> samples) {
  if (!samples)
    throw Error(
        ErrorCode::kInvalidArgument, "the data loader's dataset does not know its size",
        {.subject = "dataset", .hint = "give a map-style dataset, whose size() returns a number"});
  if (*samples == 0)
    throw Error(ErrorCode::kInvalidArgument, "the data loader's dataset has no samples",
                {.subject = "dataset", .hint = "check the path or filter it was made with"});
  return *samples;
}

}  // namespace

struct LoaderCore::State {
  State(size_t count, const DataLoaderOptions& given)
      : samples(count), options(given), plan(make_plan(count, given, 0, 1)) {}

  size_t samples;
  DataLoaderOptions options;
  BatchPlan plan;
  at::Device device = at::kCPU;

  int64_t epoch = 0;
  int64_t next_epoch = 0;
  uint64_t pass = 0;
  bool looping = false;
  uint64_t loop_number = 0;
  size_t position = 0;
  std::vector<size_t> order;    // of the epoch, where it is shuffled
  std::vector<size_t> indices;  // of the current batch
};

LoaderCore::LoaderCore(std::optional<size_t> samples, const DataLoaderOptions& options)
    : state_(std::make_unique<State>(checked_samples(samples), options)) {}

LoaderCore::~LoaderCore() = default;

void LoaderCore::bind(int rank, int world, at::Device device) {
  State& s = *state_;
  s.plan = make_plan(s.samples, s.options, rank, world);
  s.device = device;
  s.position = 0;
  s.looping = false;
  ++s.pass;
}

int64_t LoaderCore::size() const { return static_cast<int64_t>(state_->plan.size()); }
at::Device LoaderCore::device() const { return state_->device; }
const DataLoaderOptions& LoaderCore::options() const { return state_->options; }
int64_t LoaderCore::epoch() const { return state_->epoch; }
int64_t LoaderCore::position() const { return static_cast<int64_t>(state_->position); }
bool LoaderCore::in_loop() const { return state_->looping; }
uint64_t LoaderCore::loop_number() const { return state_->loop_number; }
bool LoaderCore::at_last_batch() const { return state_->position == state_->plan.size(); }
int64_t LoaderCore::own_samples() const {
  return state_->position == 0 ? 0 : static_cast<int64_t>(state_->plan.own(state_->position - 1));
}

void LoaderCore::set_epoch(int64_t epoch) {
  if (epoch < 0)
    throw Error(ErrorCode::kInvalidArgument, fmt::format("set_epoch({})", epoch),
                {.subject = "epoch", .hint = "epochs count from 0"});
  state_->next_epoch = epoch;
}

uint64_t LoaderCore::start_epoch() {
  State& s = *state_;
  s.epoch = s.next_epoch++;
  s.position = 0;
  s.looping = true;
  s.loop_number = ++loops_begun;
  if (s.options.shuffle)
    shuffled_order(s.samples, s.options.seed, static_cast<uint64_t>(s.epoch), s.order);
  return ++s.pass;
}

const std::vector<size_t>* LoaderCore::next(uint64_t pass) {
  State& s = *state_;
  if (pass != s.pass)
    throw Error(ErrorCode::kUsage,
                "a loop over a data loader goes on after another began (or after prepare)",
                {.subject = "data loader",
                 .hint = "nest loops over two loaders, not over one and the same"});
  if (s.position == s.plan.size()) {
    s.looping = false;
    return nullptr;
  }
  s.plan.batch(s.position++, s.indices);
  if (s.options.shuffle)
    for (size_t& index : s.indices) index = s.order[index];
  return &s.indices;
}

}  // namespace coupler::detail
