// Rank: what a behavior gets in each process: it creates communicators and writes reports. Used by
// the process's main thread; fail() and check() by any thread.
#pragma once

#include <coupler/error.h>

#include <functional>
#include <memory>
#include <string>

#include "cells.h"
#include "comm/communicator.h"

namespace coupler::matrix {

struct RankArguments {
  std::string behavior;
  std::string variant;   // of the behavior; "" if it has none
  std::string folder;    // for reports
  std::string machines;  // see place_on_machines; "": as launched
  Cover cover = Cover::kMain;
  uint64_t seed = kStoredSeed;
  bool complete = false;  // the backend claims to support everything the ABI defines
  config::ConfigRequest request;
};

class Rank {
 public:
  explicit Rank(RankArguments arguments);

  int rank() const { return process_.rank; }
  int world_size() const { return process_.world_size; }
  const RankArguments& arguments() const { return arguments_; }
  const config::Config& config() const { return config_; }
  std::shared_ptr<comm::Communicator> connect(const std::string& name = "world");

  // Writes text to the file that the driver reads, even if this process dies afterwards.
  void report(const std::string& text) const;
  // Writes text to an additional file, named by `what`.
  void leave(const std::string& what, const std::string& text) const;
  // Runs function, which must throw an Error, and reports the error's code, rank and message.
  // Returns the exit code of a process that ends with that error.
  int report_error(const std::function<void()>& function) const;

 private:
  RankArguments arguments_;
  config::Config config_;
  rendezvous::ProcessInfo process_;
  std::shared_ptr<store::Store> store_;
  plugin::Plugin plugin_;
};

// Throws std::runtime_error with the text; the process then exits with 1.
[[noreturn]] void fail(const std::string& text);
void check(bool condition, const std::string& text);

int run_rank(int argc, char** argv);

// The behaviors. The result is the process's exit code.
int operations(Rank& rank);
int memory(Rank& rank);
int rounding(Rank& rank);
int overlap(Rank& rank);
int send_recv(Rank& rank);
int split(Rank& rank);
int threads(Rank& rank);
int mismatch(Rank& rank);
int killed(Rank& rank);
int stopped(Rank& rank);
int deadline(Rank& rank);
int options(Rank& rank);

}  // namespace coupler::matrix
