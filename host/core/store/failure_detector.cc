#include "store/failure_detector.h"

#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>

namespace coupler::store {
namespace {

using Reason = PeerLoss::Reason;

// How long the other machine has acknowledged nothing, although there is data to acknowledge or to
// send (a link that is down takes none). Zero: all is well, or this is a Unix socket, whose other
// end is on this machine.
std::chrono::milliseconds unacknowledged(int socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (socket < 0 || ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      (info.tcpi_unacked == 0 && info.tcpi_notsent_bytes == 0)) {
    return {};
  }
  return std::chrono::milliseconds(info.tcpi_last_ack_recv);
}

}  // namespace

std::optional<Reason> detect_failure(const SilentPeer& peer,
                                     std::chrono::steady_clock::duration limit) {
  // The last sign of life may be a quarter of the limit older than the cause of the silence.
  if (peer.quiet < limit / 4 * 3) {
    return std::nullopt;
  }
  if (unacknowledged(peer.socket) >= limit / 2) {
    return Reason::kUnreachable;
  }
  if (peer.here != nullptr) {
    const char state = state_of(*peer.here);
    return state == 'T'                 ? std::optional(Reason::kStopped)
           : state == 0 || state == 'Z' ? std::optional(Reason::kGone)
                                        : std::nullopt;
  }
  return peer.quiet >= limit ? std::optional(Reason::kStopped) : std::nullopt;
}

std::string describe_loss(int rank, long pid, Reason reason) {
  // In the order of Reason.
  constexpr std::array<const char*, 5> kWhat = {
      "has left the job", "has left the job after an error",
      "is gone: it ended without leaving the job",
      "is stopped: it does not answer, although its machine does",
      "cannot be reached: its machine acknowledges nothing"};
  return fmt::format("rank {} (process {}) {}", rank, pid, kWhat.at(static_cast<size_t>(reason)));
}

}  // namespace coupler::store
