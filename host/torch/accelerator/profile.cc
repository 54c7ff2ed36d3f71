#include "accelerator/profile.h"

#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>
#include <utility>

#include "accelerator/accelerator.h"
#include "accelerator/trace_file.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

namespace fs = std::filesystem;
namespace kineto = torch::profiler::impl;

// How long rank 0 waits for the other ranks' traces, which are written at the same time as its own.
constexpr auto kLongestWait = std::chrono::seconds(10);

kineto::ProfilerConfig profiler_config(const config::ProfileConfig& config) {
  // LibTorch computes floating-point operations from the shapes.
  return kineto::ProfilerConfig(kineto::ProfilerState::KINETO,
                                config.record_shapes || config.with_flops, config.profile_memory,
                                config.with_stack, config.with_flops);
}

// The floating-point operations of the recorded ones, by their id in the trace. LibTorch estimates
// them, but does not write them there.
std::map<uint64_t, uint64_t> flops_of(const torch::autograd::profiler::ProfilerResult& result) {
  std::map<uint64_t, uint64_t> flops;
  for (const torch::autograd::profiler::KinetoEvent& event : result.events()) {
    if (event.flops() > 0) flops[event.correlationId()] = event.flops();
  }
  return flops;
}

std::set<kineto::ActivityType> activities(bool on_cuda) {
  std::set<kineto::ActivityType> kinds = {kineto::ActivityType::CPU};
  if (on_cuda) kinds.insert(kineto::ActivityType::CUDA);
  return kinds;
}

std::string trace_path(const config::ProfileConfig& config, int rank, int64_t round) {
  const std::string which = round == 0 ? "" : fmt::format("-{}", round);
  return fmt::format("{}/trace-rank{}{}.json", config.dir, rank, which);
}

// The trace of all ranks, which rank 0 writes.
std::string joined_path(const config::ProfileConfig& config, int64_t round) {
  return fmt::format("{}/trace{}.json", config.dir, round == 0 ? "" : fmt::format("-{}", round));
}

// One number to or from another rank.
db_op message(db_kind kind, int peer, int64_t& value) {
  db_op op = kind == DB_SEND ? tensors::host_op(DB_SEND, DB_I64, &value, nullptr, 1)
                             : tensors::host_op(DB_RECV, DB_I64, nullptr, &value, 1);
  op.root_or_peer = peer;
  return op;
}

// Nanoseconds that rank 0's clock is ahead of this rank's. Takes the exchange with the shortest
// round trip (Cristian's algorithm); the error is at most half of that.
int64_t measure_offset(comm::Communicator& comm) {
  constexpr int kExchanges = 8;
  int64_t best = 0, shortest = std::numeric_limits<int64_t>::max();
  for (int rank = 1; rank < comm.size(); ++rank) {
    for (int i = 0; i < kExchanges; ++i) {
      int64_t time = 0;
      if (comm.rank() == 0) {
        comm.run(message(DB_RECV, rank, time));
        time = span_clock();
        comm.run(message(DB_SEND, rank, time));
      } else if (comm.rank() == rank) {
        const int64_t asked = span_clock();
        comm.run(message(DB_SEND, 0, time));
        comm.run(message(DB_RECV, 0, time));
        const int64_t way = span_clock() - asked;
        if (way < shortest) {
          shortest = way;
          best = time - (asked + way / 2);
        }
      }
    }
  }
  return best;
}

// Sums over spans.
struct SpanTotals {
  uint64_t count = 0, bytes = 0;
  double seconds = 0, waiting_seconds = 0;
};

double seconds_of(const SpanRecord& span) {
  return static_cast<double>(span.end - span.begin) / 1e9;
}

void add_span(SpanTotals& totals, const SpanRecord& span) {
  ++totals.count;
  totals.bytes += span.bytes;
  totals.seconds += seconds_of(span);
}

// By group, what its operations and the waits for them sum up to.
std::map<std::string, SpanTotals> totals_of_groups(const std::vector<KeptSpan>& spans) {
  std::map<std::string, SpanTotals> groups;
  for (const KeptSpan& kept : spans) {
    const SpanRecord& span = kept.span;
    if (span.group == nullptr) continue;
    SpanTotals& group = groups[span.group];
    if (span.kind != SpanKind::kWait) add_span(group, span);
    if (blocks_thread(span.kind)) group.waiting_seconds += seconds_of(span);
  }
  return groups;
}

uint64_t peak_memory() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<uint64_t>(used.ru_maxrss) << 10;
}

// Removes this rank's files of an earlier run, which rank 0 would otherwise merge with this run's.
// Rank 0 also removes the files of ranks that this job does not have.
void remove_earlier(const std::string& folder, const rendezvous::ProcessInfo& process) {
  static const std::regex kOfARank(
      R"((trace|profile)-rank(\d{1,9})(-\d+)?\.json(\.unfinished\.json)?)");
  static const std::regex kJoined(R"(trace(-\d+)?\.json)");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    std::smatch parts;
    bool removes = process.rank == 0 && std::regex_match(name, kJoined);
    if (std::regex_match(name, parts, kOfARank)) {
      const int rank = std::stoi(parts[2]);
      removes = rank == process.rank || (process.rank == 0 && rank >= process.world_size);
    }
    std::error_code gone;  // another rank may remove it first
    if (removes) fs::remove(entry.path(), gone);
  }
}

}  // namespace

