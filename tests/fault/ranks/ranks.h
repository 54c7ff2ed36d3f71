// Ranks: forks the ranks of a small job, loads the backend in each and creates its communicator.
// A rank prints its own test failures, which make its exit code 1.
#pragma once

#include <coupler/distributed_backend.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranks/file_store.h"

namespace backend_test {

inline const DistributedBackend* load_backend() {
  void* library = dlopen(COUPLER_BACKEND_PATH, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return nullptr;
  }
  return reinterpret_cast<db_entry_function>(dlsym(library, DB_ENTRY_SYMBOL))();
}

// A db_error with its text buffer.
struct Error {
  Error() { reset(); }
  Error(const Error&) = delete;  // it points into itself
  Error& operator=(const Error&) = delete;
  void reset() {
    text[0] = 0;
    error = {};
    error.struct_size = sizeof error;
    error.failed_rank = -1;
    error.message = text.data();
    error.message_capacity = text.size();
  }
  operator db_error*() { return &error; }  // NOLINT
  db_error error{};
  std::array<char, 1024> text{};
};

// Where a rank runs.
struct Place {
  int network = -1;            // descriptor of a network namespace; -1: the test's own
  std::string interface_name;  // of db_communicator_params; "": loopback
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t late_ms = 0;  // how much later than the others it starts
};

class Rank;

struct Job {
  int32_t size = 2;
  int32_t present = 0;  // how many ranks are started; 0: all
  bool must_connect = true;
  int64_t timeout_ns = 20'000'000'000;
  std::vector<const db_option*> options;
  db_memory memory = DB_MEMORY_HOST;
  std::vector<std::pair<std::string, std::string>> environment;  // of every rank
  std::vector<Place> places;  // by rank; empty: all on one machine, in the test's network
  // Where each Buffer of a rank is; empty, or a null result: on the heap.
  std::function<std::shared_ptr<void>(Rank&, uint64_t bytes)> allocate;
  std::string secret = "the secret of the ranks of this test";  // "": the job has none
  // In a rank's process, before it connects; may change the rank's own copy of the job. Optional.
  std::function<void(int32_t rank, Job* own)> prepare;
};

inline Job job_of(int32_t size) {
  Job job;
  job.size = size;
  return job;
}

// One rank, in its own process.
class Rank {
 public:
  Rank(const DistributedBackend* backend, const Job& job, int32_t rank, const db_store* store)
      : allocate(job.allocate) {
    db_communicator_params params{};
    params.struct_size = sizeof params;
    params.store = store;
    params.options = job.options.data();
    params.option_count = job.options.size();
    params.rank = params.local_rank = rank;
    params.size = params.local_size = job.size;
    if (!job.places.empty()) {
      const Place& place = job.places.at(static_cast<size_t>(rank));
      params.local_rank = place.local_rank;
      params.local_size = place.local_size;
      if (!place.interface_name.empty()) params.interface_name = place.interface_name.c_str();
    }
    params.device_index = -1;
    params.memory = memory = job.memory;
    params.default_timeout_ns = job.timeout_ns;
    created = backend->create(&params, &communicator, error);
    if (created == DB_OK) functions = communicator->functions;
  }
  ~Rank() {
    if (communicator != nullptr) functions->destroy(communicator);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Submits and waits; blocking: the operation runs on this thread inside submit.
  db_status run(db_op op, bool blocking) { return run_on(communicator, op, blocking); }

  // The same on a communicator that was split from this one.
  db_status run_on(db_communicator* other, db_op op, bool blocking) {
    op.struct_size = sizeof op;
    if (op.memory == 0) op.memory = memory;
    op.flags = blocking ? uint64_t{DB_OP_BLOCKING} : 0;
    db_request* request = nullptr;
    error.reset();
    db_status status = functions->submit(other, &op, &request, error);
    if (status != DB_IN_PROGRESS) return status;
    status = functions->wait_host(request, -1, error);
    functions->release(request);
    return status;
  }

  const std::function<std::shared_ptr<void>(Rank&, uint64_t bytes)> allocate;
  db_communicator* communicator = nullptr;
  const db_communicator_functions* functions = nullptr;
  db_status created = DB_ERR_INTERNAL;
  db_memory memory = DB_MEMORY_HOST;
  Error error;
};

inline db_op all_reduce(const float* send, float* recv, uint64_t count) {
  db_op op{};
  op.kind = DB_ALL_REDUCE;
  op.dtype = DB_F32;
  op.reduce = DB_SUM;
  op.send = send;
  op.recv = recv;
  op.count = count;
  return op;
}

// The folder through which forked ranks meet; removed with the object.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "coupler-ranks-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

// Call in a rank's process before anything else.
inline bool enter(const Place& place) {
  std::this_thread::sleep_for(std::chrono::milliseconds(place.late_ms));
  if (place.network < 0 || setns(place.network, CLONE_NEWNET) == 0) return true;
  std::perror("setns");
  return false;
}

// Runs body in job.size processes and returns their wait statuses. Kills ranks that still run after
// 200 seconds.
inline std::vector<int> fork_ranks(const Job& job,
                                   const std::function<void(int32_t, Rank&)>& body) {
  const Folder folder;
  std::vector<pid_t> pids;
  for (int32_t rank = 0; rank < (job.present > 0 ? job.present : job.size); ++rank) {
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(200);
      if (!job.places.empty() && !enter(job.places.at(static_cast<size_t>(rank)))) _exit(1);
      for (const auto& [name, value] : job.environment) setenv(name.c_str(), value.c_str(), 1);
      Job own = job;
      if (job.prepare) job.prepare(rank, &own);
      {
        FileStore store(folder.path, own.secret);
        Rank self(load_backend(), own, rank, store.table());
        EXPECT_TRUE(self.created == DB_OK || !own.must_connect) << self.error.text.data();
        if (self.created == DB_OK || !own.must_connect) body(rank, self);
      }
      std::fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    pids.push_back(pid);
  }
  std::vector<int> statuses;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

// The same, and expects every rank to exit with 0.
inline void expect_ranks(const Job& job, const std::function<void(int32_t, Rank&)>& body) {
  const std::vector<int> statuses = fork_ranks(job, body);
  for (size_t rank = 0; rank < statuses.size(); ++rank)
    EXPECT_EQ(statuses[rank], 0) << "wait status of rank " << rank << " of " << job.size;
}

inline int64_t milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() -
                                                               begin)
      .count();
}

}  // namespace backend_test
