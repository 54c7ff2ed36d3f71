// Unix sockets on which processes of one user and machine reach a store: where a server listens,
// and how its clients get there. Values and plain functions, [any-thread].
//
// The kernel keeps other users out, when they connect: the socket's file has mode 0600 and lies in
// a private folder, or it has no name, since it is removed as soon as it is bound, and is reached
// as /proc/<process>/fd/<n>, which is open to those only who may look into the process. Nothing of
// one without a name stays on disk, whatever ends its process. To an abstract socket everybody
// could connect, and whoever connects can send descriptors along; closing his connection then
// closes those, which takes as long as he likes (a TCP socket's SO_LINGER). Beyond that both ends
// compare the user at the other one, whom the kernel knows (SO_PEERCRED), with their own.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "rendezvous/socket_io.h"
#include "rendezvous/unique_fd.h"

namespace coupler {

// Whether a store's host is the path of a Unix socket.
inline bool is_local(const std::string& host) { return !host.empty() && host.front() == '/'; }

class LocalListener {
 public:
  // Bound and listening. folder: a private one, in which what killed processes of this machine left
  // behind is removed first; "": without a name. Throws Error(kIo) naming the folder.
  explicit LocalListener(const std::string& folder);
  ~LocalListener();  // removes the file
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  const std::string& path() const { return path_; }  // for connect_locally()
  UniqueFd take_socket() { return std::move(socket_); }

 private:
  UniqueFd socket_;
  UniqueFd place_;  // without a name: what the path leads to
  std::string path_;
};

// Waits its turn, until the deadline, where the listener's queue is full. Throws, naming the path,
// Error(kPeerLost), or Error(kTimeout) where the deadline has passed; Error(kPeerLost) naming the
// user, too, where the listener is another user's, who has been sent nothing by then.
UniqueFd connect_locally(const std::string& path, Deadline deadline);

// The user at the other end of a connected Unix socket: who connected, or who listened.
uid_t user_of_peer(int socket);

}  // namespace coupler
