// coupler bench collectives: measures latency and bandwidth of a backend's operations.
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.h"
#include "cli/process/capture_output.h"
#include "cli/text/command.h"
#include "cli/text/output.h"
#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "rendezvous/job_file.h"
#include "rendezvous/process_info.h"

namespace coupler::cli {

// Measures latency and bandwidth of a communicator's collectives by size. Collective: every rank
// makes the same calls. Single-threaded.

namespace {

struct BenchPlan {
  std::vector<db_kind> kinds;
  db_dtype dtype = DB_F32;
  std::vector<uint64_t> bytes;  // of the larger buffer of a rank
  bool asynchronous = false;    // submit and wait, instead of blocking calls
  std::chrono::nanoseconds time = std::chrono::milliseconds(300);  // for each size
};

// Bandwidths in GB/s (10^9 bytes): algbw is bytes over the median time; busbw is the least that
// each rank's link carried, which is comparable across operations and world sizes.
struct BenchRow {
  std::string op, dtype;
  uint64_t bytes = 0;
  int world_size = 1;
  std::string backend;
  double median_us = 0, p99_us = 0, algbw = 0, busbw = 0;
};

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUp = 5;
constexpr int64_t kFewest = 20;
constexpr int64_t kMost = 20'000;

// The share of the larger buffer's bytes that crosses each rank's link at least.
double bus_factor(db_kind kind, int world_size) {
  const double others = static_cast<double>(world_size - 1) / world_size;
  switch (kind) {
    case DB_ALL_REDUCE:
      return 2 * others;
    case DB_BROADCAST:
    case DB_REDUCE:
      return world_size > 1 ? 1 : 0;
    default:
      return others;
  }
}

// Whether count is one rank's share of the larger buffer.
bool has_parts(db_kind kind) {
  return kind == DB_ALL_GATHER || kind == DB_REDUCE_SCATTER || kind == DB_ALL_TO_ALL ||
         kind == DB_GATHER || kind == DB_SCATTER;
}

class Buffer {
 public:
  explicit Buffer(uint64_t bytes)
      : memory_(static_cast<char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), std::free) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::memset(memory_.get(), 0, bytes + 1);
  }
  void* data() const { return memory_.get(); }

 private:
  std::unique_ptr<char, void (*)(void*)> memory_;
};

void perform(comm::Communicator& communicator, const db_op& op, bool asynchronous) {
  if (asynchronous) {
    communicator.submit(op).wait();
  } else {
    communicator.run(op);
  }
}

// Rank 0's value, on every rank.
int64_t agree(comm::Communicator& communicator, int64_t value) {
  if (communicator.size() == 1) return value;
  db_op op{};
  op.kind = DB_BROADCAST;
  op.dtype = DB_I64;
  op.send = op.recv = &value;
  op.count = 1;
  communicator.run(op);
  return value;
}

std::vector<double> time_operation(comm::Communicator& communicator, const db_op& op,
                                   const BenchPlan& plan) {
  const Clock::time_point warm = Clock::now();
  for (int64_t i = 0; i < kWarmUp; ++i) perform(communicator, op, plan.asynchronous);
  const auto each = std::max<std::chrono::nanoseconds>((Clock::now() - warm) / kWarmUp,
                                                       std::chrono::nanoseconds(1));
  const int64_t count = agree(communicator, std::clamp(plan.time / each, kFewest, kMost));
  std::vector<double> microseconds;
  microseconds.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const Clock::time_point start = Clock::now();
    perform(communicator, op, plan.asynchronous);
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(microseconds.begin(), microseconds.end());
  return microseconds;
}

