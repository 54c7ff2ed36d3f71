// Rank: what a behaviour gets on each process: a way to make communicators, and where to leave what
// it saw. Used by the main thread of the process, the checks by any.
#pragma once

#include <coupler/error.h>

#include <functional>
#include <memory>
#include <string>

#include "cells.h"
#include "comm/communicator.h"

namespace coupler::matrix {

struct RankArguments {
  std::string behaviour;
  std::string variant;  // of the behaviour, "" where it has none
  std::string folder;   // for reports
  Cover cover = Cover::kMain;
  uint64_t seed = kStoredSeed;
  bool complete = false;  // the backend claims to offer everything the ABI defines
  ConfigRequest request;
};

class Rank {
 public:
  explicit Rank(RankArguments arguments);

  int rank() const { return process_.rank; }
  int world() const { return process_.world; }
  const RankArguments& arguments() const { return arguments_; }
  const Config& config() const { return config_; }
  std::shared_ptr<Communicator> connect(const std::string& name = "world");

  // Leaves text where the driver finds it, whatever becomes of this process.
  void report(const std::string& text) const;
  // The same beside the report, for those who ask for it.
  void leave(const std::string& what, const std::string& text) const;
  // Runs function, which must throw an Error, and reports its code, rank and text. Returns the exit
  // code of a process that ends in that error.
  int report_error(const std::function<void()>& function) const;

 private:
  RankArguments arguments_;
  Config config_;
  ProcessInfo process_;
  std::shared_ptr<Store> store_;
  Plugin plugin_;
};

// Throws std::runtime_error with the text, which ends the process with 1.
[[noreturn]] void fail(const std::string& text);
void check(bool condition, const std::string& text);

int run_rank(int argc, char** argv);

// The behaviours: one file each. The result is the process's exit code.
int operations(Rank& rank);
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
