#include "cli/process/exit_watch.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace coupler::cli {
namespace {

void require(bool good) {
  if (!good) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot watch processes: {}", std::generic_category().message(errno)));
  }
}

}  // namespace

ExitWatch::ExitWatch() : ends_(::epoll_create1(EPOLL_CLOEXEC)) { require(bool{ends_}); }

void ExitWatch::add(size_t number, int process) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  require(::epoll_ctl(ends_.get(), EPOLL_CTL_ADD, process, &event) == 0);
  processes_[number] = process;
}

std::vector<size_t> ExitWatch::take() {
  std::array<epoll_event, 64> ready;
  std::vector<size_t> numbers;
  const int count = ::epoll_wait(ends_.get(), ready.data(), ready.size(), 0);
  for (int i = 0; i < count; ++i) {
    const size_t number = ready[static_cast<size_t>(i)].data.u64;
    ::epoll_ctl(ends_.get(), EPOLL_CTL_DEL, processes_.extract(number).mapped(), nullptr);
    numbers.push_back(number);
  }
  return numbers;
}

}  // namespace coupler::cli
