#include "lines.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace backend_test {
namespace {

constexpr size_t kRecorded = 512;  // bytes of a connection that are kept for replays

// Everything before the payload of the first operation is shorter. The altered byte is the highest
// of a number, so that rounding does not hide it.
constexpr uint64_t kGreetingEnd = 256;

// A greeting as in gloo_cpu's handshake.cc, and the size of its answer.
struct Greeting {
  uint32_t magic = 0x32504343;
  int32_t rank = 0;
  int32_t size = 2;
  uint32_t protect = 0;
  std::array<char, 32> nonce{};
};
constexpr uint64_t kAnswer = 80;
constexpr size_t kProof = 32;

}  // namespace

Lines::Lines(Tally* tally) : tally_(tally), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
}

Lines::~Lines() {
  for (const auto& [fd, line] : lines_) close(fd);
  close(epoll_);
}

Lines::Result Lines::connect(const Endpoint& endpoint, uint32_t target, Deed deed, int* fd) {
  const int made = socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) return Result::kFull;  // out of descriptors
  ++tally_->tried[static_cast<size_t>(deed)];
  if (::connect(made, endpoint.raw(), endpoint.size) != 0 && errno != EINPROGRESS) {
    const bool full = errno == EAGAIN;
    if (full) ++tally_->full;
    close(made);
    return full ? Result::kFull : Result::kRefused;
  }
  if (endpoint.is_unix()) {
    ucred listener{};
    socklen_t size = sizeof listener;
    if (getsockopt(made, SOL_SOCKET, SO_PEERCRED, &listener, &size) == 0 &&
        listener.uid == geteuid()) {
      close(made);
      return Result::kStranger;
    }
  }
  Line line;
  line.fd = made;
  line.target = target;
  line.deed = deed;
  line.made = true;
  line.local = endpoint.is_unix();
  *fd = made;
  add(std::move(line));
  return Result::kMade;
}

void Lines::adopt(int fd, uint32_t target, Deed deed) {
  Line line;
  line.fd = fd;
  line.target = target;
  line.deed = deed;
  line.connected = true;
  add(std::move(line));
  begin(lines_.at(fd));
}

void Lines::add(Line line) {
  const int fd = line.fd;
  ++open_[line.target][static_cast<size_t>(line.deed)];
  epoll_event event{};
  event.data.fd = fd;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  watch(lines_.emplace(fd, std::move(line)).first->second);
}

// Does not watch for input that is not read, which epoll would report forever.
void Lines::watch(const Line& line) {
  const bool reads = line.deed != Deed::kHold && line.deed != Deed::kCrowd &&
                     (line.deed != Deed::kRelay || line.partner >= 0);
  epoll_event event{};
  event.data.fd = line.fd;
  event.events = EPOLLRDHUP;
  if (reads) event.events |= EPOLLIN;
  if (!line.connected || !line.unsent.empty()) event.events |= EPOLLOUT;
  epoll_ctl(epoll_, EPOLL_CTL_MOD, line.fd, &event);
}

void Lines::couple(int first, int second) {
  Line& one = lines_.at(first);
  Line& other = lines_.at(second);
  one.partner = second;
  other.partner = first;
  watch(one);
  watch(other);
}

int Lines::waiting_for_partner(uint32_t target) const {
  for (const auto& [fd, line] : lines_) {
    if (line.target == target && line.deed == Deed::kRelay && line.made && line.partner < 0)
      return fd;
  }
  return -1;
}

int64_t Lines::open(uint32_t target, Deed deed) const {
  const auto found = open_.find(target);
  return found == open_.end() ? 0 : found->second[static_cast<size_t>(deed)];
}