// Times are rank 0's. Operations that the backend does not support for the dtype are left out.
std::vector<BenchRow> bench_collectives(comm::Communicator& communicator,
                                        const std::string& backend, const BenchPlan& plan) {
  std::vector<BenchRow> rows;
  const auto world_size = static_cast<uint64_t>(communicator.size());
  const uint64_t element = comm::dtype_size(plan.dtype);
  for (const db_kind kind : plan.kinds) {
    for (const uint64_t bytes : plan.bytes) {
      db_op op{};
      op.kind = kind;
      op.dtype = plan.dtype;
      op.reduce = comm::is_reducing(kind) ? DB_SUM : 0;
      op.memory = DB_MEMORY_HOST;
      const uint64_t parts = has_parts(kind) ? world_size : 1;
      op.count = kind == DB_BARRIER ? 0 : std::max<uint64_t>(1, bytes / element / parts);
      const uint64_t moved = op.count * parts * element;
      const Buffer send(moved), recv(moved);
      op.send = send.data();
      op.recv = recv.data();
      if (!communicator.supports(op)) break;
      const std::vector<double> times = time_operation(communicator, op, plan);
      BenchRow row{.op = std::string(comm::kind_name(kind)),
                   .dtype = kind == DB_BARRIER ? "" : std::string(comm::dtype_name(plan.dtype)),
                   .bytes = moved,
                   .world_size = communicator.size(),
                   .backend = backend};
      row.median_us = times[times.size() / 2];
      row.p99_us = times[std::min(times.size() - 1, times.size() * 99 / 100)];
      row.algbw = static_cast<double>(moved) / row.median_us / 1e3;
      row.busbw = row.algbw * bus_factor(kind, communicator.size());
      rows.push_back(std::move(row));
      if (kind == DB_BARRIER) break;
    }
  }
  return rows;
}

[[noreturn]] void fail_option(const std::string& message, const std::string& subject,
                              const std::string& hint) {
  throw Error(ErrorCode::kUsage, message, {.subject = subject, .hint = hint});
}

uint64_t parse_size(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, status] = std::from_chars(text.data(), end, number);
  uint64_t unit = stop == end ? 1 : 0;
  if (stop + 1 == end) {
    const auto letter = static_cast<char>(std::toupper(static_cast<unsigned char>(*stop)));
    unit = letter == 'K'   ? uint64_t{1} << 10
           : letter == 'M' ? uint64_t{1} << 20
           : letter == 'G' ? uint64_t{1} << 30
                           : 0;
  }
  constexpr uint64_t kLargest = uint64_t{1} << 40;
  if (status != std::errc() || unit == 0 || number == 0 || number > kLargest / unit) {
    fail_option(fmt::format("--bytes: '{}' is not a size", text), "--bytes",
                "give sizes such as 8,64K,16M");
  }
  return number * unit;
}

db_kind parse_kind(const std::string& text) {
  std::string valid;
  for (db_kind kind = DB_ALL_REDUCE; kind <= DB_BARRIER; ++kind) {
    if (kind == DB_ALL_GATHER_V || kind == DB_REDUCE_SCATTER_V || kind == DB_ALL_TO_ALL_V) continue;
    if (comm::kind_name(kind) == text) return kind;
    valid += fmt::format("{}{}", valid.empty() ? "" : ", ", comm::kind_name(kind));
  }
  fail_option(fmt::format("--op: unknown operation '{}'", text), "--op", "valid: " + valid);
}

db_dtype parse_dtype(const std::string& text) {
  std::string valid;
  for (db_dtype dtype = DB_I8; dtype <= DB_F64; ++dtype) {
    if (comm::dtype_name(dtype) == text) return dtype;
    valid += fmt::format("{}{}", valid.empty() ? "" : ", ", comm::dtype_name(dtype));
  }
  fail_option(fmt::format("--dtype: unknown type '{}'", text), "--dtype", "valid: " + valid);
}

double parse_seconds(const std::string& text) {
  const auto seconds = to_number<double>(text);
  if (!seconds || !(*seconds > 0) || *seconds > 3600) {
    fail_option(fmt::format("--seconds: '{}' is not a valid time", text), "--seconds",
                "give a number above 0 and at most 3600");
  }
  return *seconds;
}

BenchPlan plan_of(const Arguments& arguments) {
  BenchPlan plan;
  for (const std::string& item : split(arguments.value("--op", "all_reduce"), ','))
    plan.kinds.push_back(parse_kind(item));
  for (const std::string& item :
       split(arguments.value("--bytes", "8,64,512,4K,32K,256K,2M,16M"), ','))
    plan.bytes.push_back(parse_size(item));
  plan.dtype = parse_dtype(arguments.value("--dtype", "f32"));
  plan.time = std::chrono::nanoseconds(
      static_cast<int64_t>(parse_seconds(arguments.value("--seconds", "0.3")) * 1e9));
  plan.asynchronous = arguments.has("--async");
  return plan;
}

