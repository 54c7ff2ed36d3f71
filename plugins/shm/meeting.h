// Meeting: how the ranks of a new communicator find out, through the job's store, whether they can
// share memory, and where rank 0 waits for the others. Each rank announces its machine, user,
// namespaces and version, and whether it sees rank 0 in /proc; rank 0 compares them and publishes
// its address, or why there is none, so that every rank reports the same. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/bootstrap_store.h"
#include "common/error.h"
#include "common/local_socket.h"

namespace db::shm {

// How ranks reach rank 0's socket.
enum class Reach : int32_t {
  kProc = 0,      // through /proc, which the kernel opens to processes of this user only
  kAbstract = 1,  // by an abstract name, if a rank does not see it there
};

struct MeetingPlace {
  Bytes32 id{};      // random; proofs are bound to it
  std::string path;  // of the Unix socket; an abstract one begins with a zero byte
};

// Rank 0's socket, open until all ranks are connected.
struct Listening {
  MeetingPlace place;
  Descriptor socket, file;

  static Failure open(Reach reach, Listening* result);
};

// What a rank says about itself.
struct Announcement {
  std::string version;  // of the plugin and of the segment's layout
  int32_t size = 0;
  std::string boot_id;                           // of the running kernel
  std::string pid_space, net_space, user_space;  // namespaces
  uint32_t user = 0;
  int32_t pid = 0;         // in its PID namespace
  bool sees_host = false;  // it may open the files of rank 0's process through /proc
  std::string host;

  static Announcement own(int32_t size);
  // Whether this process may open the files of the one that announced itself so.
  bool sees(const Announcement& other) const;
  std::string encode() const;
  static bool decode(const std::string& text, Announcement* result);
};

// Why rank `other`, which announced theirs, cannot share memory with rank 0, which announced own;
// OK if it can. *reach: how it reaches rank 0. A pure function.
Failure compare(const Announcement& own, const Announcement& theirs, int32_t other, Reach* reach);

struct MeetingOptions {
  int32_t rank = 0;
  int32_t size = 1;
  int64_t deadline_ns = 0;  // now_ns() clock
  int64_t timeout_ns = 0;   // for messages
};

// Blocks until the ranks have met. On rank 0 *listening is its socket. *reach: for later
// communicators of the same ranks.
Failure meet(const MeetingOptions& options, const BootstrapStore& store, MeetingPlace* place,
             Reach* reach, Listening* listening);

}  // namespace db::shm
