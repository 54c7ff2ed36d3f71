// Unix sockets through which processes of one user on one machine reach a store: where a server
// listens, and how its clients connect. Values and plain functions, [any-thread].
//
// The kernel keeps other users out when they connect. Either the socket's file has mode 0600 in a
// private folder, or the socket has no name: its file is removed as soon as it is bound, and
// clients reach it as /proc/<process>/fd/<n>, which is open only to those who may inspect the
// process. A socket without a name leaves nothing on disk, however its process ends. An abstract
// socket would let everyone connect, and a client can send descriptors along; closing its
// connection closes those, too, which takes as long as it likes (a TCP socket's SO_LINGER). In
// addition, each end compares the user at the other end, as the kernel reports it (SO_PEERCRED),
// with its own.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "base/socket_io.h"
#include "base/unique_fd.h"

namespace coupler {

// Whether a store's host is the path of a Unix socket.
inline bool is_local(const std::string& host) { return !host.empty() && host.front() == '/'; }

class LocalListener {
 public:
  // Bound and listening on return. folder: a private one, first cleared of sockets that killed
  // processes of this machine left; "": without a name. Throws Error(kIo) naming the folder.
  explicit LocalListener(const std::string& folder);
  ~LocalListener();  // removes the file
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  const std::string& path() const { return path_; }  // for connect_locally()
  UniqueFd take_socket() { return std::move(socket_); }

 private:
  UniqueFd socket_;
  UniqueFd place_;  // without a name: what path_ refers to
  std::string path_;
};

// If the listener's queue is full, waits for a place until the deadline. Throws, naming the path,
// Error(kPeerLost), or Error(kTimeout) if the deadline has passed. If another user listens there,
// throws Error(kPeerLost) naming that user too, before anything is sent.
UniqueFd connect_locally(const std::string& path, Deadline deadline);

// The user at the other end of a connected Unix socket: the client, or the listener.
uid_t user_of_peer(int socket);

}  // namespace coupler
