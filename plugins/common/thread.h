// start_thread: the threads of a backend. [any-thread].
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace db {

// A thread that runs body with all signals blocked, so that they go to the program's own threads.
// Throws std::system_error if there can be no more threads.
template <class Body>
std::thread start_thread(Body body) {
  struct Restore {
    ~Restore() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } restore;
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &restore.before);
  return std::thread(std::move(body));
}

}  // namespace db
