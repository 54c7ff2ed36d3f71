// Intruder: what a stranger's process does as fast as it can. It finds listeners in its network
// namespace, connects to each as often as its deeds require, takes over addresses as soon as they
// are free, and connects visitors of these to the ranks that they wanted to reach. One thread.
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lines.h"
#include "proc_net.h"
#include "tally.h"

namespace backend_test {

// Where strangers on several machines publish listeners on the network for each other.
struct Board {
  static constexpr uint32_t kRoom = 256;
  struct Slot {
    sockaddr_in address{};
    std::atomic<bool> taken{false};  // by its machine's stranger: useless to the others
  };
  std::atomic<uint32_t> count{0};  // only grows; entry i is in slot i % kRoom
  std::array<Slot, kRoom> slots;
};

class Intruder {
 public:
  // deeds: bits, which may change at any time. others: the boards of strangers on other machines.
  Intruder(const std::atomic<unsigned>& deeds, Tally* tally, Board* own,
           std::vector<const Board*> others);

  void go_on();  // one round

 private:
  using Clock = std::chrono::steady_clock;

  struct Target {
    Endpoint endpoint;
    uint32_t number = 0;
    bool local = true;       // on this machine, so the address can be taken
    bool there = true;       // it was found at the last look
    Clock::time_point seen;  // when it was last found
    Clock::time_point rest;  // after a refusal: no attempt before then
    int socket = -1;         // takes its address, or tries to
    bool taken = false;
    Board::Slot* own_slot = nullptr;          // where it is published
    const Board::Slot* other_slot = nullptr;  // where it was found
  };

  void turn();
  void look();
  Target& find(const Endpoint& endpoint, bool local);
  void publish(Target& target);
  bool is_open(const Target& target) const;
  void attack(Target& target);
  void take(Target& target);
  void receive(Target& target);
  void splice();
  void forget();
  bool has(Deed deed) const { return (deeds_.load() & bit(deed)) != 0; }

  const std::atomic<unsigned>& deeds_;
  Tally* tally_;
  Board* own_;
  std::vector<std::pair<const Board*, uint32_t>> others_;  // with the number of entries read
  ProcNet proc_;
  Lines lines_;
  std::unordered_map<std::string, Target> targets_;  // by Endpoint::key()
  std::unordered_map<uint64_t, bool> spliced_;       // by pairs of their numbers
  Clock::time_point now_;
  uint32_t last_number_ = 0;
};

}  // namespace backend_test
