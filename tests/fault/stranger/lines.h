// Lines: the connections of a stranger, and what it does with each. Never blocks. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "proc_net.h"
#include "tally.h"

namespace backend_test {

class Lines {
 public:
  explicit Lines(Tally* tally);
  ~Lines();
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  enum class Result { kMade, kFull, kRefused, kStranger };  // kStranger: a stranger listens there
  // Connects to an endpoint, which is `target` to the caller; *fd: the connection.
  Result connect(const Endpoint& endpoint, uint32_t target, Deed deed, int* fd);
  // Takes over a connection that was made to the stranger.
  void adopt(int fd, uint32_t target, Deed deed);

  // From now on forwards each one's data to the other. If one closes, both do.
  void couple(int first, int second);
  // A line to target that is reserved for a relay and has no partner yet; -1: none.
  int waiting_for_partner(uint32_t target) const;

  int64_t open(uint32_t target, Deed deed) const;

  // Does what can be done now. Returns the targets that refused pending connections.
  std::vector<uint32_t> turn();

 private:
  struct Line {
    int fd = -1;
    uint32_t target = 0;
    Deed deed = Deed::kHold;
    bool made = false;   // by the stranger
    bool local = false;  // over a Unix socket
    bool connected = false;
    bool answered = false;
    int partner = -1;
    uint64_t passed = 0;   // received bytes
    bool altered = false;  // whether one of them was altered
    std::string unsent;
  };

  void add(Line line);
  void watch(const Line& line);
  void begin(Line& line);
  void say(Line& line, const std::string& text);
  void hear(Line& line);
  void relay(Line& line, std::string& text);
  void close_line(int fd);
  std::string garbage();

  Tally* tally_;
  int epoll_;
  std::unordered_map<int, Line> lines_;  // by descriptor
  std::map<uint32_t, std::array<int64_t, kDeeds>> open_;
  std::vector<uint32_t> refused_;
  std::string recorded_;
  uint64_t random_ = 88172645463325252ULL;
};

}  // namespace backend_test