std::unique_ptr<Profile> Profile::make(const config::ProfileConfig& config,
                                       const rendezvous::ProcessInfo& process, bool on_cuda,
                                       comm::Communicator& comm) {
  if (config.dir.empty()) return nullptr;
  // Collective, so it comes before anything that may fail on one rank only.
  const bool several_machines = process.local_world_size < process.world_size;
  const int64_t offset = several_machines ? measure_offset(comm) : 0;
  bool ready = true;
  try {
    fs::create_directories(config.dir);
    remove_earlier(config.dir, process);
    replace_file(fmt::format("{}/profile-rank{}.json", config.dir, process.rank), "{}\n");
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "train",
        fmt::format("nothing is profiled on rank {}: {} (profile.dir, or dir of "
                    "accelerator.profile)",
                    process.rank, error.what()));
    ready = false;
  }
  // Rank 0 merges the traces it finds, so all ranks must have removed earlier ones by then.
  if (process.world_size > 1) comm.run(tensors::host_op(DB_BARRIER));
  if (!ready) return nullptr;
  return std::unique_ptr<Profile>(new Profile(config, process, on_cuda, offset));
}

Profile::Profile(const config::ProfileConfig& config, const rendezvous::ProcessInfo& process,
                 bool on_cuda, int64_t offset)
    : config_(config), process_(process), on_cuda_(on_cuda), clock_offset_(offset) {
  // LibTorch's CUDA build looks for devices when its profiler starts, and logs an error if there
  // are none.
  if (!on_cuda_) setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);
  if (config_.skip_first + config_.wait + config_.warmup == 0) begin_round();
}

Profile::~Profile() {
  try {
    finish();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, "train", fmt::format("the profile is incomplete: {}", error.what()));
  }
}

void Profile::record(const SpanRecord& span) {
  const std::lock_guard lock(mutex_);
  spans_.push_back({span, ::syscall(SYS_gettid)});
}

void Profile::step() {
  ++steps_;
  const int64_t length = config_.wait + config_.warmup + config_.active;
  const int64_t done = steps_ - config_.skip_first;  // passes since skip_first, over all rounds
  if (state_ == State::kActive) step_ends_.push_back(span_clock());
  if (done < 0 || (config_.repeat > 0 && done > config_.repeat * length)) return;
  const int64_t place = done % length;  // of the pass that begins now, in its round
  if (state_ == State::kActive && place == 0) end_round();
  if (config_.repeat > 0 && done == config_.repeat * length) return;
  if (state_ == State::kIdle && config_.warmup > 0 && place == config_.wait) {
    torch::autograd::profiler::prepareProfiler(profiler_config(config_), activities(on_cuda_));
    state_ = State::kWarmup;
  }
  if (state_ != State::kActive && place == config_.wait + config_.warmup) begin_round();
}

