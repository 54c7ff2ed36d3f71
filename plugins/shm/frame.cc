#include "shm/frame.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/op.h"

namespace db::shm {
namespace {

// Room for the descriptors of one frame in a control message.
union ControlRoom {
  cmsghdr header;
  std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> bytes;
};

Failure connection_failure(int32_t peer, const std::string& what, int error) {
  return Failure::make(DB_ERR_PEER_LOST,
                       "rank " + std::to_string(peer) + " " + what +
                           " while the ranks set up a communicator" +
                           (error == 0 ? "" : std::string(": ") + std::strerror(error)),
                       0, peer, error);
}

Failure await_socket(const Descriptor& socket, short events, int32_t peer, int64_t deadline_ns) {
  while (true) {
    const int64_t left = deadline_ns - now_ns();
    if (left <= 0)
      return Failure::make(DB_ERR_TIMEOUT,
                           "rank " + std::to_string(peer) +
                               " did not answer in time while the ranks set up a communicator",
                           0, peer);
    pollfd one{socket.get(), events, 0};
    const int limit_ms = static_cast<int>(std::min<int64_t>(left / 1'000'000 + 1, 1000));
    if (poll(&one, 1, limit_ms) > 0) return {};
  }
}

void take_descriptors(msghdr* message, std::vector<Descriptor>* descriptors) {
  for (cmsghdr* one = CMSG_FIRSTHDR(message); one != nullptr; one = CMSG_NXTHDR(message, one)) {
    if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(one) + i * sizeof(int), sizeof fd);
      descriptors->emplace_back(fd);
    }
  }
}

}  // namespace

Frame Frame::of(const Failure& failure) {
  Frame frame;
  frame.status = failure.status;
  frame.failed_rank = failure.failed_rank;
  frame.native_code = failure.native_code;
  copy_text(frame.text.data(), frame.text.size(), failure.message.c_str());
  return frame;
}

Failure Frame::failure() const {
  if (status >= 0) return {};
  const size_t length = strnlen(text.data(), text.size());
  return Failure::make(status, std::string(text.data(), length), DB_ERROR_REMOTE, failed_rank,
                       native_code);
}

Failure send_frame(const Descriptor& socket, Frame frame, const std::vector<int>& descriptors,
                   int32_t peer, int64_t deadline_ns) {
  frame.descriptors = static_cast<int32_t>(descriptors.size());
  ControlRoom room{};
  size_t sent = 0;
  while (sent < sizeof frame) {
    iovec part{reinterpret_cast<char*>(&frame) + sent, sizeof frame - sent};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (sent == 0 && !descriptors.empty()) {  // they travel with the first byte
      const size_t bytes = descriptors.size() * sizeof(int);
      message.msg_control = &room;
      message.msg_controllen = CMSG_SPACE(bytes);
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(bytes);
      std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
    }
    const ssize_t done = sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done > 0) {
      sent += static_cast<size_t>(done);
    } else if (errno == ETOOMANYREFS) {
      return Failure::make(
          DB_ERR_SYSTEM, "this process may pass no more files on: raise `ulimit -n`", 0, -1, errno);
    } else if (errno != EAGAIN && errno != EINTR) {
      return connection_failure(peer, "is gone", errno);
    } else if (Failure failure = await_socket(socket, POLLOUT, peer, deadline_ns); !failure.ok()) {
      return failure;
    }
  }
  return {};
}

Failure receive_frame(const Descriptor& socket, Frame* frame, std::vector<Descriptor>* descriptors,
                      int32_t peer, int64_t deadline_ns) {
  size_t received = 0;
  const size_t before = descriptors->size();
  while (received < sizeof *frame) {
    ControlRoom room{};
    iovec part{reinterpret_cast<char*>(frame) + received, sizeof *frame - received};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = &room;
    message.msg_controllen = sizeof room;
    const ssize_t done = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (done > 0) {
      received += static_cast<size_t>(done);
      take_descriptors(&message, descriptors);
    } else if (done == 0) {
      return connection_failure(peer, "has ended or given up", 0);
    } else if (errno != EAGAIN && errno != EINTR) {
      return connection_failure(peer, "is gone", errno);
    } else if (Failure failure = await_socket(socket, POLLIN, peer, deadline_ns); !failure.ok()) {
      return failure;
    }
  }
  if (Failure failure = frame->failure(); !failure.ok()) return failure;
  if (descriptors->size() - before != static_cast<size_t>(frame->descriptors))
    return Failure::make(DB_ERR_SYSTEM,
                         "this process can take " + std::to_string(descriptors->size() - before) +
                             " of the " + std::to_string(frame->descriptors) + " files that rank " +
                             std::to_string(peer) + " passes to it: raise `ulimit -n`",
                         0, -1, EMFILE);
  return {};
}

}  // namespace db::shm
