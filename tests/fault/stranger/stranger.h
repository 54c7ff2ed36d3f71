// Strangers: unprivileged processes of another user in the ranks' network namespaces. From
// construction on they attack everything that listens there (Intruder). Owned by one thread.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "intruder.h"
#include "network.h"
#include "shared.h"

namespace backend_test {

class Strangers {
 public:
  // Why a process cannot become another user here; "" if it can.
  static std::string why_not();

  // One in each of at most kAtMost networks, which may repeat. They share what they find. Returns
  // once all of them have started.
  explicit Strangers(const std::vector<const Network*>& networks, unsigned deeds = kAllDeeds);

  void set_deeds(unsigned deeds) { memory_->deeds = deeds; }

  // The sum over all strangers.
  int64_t count(Tally::Count Tally::*field) const;
  int64_t count(std::array<Tally::Count, kDeeds> Tally::*field, Deed deed) const;
  std::string describe() const;

  static constexpr size_t kAtMost = 4;

 private:
  struct One {
    Tally tally;
    Board board;
  };
  struct Memory {
    std::atomic<unsigned> deeds{0};
    std::array<One, kAtMost> each;
  };

  Shared<Memory> memory_;
  size_t count_;
  std::vector<std::unique_ptr<ChildProcess>> processes_;  // destroyed before the memory
};

}  // namespace backend_test
