#include "rank.h"

#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>

#include "comm/raw_communicator.h"
#include "machines.h"
#include "memory.h"
#include "plugin/probe.h"
#include "rendezvous/job_file.h"

namespace coupler::matrix {
namespace {

const std::map<std::string, int (*)(Rank&)> kBehaviors = {
    {"operations", operations}, {"memory", memory},       {"rounding", rounding},
    {"overlap", overlap},       {"send_recv", send_recv}, {"split", split},
    {"threads", threads},       {"mismatch", mismatch},   {"killed", killed},
    {"stopped", stopped},       {"deadline", deadline},   {"options", options}};

RankArguments parse_rank(int argc, char** argv) {
  RankArguments arguments;
  arguments.request = config::take_config_arguments(argc, argv);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--rank-of") {
      arguments.behavior = value;
    } else if (name == "--variant") {
      arguments.variant = value;
    } else if (name == "--folder") {
      arguments.folder = value;
    } else if (name == "--machines") {
      arguments.machines = value;
    } else if (name == "--cover") {
      arguments.cover = value == "full"    ? Cover::kFull
                        : value == "pairs" ? Cover::kPairs
                                           : Cover::kMain;
    } else if (name == "--seed") {
      arguments.seed = std::stoull(value);
    } else if (name == "--complete") {
      arguments.complete = value == "1";
    } else {
      throw Error(ErrorCode::kUsage, "unknown argument " + name, {});
    }
  }
  return arguments;
}

}  // namespace

void fail(const std::string& text) { throw std::runtime_error(text); }
void check(bool condition, const std::string& text) {
  if (!condition) fail(text);
}

Rank::Rank(RankArguments arguments)
    : arguments_(std::move(arguments)),
      config_(config::load_config(arguments_.request)),
      process_(arguments_.machines.empty()
                   ? rendezvous::detect_process()
                   : place_on_machines(arguments_.machines, rendezvous::detect_process())),
      plugin_(plugin::Plugin::load(config_.backend)) {
  const uint64_t memory = plugin_.table().capabilities & (DB_CAP_HOST_MEMORY | DB_CAP_CUDA_MEMORY);
  if (memory == DB_CAP_CUDA_MEMORY) {
    int32_t score = 0;
    std::array<char, 1024> reason{};
    plugin_.table().probe(&plugin::host_services(), &score, reason.data(), reason.size());
    check(score > 0, reason.data());
    use_cuda_memory();
  }
  if (process_.world_size > 1) store_ = rendezvous::open_job_store(process_, config_);
}

std::shared_ptr<comm::Communicator> Rank::connect(const std::string& name) {
  return comm::Communicator::create({.plugin = plugin_,
                                     .process = process_,
                                     .store = store_,
                                     .backend = &config_.backend,
                                     .name = name});
}

void Rank::report(const std::string& text) const { leave("rank", text); }

void Rank::leave(const std::string& what, const std::string& text) const {
  const std::string path = fmt::format("{}/{}-{}", arguments_.folder, what, rank());
  std::ofstream(path + ".new") << text;
  if (std::rename((path + ".new").c_str(), path.c_str()) != 0) {
    fail(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
  }
}

int Rank::report_error(const std::function<void()>& function) const {
  // The launcher stops the other ranks soon after the first failure; ignoring SIGTERM gives them
  // time to report what they saw.
  ::signal(SIGTERM, SIG_IGN);
  try {
    function();
  } catch (const Error& error) {
    report(
        fmt::format("{} rank {}: {}", to_string(error.code()), error.detail().rank, error.what()));
    return error.exit_code();
  }
  report("no error");
  return 1;
}

int run_rank(int argc, char** argv) {
  const RankArguments arguments = parse_rank(argc, argv);
  const auto found = kBehaviors.find(arguments.behavior);
  if (found == kBehaviors.end()) {
    throw Error(ErrorCode::kUsage, "unknown behaviour " + arguments.behavior, {});
  }
  Rank rank(arguments);
  return found->second(rank);
}

}  // namespace coupler::matrix
