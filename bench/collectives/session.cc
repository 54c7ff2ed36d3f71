#include "session.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sched.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "rendezvous/job_file.h"

namespace coupler::bench {
namespace {

// The largest buffers are slow on busy machines.
constexpr uint64_t kDefaultBytes[] = {8,         64,      1 << 10, 8 << 10,  64 << 10,
                                      256 << 10, 1 << 20, 4 << 20, 16 << 20, 128 << 20};

uint64_t parse_number(const std::string& name, std::string_view text) {
  uint64_t number = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || stop != text.data() + text.size() || number == 0) {
    throw Error(ErrorCode::kUsage, fmt::format("{}: '{}' is not a positive integer", name, text),
                {.subject = name, .hint = "see bench/README.md"});
  }
  return number;
}

std::vector<uint64_t> parse_numbers(const std::string& name, std::string_view text) {
  std::vector<uint64_t> numbers;
  for (;;) {
    const size_t comma = text.find(',');
    numbers.push_back(parse_number(name, text.substr(0, comma)));
    if (comma == std::string_view::npos) return numbers;
    text.remove_prefix(comma + 1);
  }
}

// Binds to the local_rank-th allowed core.
void bind_to_core(int local_rank) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("sched_getaffinity: {}", std::strerror(errno)),
                {.subject = "core", .hint = "run with --no-pin"});
  }
  int skip = local_rank % std::max(1, CPU_COUNT(&allowed));
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
      throw Error(ErrorCode::kIo,
                  fmt::format("cannot bind to core {}: {}", core, std::strerror(errno)),
                  {.subject = "core", .hint = "run with --no-pin"});
    }
    return;
  }
}

}  // namespace

db_op all_reduce_of(float* data, uint64_t count) {
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.send = data;
  op.recv = data;
  op.count = count;
  op.memory = DB_MEMORY_HOST;
  return op;
}

namespace {

Candidate sum_over(std::string name, const std::shared_ptr<comm::Communicator>& communicator) {
  return {.name = std::move(name), .prepare = [communicator](float* data, uint64_t count) {
            return [communicator, op = all_reduce_of(data, count)] { communicator->run(op); };
          }};
}

}  // namespace

Session::Session(int argc, char** argv)
    : config_(config::load_config(config::take_config_arguments(argc, argv))),
      process_(rendezvous::detect_process()) {
  plan_.bytes.assign(std::begin(kDefaultBytes), std::end(kDefaultBytes));
  bool pin = true;
  std::string beside;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 == argc) throw Error(ErrorCode::kUsage, name + " needs a value", {.subject = name});
      return argv[++i];
    };
    if (name == "--out") {
      out_ = value();
    } else if (name == "--bytes") {
      plan_.bytes = parse_numbers(name, value());
    } else if (name == "--rounds") {
      plan_.rounds = static_cast<int>(parse_number(name, value()));
    } else if (name == "--milliseconds") {
      plan_.time = std::chrono::milliseconds(parse_number(name, value()));
    } else if (name == "--no-pin") {
      pin = false;
    } else if (name == "--peer-memory") {
      peer_memory_ = true;
    } else if (name == "--beside") {
      beside = value();
    } else {
      throw Error(ErrorCode::kUsage, "unknown argument " + name,
                  {.subject = name, .hint = "see bench/README.md"});
    }
  }
  if (out_.empty() || process_.world_size < 2) {
    throw Error(
        ErrorCode::kUsage,
        out_.empty() ? "--out FILE is missing" : "this benchmark needs at least two processes",
        {.subject = "contest", .hint = "start it with bench/run"});
  }
  if (pin) bind_to_core(process_.local_rank);
  store_ = rendezvous::open_job_store(process_, config_);
  const auto connect = [&](const config::BackendConfig& backend, const char* name) {
    return comm::Communicator::create({.plugin = plugin::Plugin::load(backend),
                                       .process = process_,
                                       .store = store_,
                                       .backend = &backend,
                                       .name = name});
  };
  communicator_ = connect(config_.backend, "contest");
  if (!beside.empty()) {
    config::BackendConfig other = config_.backend;
    other.use = beside;
    beside_ = connect(other, "beside");
  }
}

Candidate Session::blocking() { return sum_over("coupler blocking", communicator_); }

Candidate Session::on_peer_memory() {
  Candidate candidate = sum_over("coupler on peer memory", communicator_);
  candidate.memory = [this](uint64_t bytes) {
    if (auto memory = communicator_->peer_memory(bytes)) return memory;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("rank {}: '{}' gives no {} bytes of memory that all ranks reach",
                            rank(), communicator_->backend(), bytes),
                {.rank = rank(),
                 .subject = "--peer-memory",
                 .hint = "leave it out, or see why with COUPLER_LOG=debug"});
  };
  return candidate;
}

Candidate Session::asynchronous() {
  return {.name = "coupler asynchronous", .prepare = [this](float* data, uint64_t count) {
            return [this, op = all_reduce_of(data, count)] { communicator_->submit(op).wait(); };
          }};
}

void Session::hold(std::vector<Candidate> candidates) {
  if (beside_ != nullptr) {
    candidates.push_back(sum_over("coupler over " + beside_->backend(), beside_));
  }
  if (peer_memory_) {
    candidates.push_back(on_peer_memory());
    candidates.push_back(plain_copy());
  }
  const auto agree = [this](int64_t value) {
    db_op op{};
    op.kind = DB_BROADCAST;
    op.dtype = DB_I64;
    op.send = op.recv = &value;
    op.count = 1;
    communicator_->run(op);
    return value;
  };
  const auto results = run_comparison(candidates, plan_, rank(), world_size(), agree);
  if (rank() != 0) return;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ComparisonResult& result : results) {
    rows.push_back({{"name", result.name},
                    {"bytes", result.bytes},
                    {"medians_us", result.medians_us},
                    {"p99_us", result.p99_us}});
  }
  std::ofstream file(out_);
  file << rows.dump() << '\n';
  file.close();
  if (!file) {
    throw Error(ErrorCode::kIo, "cannot write " + out_,
                {.subject = out_, .hint = "check that its folder exists and has space left"});
  }
}

int guarded(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "coupler: error: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

}  // namespace coupler::bench
