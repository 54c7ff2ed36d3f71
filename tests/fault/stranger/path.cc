#include "path.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "cross.h"

namespace backend_test {
namespace {

int open_wire(const char* name) {
  const auto check = [name](bool good) {
    if (!good) throw std::system_error(errno, std::generic_category(), name);
  };
  const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL));
  check(fd >= 0);
  const int on = 1;
  check(setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on) == 0);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(name));
  check(address.sll_ifindex != 0);
  check(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  packet_mreq all{};  // also frames for other addresses
  all.mr_ifindex = address.sll_ifindex;
  all.mr_type = PACKET_MR_PROMISC;
  check(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) == 0);
  return fd;
}

}  // namespace

Path::Path(const Network& between, const Plan& plan, bool armed) {
  state_->armed = armed ? 1 : 0;
  process_ = std::make_unique<ChildProcess>([&] {
    between.enter();
    work(plan, state_.get());
  });
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (state_->ready == 0) {
    if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error("the process on the path did not start within 20 seconds");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Path::work(const Plan& plan, State* state) {
  const std::array<int, 2> wires = {open_wire("left"), open_wire("right")};
  // Frames that a full queue rejects are lost, as on any network; TCP sends them again.
  const auto put = [&](int end, const Frame& frame) {
    (void)send(wires[static_cast<size_t>(end)], frame.data(), frame.size(), 0);
  };
  Tamperer tamperer(plan, put);
  Crosser crosser(put);
  state->ready = 1;
  std::array<uint8_t, 65536> room;
  for (;;) {
    std::array<pollfd, 2> polled = {{{wires[0], POLLIN, 0}, {wires[1], POLLIN, 0}}};
    if (poll(polled.data(), polled.size(), 1000) <= 0) continue;
    for (int from = 0; from < 2; ++from) {
      const int wire = wires[static_cast<size_t>(from)];
      for (ssize_t size; (size = recv(wire, room.data(), room.size(), MSG_DONTWAIT)) > 0;) {
        ++state->frames;
        Frame frame(room.data(), room.data() + size);
        if (plan.what == Tampering::kCross) {
          crosser.pass(from, std::move(frame));
        } else {
          tamperer.pass(from, std::move(frame), state->armed == 1);
        }
        if (tamperer.done() || crosser.done()) state->done = 1;
      }
    }
  }
}

}  // namespace backend_test
