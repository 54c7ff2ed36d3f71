#include "cli/process/exit_watch.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/epoll.h>

#include <array>

#include "base/error.h"

namespace coupler::cli {
namespace {

void require(bool good) {
  if (!good) {
    throw Error(ErrorCode::kIo, fmt::format("cannot watch processes: {}", errno_message()));
  }
}

}  // namespace

ExitWatch::ExitWatch() : ends_(::epoll_create1(EPOLL_CLOEXEC)) { require(bool{ends_}); }

void ExitWatch::add(size_t number, int process) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLONESHOT;  // each end is reported once
  event.data.u64 = number;
  require(::epoll_ctl(ends_.get(), EPOLL_CTL_ADD, process, &event) == 0);
}

std::vector<size_t> ExitWatch::take() {
  std::array<epoll_event, 64> ready;
  std::vector<size_t> numbers;
  numbers.reserve(ready.size());
  const int count = ::epoll_wait(ends_.get(), ready.data(), ready.size(), 0);
  for (int i = 0; i < count; ++i) {
    numbers.push_back(ready[static_cast<size_t>(i)].data.u64);
  }
  return numbers;
}

}  // namespace coupler::cli
