// Runs work that may hang or crash in child processes: it then costs its answer, not this process.
// [any-thread].
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace coupler {

struct ChildResult {
  enum class End { kAnswered, kLate, kSignal, kExit } end = End::kAnswered;
  std::string text;   // kAnswered: what the work returned
  int number = 0;     // kSignal: the signal; kExit: the exit code
  std::string words;  // not kAnswered: its last standard error, without our prefix
};

// How a child exits after its answer: _exit, or exit, so that libraries it has used can clean up.
enum class Leave { kAtOnce, kByExit };

// Runs the works concurrently, a few at a time, each until the deadline; returns the answers in the
// order of the works. The standard error of a child that answers is passed on after it ends. A
// process with other threads cannot be forked safely: then the works run in this process, one after
// another, without a deadline.
std::vector<ChildResult> run_in_children(const std::vector<std::function<std::string()>>& works,
                                         std::chrono::seconds deadline,
                                         Leave leave = Leave::kAtOnce);

// How a child that has not answered ended, and its last words: "crashed while being loaded: signal
// 6 (Aborted): no license file". during: "while being loaded", or empty. deadline: its deadline.
std::string describe_exit(const ChildResult& answer, std::chrono::seconds deadline,
                          const std::string& during = {});

}  // namespace coupler