// Replaces this process with `coupler launch`, which runs this command in each of its processes.
[[noreturn]] void start_processes(const Arguments& arguments) {
  const std::string program = own_program();
  std::vector<std::string> words = {program, "launch", "-n", arguments.value("-n")};
  if (arguments.config.file) words.insert(words.end(), {"--config", *arguments.config.file});
  for (const std::string& setting : arguments.config.overrides)
    words.insert(words.end(), {"-o", setting});
  words.insert(words.end(), {program, "bench", "collectives"});
  for (const auto& [option, value, name] : arguments.given) {
    if (name == "-n") continue;
    words.push_back(name);
    if (!option.value().empty()) words.push_back(value);
  }
  exec_program(words, "check whether the program was moved or removed");
}

void print_rows(const std::vector<BenchRow>& rows, bool json) {
  if (json) {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const BenchRow& row : rows) {
      array.push_back({{"op", row.op},
                       {"dtype", row.dtype},
                       {"bytes", row.bytes},
                       {"world", row.world_size},
                       {"backend", row.backend},
                       {"median_us", row.median_us},
                       {"p99_us", row.p99_us},
                       {"algbw", row.algbw},
                       {"busbw", row.busbw}});
    }
    std::printf("%s\n", array.dump(2).c_str());
    return;
  }
  std::vector<std::vector<std::string>> table = {
      {"op", "dtype", "bytes", "median us", "p99 us", "algbw GB/s", "busbw GB/s"}};
  for (const BenchRow& row : rows) {
    table.push_back({row.op, row.dtype, fmt::format("{}", row.bytes),
                     fmt::format("{:.2f}", row.median_us), fmt::format("{:.2f}", row.p99_us),
                     fmt::format("{:.3f}", row.algbw), fmt::format("{:.3f}", row.busbw)});
  }
  if (!rows.empty()) std::printf("%s, %d ranks\n", rows[0].backend.c_str(), rows[0].world_size);
  std::fputs(format_table(table).c_str(), stdout);
}

int bench(const Arguments& arguments) {
  const BenchPlan plan = plan_of(arguments);
  if (arguments.has("-n")) start_processes(arguments);
  config::Config config = config::load_config(arguments.config);
  const rendezvous::ProcessInfo process = rendezvous::detect_process();
  const bool alone = process.world_size == 1 && config.backend.use == "auto";
  if (!alone && config.backend.use == "auto") {
    config.backend.use = plugin::resolve_auto(config.backend, rendezvous::mpi_launch_of(process),
                                              /*on_host=*/false, rendezvous::spread_of(process));
  }
  const plugin::Plugin plugin =
      alone ? plugin::Plugin::single() : plugin::Plugin::load(config.backend);
  const std::shared_ptr<store::Store> store =
      process.world_size > 1 ? rendezvous::open_job_store(process, config) : nullptr;
  const auto communicator = comm::Communicator::create({.plugin = plugin,
                                                        .process = process,
                                                        .store = store,
                                                        .backend = &config.backend,
                                                        .name = "bench"});
  const std::vector<BenchRow> rows = bench_collectives(*communicator, plugin.name(), plan);
  if (communicator->rank() == 0) print_rows(rows, arguments.has("--json"));
  return 0;
}

}  // namespace

Command bench_command() {
  const Command collectives = {
      .name = "collectives",
      .summary = "measure collective operations over the configured backend",
      .options =
          {{"-n N", "start N processes"},
           {"--op OP,...",
            "operations: all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, "
            "gather, scatter, barrier (default: all_reduce)"},
           {"--bytes SIZE,...",
            "sizes of a rank's larger buffer, such as 8, 64K, 16M or 1G (default: 8 to 16M)"},
           {"--dtype f32|f64|f16|bf16|i8|u8|i16|u16|i32|u32|i64|u64",
            "element type (default: f32)"},
           {"--async", "submit and wait, instead of blocking calls"},
           {"--seconds S", "time per size (default: 0.3)"},
           {"--json", "print a JSON array of rows instead of a table"}},
      .config = true,
      .run = bench};
  return {.name = "bench",
          .summary = "measure latency and bandwidth of collective operations",
          .subcommands = {collectives},
          .description = {"Measures a backend. Run it under `coupler launch`, or let it start its "
                          "own processes with -n."},
          .notes = {"Times are rank 0's. algbw is bytes / median. busbw is the least that each "
                    "rank's link carried, which is comparable across operations and world sizes. "
                    "Bandwidths are in GB/s (10^9 bytes)."},
          .examples = {"coupler bench collectives -n 2 --bytes 8,64K --seconds 0.1"}};
}

}  // namespace coupler::cli
