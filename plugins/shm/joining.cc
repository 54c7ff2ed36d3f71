#include "shm/joining.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>

#include "common/handshake.h"
#include "common/op.h"
#include "shm/frame.h"
#include "shm/placement.h"

namespace db::shm {
namespace {

constexpr int64_t kReportNs = 300'000'000;  // rank 0 ends first, so that its reason arrives
constexpr int64_t kFirstPauseNs = 500'000;  // before a rank connects again
constexpr int64_t kLongestPauseNs = 50'000'000;
// Processes of the same user without the secret cost only themselves: if there are this many, or no
// descriptor is left, the oldest is dropped. A rank whose connection is dropped connects again.
constexpr size_t kMostAttempts = 256;

HandshakeSelf handshake_self(const JoinOptions& options) {
  HandshakeSelf self;
  self.backend = "shm";
  self.key = options.key;
  self.rank = options.rank;
  self.size = options.size;
  self.mode = kLayoutVersion;
  return self;
}

Failure late(int32_t rank, const std::string& problem, int64_t timeout_ns) {
  return Failure::make(DB_ERR_TIMEOUT,
                       "rank " + std::to_string(rank) + " did not connect" +
                           (problem.empty() ? "" : " (" + problem + ")") + " within " +
                           std::to_string(timeout_ns / 1'000'000) +
                           " ms; check that it is running and uses the same backend",
                       0, rank);
}

void poll_for(std::vector<pollfd>* polled, int64_t ns) {
  const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
  // Whatever it returns, even an error, the caller looks at the sockets and the clock again.
  (void)ppoll(polled->data(), polled->size(), &limit, nullptr);
}

// Fills in this rank's lifeline and control block.
Failure own_lifeline(Lifeline* lifeline) {
  *lifeline = open_lifeline();
  if (lifeline->shown) return {};
  return Failure::make(DB_ERR_SYSTEM,
                       std::string("cannot open a lifeline (pidfd_open, pipe2): ") +
                           std::strerror(errno) + "; raise `ulimit -n`",
                       0, -1, errno);
}

// ---- Rank 0 ------------------------------------------------------------------------------------

class Host {
 public:
  Host(const JoinOptions& options, const Listening& listening, Joined* result)
      : options_(options),
        listening_(listening),
        result_(result),
        until_ns_(options.deadline_ns - std::min<int64_t>(kReportNs, options.timeout_ns / 20)),
        sockets_(static_cast<size_t>(options.size)) {}

  Failure run();

 private:
  Failure accept_all();
  void advance(std::list<Handshake>* attempts);
  Failure share();
  void tell(const Failure& failure);