std::vector<uint32_t> Lines::turn() {
  std::array<epoll_event, 256> events;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const auto found = lines_.find(events[static_cast<size_t>(i)].data.fd);
    if (found == lines_.end()) continue;  // closed together with its partner
    Line& line = found->second;
    const uint32_t what = events[static_cast<size_t>(i)].events;
    const bool broken = (what & (EPOLLERR | EPOLLHUP)) != 0;
    if (!line.connected && broken) {
      refused_.push_back(line.target);
      close_line(line.fd);
    } else if (!line.connected) {
      line.connected = true;
      ++(line.local ? tally_->local : tally_->tcp);
      ++tally_->made[static_cast<size_t>(line.deed)];
      begin(line);
    } else if ((what & EPOLLIN) != 0) {
      hear(line);
    } else if (broken || (what & EPOLLRDHUP) != 0) {
      ++tally_->closed;
      close_line(line.fd);
    } else if ((what & EPOLLOUT) != 0) {
      say(line, "");
    }
  }
  return std::exchange(refused_, {});
}

void Lines::begin(Line& line) {
  switch (line.deed) {
    case Deed::kGarbage:
      return say(line, garbage());
    case Deed::kGreet:
    case Deed::kCrowd: {
      Greeting greeting;
      random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
      greeting.rank = static_cast<int32_t>((random_ >> 33) % 8);
      greeting.size = 2 << ((random_ >> 40) % 3);
      return say(line, {reinterpret_cast<const char*>(&greeting), sizeof greeting});
    }
    case Deed::kReplay:
      return say(line, recorded_);
    case Deed::kHold:
    case Deed::kReflect:
    case Deed::kRelay:
      return watch(line);
  }
}

void Lines::say(Line& line, const std::string& text) {
  line.unsent += text;
  while (!line.unsent.empty()) {
    const ssize_t sent =
        send(line.fd, line.unsent.data(), line.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) break;
    line.unsent.erase(0, static_cast<size_t>(sent));
  }
  watch(line);
}

void Lines::hear(Line& line) {
  std::array<char, 65536> part;
  const ssize_t got = recv(line.fd, part.data(), part.size(), MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) return;
  if (got <= 0) {
    ++tally_->closed;
    return close_line(line.fd);
  }
  std::string text(part.data(), static_cast<size_t>(got));
  if (line.passed == 0) recorded_ = text.substr(0, kRecorded);
  if (line.partner >= 0) return relay(line, text);
  line.passed += text.size();
  switch (line.deed) {
    case Deed::kGarbage:
      return say(line, garbage());
    case Deed::kGreet:
      if (line.passed < kAnswer || line.answered) return;
      line.answered = true;
      return say(line, garbage().substr(0, kProof));
    case Deed::kReflect:
      return say(line, text);
    case Deed::kReplay:
      return say(line, recorded_);
    case Deed::kHold:
    case Deed::kRelay:
    case Deed::kCrowd:
      return;
  }
}

void Lines::relay(Line& line, std::string& text) {
  const uint64_t begin = line.passed;
  line.passed += text.size();
  tally_->relayed += static_cast<int64_t>(text.size());
  for (uint64_t at = std::max(begin, kGreetingEnd); !line.altered && at < line.passed; ++at) {
    if (at % 4 != 3) continue;
    text[at - begin] = static_cast<char>(text[at - begin] ^ 1);
    line.altered = true;
    ++tally_->altered;
  }
  say(lines_.at(line.partner), text);
}

void Lines::close_line(int fd) {
  const auto found = lines_.find(fd);
  if (found == lines_.end()) return;
  const Line line = std::move(found->second);
  lines_.erase(found);
  --open_[line.target][static_cast<size_t>(line.deed)];
  close(fd);
  if (line.partner >= 0) close_line(line.partner);
}

std::string Lines::garbage() {
  random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
  std::string text(kProof + (random_ >> 52), 0);
  for (char& c : text) {
    random_ = random_ * 6364136223846793005ULL + 1442695040888963407ULL;
    c = static_cast<char>(random_ >> 56);
  }
  return text;
}

}  // namespace backend_test
