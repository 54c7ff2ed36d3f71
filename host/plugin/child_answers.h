// Work that may hang or crash, done in child processes: it costs its answer then, and not this
// process. [any-thread].
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace coupler {

struct ChildAnswer {
  enum class End { kAnswered, kLate, kSignal, kExit } end = End::kAnswered;
  std::string text;   // kAnswered: what the work returned
  int number = 0;     // kSignal: the signal; kExit: the exit code
  std::string words;  // not kAnswered: what it said last on standard error, without our own prefix
};

// How a child ends that has answered: at once, or as programs do, so that libraries that it has
// used put their things in order.
enum class Leave { kAtOnce, kByExit };

// The answers in the order of the works, which run side by side, a few at a time; each has until
// the deadline. What an answering child wrote to standard error appears there afterwards. A process
// that has other threads cannot be forked safely: there the works run in this process, one after
// the other, and without a deadline.
std::vector<ChildAnswer> answers_of_children(const std::vector<std::function<std::string()>>& works,
                                             std::chrono::seconds deadline,
                                             Leave leave = Leave::kAtOnce);

// How a child ended that has not answered, and its last words: "crashed while being loaded: signal
// 6 (Aborted): no licence". during: "while being loaded", or empty. deadline: the one it had.
std::string describe_end(const ChildAnswer& answer, std::chrono::seconds deadline,
                         const std::string& during = {});

}  // namespace coupler
