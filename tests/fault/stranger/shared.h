// Shared: an object in memory that this process shares with those it forks. T must use atomics, or
// its users must take turns. ChildProcess: a forked process that lives no longer than the object.
// Owned by one thread.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <new>
#include <system_error>

namespace backend_test {

template <typename T>
class Shared {
 public:
  Shared()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    new (memory_) T;
  }
  ~Shared() { munmap(memory_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T* get() const { return static_cast<T*>(memory_); }
  T* operator->() const { return get(); }
  T& operator*() const { return *get(); }

 private:
  void* memory_;
};

class ChildProcess {
 public:
  // body runs in the child until it returns, the object is destroyed, or this process ends. A body
  // that changes its user must call die_with_parent() afterwards, since the kernel resets it.
  explicit ChildProcess(const std::function<void()>& body) {
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid_ > 0) return;
    die_with_parent();
    body();
    std::fflush(nullptr);
    _exit(0);
  }
  ~ChildProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  static void die_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

 private:
  pid_t pid_ = -1;
};

}  // namespace backend_test
