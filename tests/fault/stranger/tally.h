// What a stranger does to listeners, and the counts of it. Plain values; the counts may be read
// while the stranger runs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace backend_test {

// What it does with its own connection, or with one made to an address that it took.
enum class Deed : unsigned {
  kHold,     // sends nothing and stays
  kGarbage,  // sends random bytes
  kGreet,    // sends a greeting as a rank does, and an invalid proof
  kReflect,  // sends back what it gets
  kReplay,   // sends what others sent on other connections
  kRelay,    // stands between two ranks and alters a byte of what follows the greeting
  kCrowd,    // greets and stays, with very many connections at once
};
inline constexpr size_t kDeeds = 7;
inline constexpr std::array<const char*, kDeeds> kDeedNames = {
    "hold", "garbage", "greet", "reflect", "replay", "relay", "crowd"};

constexpr unsigned bit(Deed deed) { return 1U << static_cast<unsigned>(deed); }
inline constexpr unsigned kAllDeeds = (1U << kDeeds) - 1;

struct Tally {
  using Count = std::atomic<int64_t>;
  Count looks{0};                     // at /proc/net
  Count endpoints{0};                 // found there
  std::array<Count, kDeeds> tried{};  // attempted connections, by deed
  Count tcp{0}, local{0};             // connections that were made, over TCP and Unix sockets
  std::array<Count, kDeeds> made{};   // these connections, by deed
  Count closed{0};                    // connections that the other end closed
  Count full{0};                      // attempts at a Unix socket whose queue was full
  Count taken{0};                     // addresses that the stranger listens on after their owner
  Count visitors{0};                  // connections to these addresses
  Count relayed{0};                   // bytes that it relayed from one rank to another
  Count altered{0};                   // altered bytes among these
  Count spliced{0};                   // pairs of listeners that it connected to each other
};

}  // namespace backend_test