void Profile::begin_round() {
  if (state_ == State::kIdle)
    torch::autograd::profiler::prepareProfiler(profiler_config(config_), activities(on_cuda_));
  torch::autograd::profiler::enableProfiler(
      profiler_config(config_), activities(on_cuda_),
      {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
  state_ = State::kActive;
  spans_.clear();
  step_ends_ = {span_clock()};
  set_span_recorder(this);
}

void Profile::end_round() {
  recorded_ = true;
  set_span_recorder(nullptr);
  const auto result = torch::autograd::profiler::disableProfiler();
  state_ = State::kIdle;
  const std::string path = trace_path(config_, process_.rank, round_++);
  const std::string unfinished = path + ".unfinished.json";
  try {
    result->save(unfinished);
    add_spans(unfinished, spans_, flops_of(*result), {process_.rank, clock_offset_});
    write(path);
    rename_durably(unfinished, path);
  } catch (const std::exception& error) {
    std::error_code ignored;
    fs::remove(unfinished, ignored);
    log(LogLevel::kWarning, "train", fmt::format("{} is not written: {}", path, error.what()));
  }
}

// Writes the summary of the round that ended; a later round replaces it.
void Profile::write(const std::string& trace) {
  nlohmann::json steps = nlohmann::json::array(), communication = nlohmann::json::object(),
                 groups = nlohmann::json::object();
  for (size_t i = 1; i < step_ends_.size(); ++i)
    steps.push_back(static_cast<double>(step_ends_[i] - step_ends_[i - 1]) / 1e9);
  double waited = 0;
  std::map<std::string, SpanTotals> kinds;
  for (const KeptSpan& kept : spans_) {
    if (blocks_thread(kept.span.kind)) waited += seconds_of(kept.span);
    add_span(kinds[kept.span.name], kept.span);
  }
  for (const auto& [name, kind] : kinds)
    communication[name] = {{"count", kind.count}, {"bytes", kind.bytes}, {"seconds", kind.seconds}};
  for (const auto& [name, group] : totals_of_groups(spans_))
    groups[name] = {{"count", group.count},
                    {"bytes", group.bytes},
                    {"seconds", group.seconds},
                    {"waiting_seconds", group.waiting_seconds}};
  const nlohmann::json summary = {
      {"rank", process_.rank},
      {"world", process_.world_size},
      {"trace", fs::path(trace).filename().string()},
      {"step_seconds", steps},
      {"waiting_seconds", waited},
      {"communication", communication},
      {"groups", groups},
      {"clock_offset_seconds", static_cast<double>(clock_offset_) / 1e9},
      {"peak_memory_bytes", peak_memory()}};
  replace_file(fmt::format("{}/profile-rank{}.json", config_.dir, process_.rank),
               summary.dump(2) + "\n");
}

void Profile::finish() {
  if (state_ == State::kActive) {
    end_round();
  } else if (state_ == State::kWarmup) {
    // LibTorch must start and stop what it was prepared for.
    begin_round();
    set_span_recorder(nullptr);
    torch::autograd::profiler::disableProfiler();
    state_ = State::kIdle;
  }
  if (process_.rank != 0) return;
  if (!std::exchange(recorded_, true)) {
    log(LogLevel::kWarning, "train",
        fmt::format("nothing is recorded in {}: the profile ended after {} passes through the "
                    "loop's body, and its schedule skips the first {} (call "
                    "accelerator.on_step_end() in loops that are not over prepared loaders)",
                    config_.dir, steps_, config_.skip_first + config_.wait + config_.warmup));
  }
  const int64_t rounds = std::exchange(round_, 0);
  const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
  for (int64_t round = 0; round < rounds; ++round) {
    // Without rank 0's trace there is no common time base for the others.
    if (!fs::exists(trace_path(config_, 0, round))) continue;
    std::vector<std::string> paths;
    std::string missing;
    for (int rank = 0; rank < process_.world_size; ++rank) {
      const std::string path = trace_path(config_, rank, round);
      while (!fs::exists(path) && std::chrono::steady_clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (fs::exists(path)) {
        paths.push_back(path);
      } else {
        missing += fmt::format(" {}", rank);
      }
    }
    const std::string merged = joined_path(config_, round);
    try {
      merge_traces(paths, merged);
    } catch (const std::exception& error) {
      log(LogLevel::kWarning, "train", fmt::format("{} is not written: {}", merged, error.what()));
      continue;
    }
    if (!missing.empty())
      log(LogLevel::kWarning, "train",
          fmt::format("{} lacks the ranks{}, whose traces are not in this machine's {}", merged,
                      missing, config_.dir));
  }
}

// Accelerator::profile: profiles a part of the program.

namespace {

void require_at_least_0(const char* name, int64_t value) {
  if (value >= 0) return;
  fail_argument(fmt::format("profile: {} is {}, but must be at least 0", name, value), name,
                "it counts passes through the loop's body");
}

config::ProfileConfig config_of(const ProfileOptions& options) {
  if (options.dir.empty()) {
    fail_argument("profile: dir is empty", "dir", "name the folder that traces are written to");
  }
  require_at_least_0("skip_first", options.skip_first);
  require_at_least_0("wait", options.wait);
  require_at_least_0("warmup", options.warmup);
  require_at_least_0("active", options.active);
  require_at_least_0("repeat", options.repeat);
  const bool whole = options.active == 0;
  // More passes than any loop has.
  constexpr int64_t kEndless = std::numeric_limits<int64_t>::max() / 4;
  return {.dir = options.dir,
          .skip_first = options.skip_first,
          .wait = options.wait,
          .warmup = options.warmup,
          .active = whole ? kEndless : options.active,
          .repeat = whole ? 0 : options.repeat,
          .record_shapes = options.record_shapes,
          .profile_memory = options.profile_memory,
          .with_stack = options.with_stack,
          .with_flops = options.with_flops};
}

}  // namespace

ScopeGuard Accelerator::profile(const ProfileOptions& options, CallSite) {
  Impl& impl = *impl_;
  const config::ProfileConfig config = config_of(options);
  const std::string& configured = impl.config.profile.dir;
  if (!configured.empty()) {
    if (rank() == 0) {
      coupler::log(LogLevel::kWarning, "train",
                   fmt::format("accelerator.profile() records nothing into {}: profile.dir is {}, "
                               "and the configured schedule applies",
                               config.dir, configured));
    }
    return ScopeGuard(nullptr);
  }
  if (impl.dry_run != nullptr) return ScopeGuard(nullptr);
  if (impl.profile != nullptr) {
    fail_usage("profile: another profile is active", "profile",
               "end its scope before the next begins");
  }
  impl.profile = Profile::make(config, impl.process, impl.device.is_cuda(), *impl.comm);
  return ScopeGuard([&impl] { impl.profile.reset(); });
}

}  // namespace coupler
