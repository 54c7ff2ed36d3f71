#include "stranger.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace backend_test {
namespace {

constexpr uid_t kNobody = 65534;

// Changes this process's user permanently. Returns why it cannot; "": done.
std::string become_stranger() {
  if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
      setresuid(kNobody, kNobody, kNobody) != 0) {
    return std::string("a process cannot become user 65534 here: ") + std::strerror(errno);
  }
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  ChildProcess::die_with_parent();
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets{};
  if (syscall(SYS_capget, &header, sets.data()) != 0) return "capget failed";
  for (const auto& set : sets) {
    if ((set.effective | set.permitted) != 0) return "user 65534 has capabilities here";
  }
  return "";
}

void allow_many_files() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

std::string Strangers::why_not() {
  const Shared<std::array<char, 256>> answer;
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    std::snprintf(answer->data(), answer->size(), "%s", become_stranger().c_str());
    _exit(0);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) return "a process failed";
  return answer->data();
}

Strangers::Strangers(const std::vector<const Network*>& networks, unsigned deeds)
    : count_(networks.size()) {
  if (count_ > kAtMost) throw std::invalid_argument("too many strangers");
  memory_->deeds = deeds;
  for (size_t i = 0; i < count_; ++i) {
    processes_.push_back(std::make_unique<ChildProcess>([&] {
      networks[i]->enter();
      allow_many_files();
      if (const std::string problem = become_stranger(); !problem.empty()) {
        std::fprintf(stderr, "%s\n", problem.c_str());
        return;
      }
      std::vector<const Board*> others;
      for (size_t other = 0; other < count_; ++other) {
        if (other != i) others.push_back(&memory_->each[other].board);
      }
      One& own = memory_->each[i];
      Intruder intruder(memory_->deeds, &own.tally, &own.board, others);
      for (;;) intruder.go_on();
    }));
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (size_t i = 0; i < count_; ++i) {
    while (memory_->each[i].tally.looks == 0) {
      if (std::chrono::steady_clock::now() > end) {
        throw std::runtime_error("a stranger did not start within 20 seconds");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

int64_t Strangers::count(Tally::Count Tally::*field) const {
  int64_t sum = 0;
  for (size_t i = 0; i < count_; ++i) sum += memory_->each[i].tally.*field;
  return sum;
}

int64_t Strangers::count(std::array<Tally::Count, kDeeds> Tally::*field, Deed deed) const {
  int64_t sum = 0;
  for (size_t i = 0; i < count_; ++i) {
    sum += (memory_->each[i].tally.*field)[static_cast<size_t>(deed)];
  }
  return sum;
}

std::string Strangers::describe() const {
  const auto number = [this](auto field) { return std::to_string(count(field)); };
  std::string text = "strangers looked " + number(&Tally::looks) + " times, found " +
                     number(&Tally::endpoints) + " endpoints; connected " + number(&Tally::tcp) +
                     " times over TCP and " + number(&Tally::local) + " over Unix sockets (";
  for (size_t i = 0; i < kDeeds; ++i) {
    const auto deed = static_cast<Deed>(i);
    text += std::string(i > 0 ? ", " : "") + kDeedNames[i] + " " +
            std::to_string(count(&Tally::made, deed)) + " of " +
            std::to_string(count(&Tally::tried, deed));
  }
  return text + "), of which " + number(&Tally::closed) + " were closed by the peer; " +
         number(&Tally::full) + " found a full queue; they took " + number(&Tally::taken) +
         " addresses, where " + number(&Tally::visitors) + " connected; spliced " +
         number(&Tally::spliced) + " pairs, relayed " + number(&Tally::relayed) +
         " bytes and altered " + number(&Tally::altered);
}

}  // namespace backend_test