  const JoinOptions& options_;
  const Listening& listening_;
  Joined* const result_;
  const int64_t until_ns_;
  std::vector<Descriptor> sockets_;  // by rank
  int32_t missing_ = 0;
};

void Host::advance(std::list<Handshake>* attempts) {
  for (auto one = attempts->begin(); one != attempts->end();) {
    const Handshake::State state = one->advance();
    if (state == Handshake::State::kUnderWay) {
      ++one;
      continue;
    }
    const int32_t peer = one->peer();
    if (state == Handshake::State::kDone && peer > 0 && peer < options_.size) {
      // A rank that had to connect again has given up its earlier connection.
      Descriptor& socket = sockets_[static_cast<size_t>(peer)];
      missing_ -= socket ? 0 : 1;
      socket = one->release();
    }
    one = attempts->erase(one);
  }
}

Failure Host::accept_all() {
  std::list<Handshake> attempts;
  missing_ = options_.size - 1;
  while (missing_ > 0) {
    const int64_t left = until_ns_ - now_ns();
    if (left <= 0) {
      for (int32_t rank = 1; rank < options_.size; ++rank)
        if (!sockets_[static_cast<size_t>(rank)]) return late(rank, "", options_.timeout_ns);
    }
    std::vector<pollfd> polled = {{listening_.socket.get(), POLLIN, 0}};
    for (const Handshake& attempt : attempts) polled.push_back({attempt.fd(), attempt.events(), 0});
    poll_for(&polled, std::min<int64_t>(left, 1'000'000'000));
    if (polled[0].revents != 0) {
      Descriptor fd(
          accept4(listening_.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd && is_same_user(fd.get())) {
        if (attempts.size() >= kMostAttempts) attempts.pop_front();
        attempts.push_back(
            Handshake::accept(handshake_self(options_), std::move(fd), listening_.place.id));
      } else if (!fd && (errno == EMFILE || errno == ENFILE)) {
        if (attempts.empty())
          return Failure::make(DB_ERR_SYSTEM, "rank 0 may open no more files: raise `ulimit -n`", 0,
                               0, errno);
        attempts.pop_front();
      }
    }
    advance(&attempts);
  }
  return {};
}

Failure Host::share() {
  Lifeline own;
  if (Failure failure = own_lifeline(&own); !failure.ok()) return failure;
  std::vector<int32_t> nodes = {current_node()}, pids = {getpid()};
  std::vector<Descriptor>& lifelines = result_->lifelines;
  lifelines.push_back(std::move(own.shown));
  for (int32_t rank = 1; rank < options_.size; ++rank) {
    Frame frame;
    Failure failure =
        receive_frame(sockets_[static_cast<size_t>(rank)], &frame, &lifelines, rank, until_ns_);
    if (failure.ok() && lifelines.size() != static_cast<size_t>(rank) + 1)
      failure = Failure::make(DB_ERR_INTERNAL,
                              "rank " + std::to_string(rank) + " passed no lifeline", 0, rank);
    if (!failure.ok()) return failure;
    nodes.push_back(frame.node);
    pids.push_back(frame.pid);
  }
  Failure failure;
  Descriptor file;
  result_->segment = Segment::create(
      Layout::of(options_.size, options_.chunk_bytes, options_.arena_bytes), &file, &failure);
  if (!failure.ok()) {
    failure.failed_rank = 0;
    return failure;
  }
  Segment& segment = *result_->segment;
  if (const std::string refused = place(segment.base(), plan_placement(segment.layout(), nodes));
      !refused.empty())
    result_->note = "pages are not placed on the nodes of their readers: " + refused;
  for (int32_t rank = 0; rank < options_.size; ++rank)
    segment.control(rank).pid.store(pids[static_cast<size_t>(rank)], std::memory_order_relaxed);
  std::vector<int> passed = {file.get()};
  for (const Descriptor& lifeline : lifelines) passed.push_back(lifeline.get());
  Frame shared;
  shared.arena_bytes = options_.arena_bytes;
  for (int32_t rank = 1; rank < options_.size; ++rank) {
    for (size_t begin = 0; begin < passed.size(); begin += kMostDescriptors) {
      const size_t end = std::min(begin + kMostDescriptors, passed.size());
      failure = send_frame(sockets_[static_cast<size_t>(rank)], shared,
                           {passed.begin() + static_cast<int64_t>(begin),
                            passed.begin() + static_cast<int64_t>(end)},
                           rank, until_ns_);
      if (!failure.ok()) return failure;
    }
  }
  for (int32_t rank = 1; rank < options_.size; ++rank) {
    Frame mapped;
    std::vector<Descriptor> none;
    failure = receive_frame(sockets_[static_cast<size_t>(rank)], &mapped, &none, rank, until_ns_);
    if (!failure.ok()) return failure;
  }
  result_->arena = std::make_shared<Arena>(std::move(file), segment.layout(), 0);
  lifelines[0] = Descriptor();
  result_->kept = std::move(own.kept);
  return {};
}

// Best effort: a rank that is gone already, or does not listen, reports that by itself.
void Host::tell(const Failure& failure) {
  for (int32_t rank = 1; rank < options_.size; ++rank) {
    const Descriptor& socket = sockets_[static_cast<size_t>(rank)];
    if (socket && rank != failure.failed_rank)
      (void)send_frame(socket, Frame::of(failure), {}, rank, options_.deadline_ns);
  }
}

Failure Host::run() {
  Failure failure = accept_all();
  if (failure.ok()) failure = share();
  tell(failure);
  return failure;
}

// ---- Every other rank --------------------------------------------------------------------------

Failure connect_once(const JoinOptions& options, const MeetingPlace& place, Descriptor* socket,
                     std::string* problem) {
  const std::optional<Address> address = Address::unix_path(place.path);
  Descriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd || !address)
    return Failure::make(DB_ERR_SYSTEM,
                         std::string("cannot open a Unix socket: ") + std::strerror(errno), 0, -1,
                         errno);
  if (connect(fd.get(), address->raw(), address->size) != 0) {
    const int error = errno;
    *problem = std::strerror(error);
    if (error == EAGAIN || error == EINTR) return {};  // too many connect at once
    if (error == EACCES || error == EPERM)
      return Failure::make(DB_ERR_SYSTEM,
                           "rank 0's socket is not accessible: " + *problem +
                               "; start all ranks as the same user, with the same privileges",
                           0, 0, error);
    return Failure::make(DB_ERR_PEER_LOST,
                         "rank 0 exited while connecting, or runs on another machine that is a "
                         "copy of this one (then set backend.use to another transport): " +
                             *problem,
                         0, 0, error);
  }
  Handshake handshake = Handshake::connect(handshake_self(options), std::move(fd), 0, place.id);
  while (true) {
    const Handshake::State state = handshake.advance();
    if (state == Handshake::State::kDone) break;
    if (state == Handshake::State::kFailed) {
      *problem = handshake.problem();
      return {};
    }
    const int64_t left = options.deadline_ns - now_ns();
    if (left <= 0) return {};
    std::vector<pollfd> polled = {{handshake.fd(), handshake.events(), 0}};
    poll_for(&polled, std::min<int64_t>(left, 1'000'000'000));
  }
  *socket = handshake.release();
  return {};
}

Failure connect_to_host(const JoinOptions& options, const MeetingPlace& place, Descriptor* socket) {
  std::string problem;
  int64_t pause = kFirstPauseNs;
  while (true) {
    if (Failure failure = connect_once(options, place, socket, &problem); !failure.ok() || *socket)
      return failure;
    if (now_ns() >= options.deadline_ns) return late(0, problem, options.timeout_ns);
    std::vector<pollfd> none;
    poll_for(&none, pause);
    pause = std::min(2 * pause, kLongestPauseNs);
  }
}

// What this rank gets from rank 0 through the socket.
Failure take_shared(const JoinOptions& options, const Descriptor& socket, Joined* result) {
  std::vector<Descriptor> passed;
  const auto expected = static_cast<size_t>(options.size) + 1;
  Failure failure;
  Frame shared;
  while (failure.ok() && passed.size() < expected) {
    const size_t before = passed.size();
    failure = receive_frame(socket, &shared, &passed, 0, options.deadline_ns);
    if (failure.ok() && passed.size() == before)
      failure = Failure::make(DB_ERR_INTERNAL, "rank 0 passed no memory", 0, 0);
  }
  if (!failure.ok()) return failure;
  const Layout layout = Layout::of(options.size, options.chunk_bytes, shared.arena_bytes);
  result->segment = Segment::map(layout, passed.front(), &failure);
  result->arena = std::make_shared<Arena>(std::move(passed.front()), layout, options.rank);
  for (size_t i = 1; i < passed.size(); ++i) result->lifelines.push_back(std::move(passed[i]));
  result->lifelines[static_cast<size_t>(options.rank)] = Descriptor();
  return failure;
}

Failure take_part(const JoinOptions& options, const MeetingPlace& place, Joined* result) {
  Lifeline own;
  if (Failure failure = own_lifeline(&own); !failure.ok()) return failure;
  Descriptor socket;
  if (Failure failure = connect_to_host(options, place, &socket); !failure.ok()) return failure;
  Frame hello;
  hello.pid = getpid();
  hello.node = current_node();
  Failure failure = send_frame(socket, hello, {own.shown.get()}, 0, options.deadline_ns);
  if (failure.ok()) failure = take_shared(options, socket, result);
  if ((failure.flags & DB_ERROR_REMOTE) != 0) return failure;
  if (!failure.ok() && failure.failed_rank < 0) {
    failure.failed_rank = options.rank;
    failure.message = "rank " + std::to_string(options.rank) + ": " + failure.message;
  }
  const Failure told = send_frame(socket, Frame::of(failure), {}, 0, options.deadline_ns);
  if (!failure.ok() || !told.ok()) return failure.ok() ? told : failure;
  Frame all;
  std::vector<Descriptor> none;
  result->kept = std::move(own.kept);
  return receive_frame(socket, &all, &none, 0, options.deadline_ns);
}

}  // namespace

Failure join(const JoinOptions& options, const MeetingPlace& place, const Listening& listening,
             Joined* result) {
  if (options.rank == 0) return Host(options, listening, result).run();
  return take_part(options, place, result);
}

}  // namespace db::shm
