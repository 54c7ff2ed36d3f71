#include "relay.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "rendezvous/socket_io.h"
#include "rendezvous/store_wire.h"

namespace coupler {
namespace {

using namespace std::chrono_literals;

}  // namespace

Relay::Relay(int server_port, Rule to_server, Rule to_client)
    : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      to_server_(std::move(to_server)),
      to_client_(std::move(to_client)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size);
  ::listen(listener_.get(), 1);
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this, server_port] { run(server_port); });
}

Relay::~Relay() {
  ::shutdown(listener_.get(), SHUT_RDWR);
  thread_.join();
}

void Relay::say_to_client(const std::string& bytes) {
  send_all(client_.get(), bytes.data(), bytes.size(), deadline_after(5s));
}

void Relay::run(int server_port) {
  client_.reset(::accept(listener_.get(), nullptr, nullptr));
  if (!client_) {
    return;
  }
  server_ = connect_tcp("127.0.0.1", server_port, deadline_after(5s), false);
  // The handshake goes through as it is.
  const auto copy = [](int from, int to, size_t bytes) {
    std::string text(bytes, '\0');
    return receive_all(from, text.data(), bytes, deadline_after(5s)) == IoResult::kOk &&
           send_all(to, text.data(), bytes, deadline_after(5s)) == IoResult::kOk;
  };
  if (copy(server_.get(), client_.get(), store_wire::kHelloSize) &&
      copy(client_.get(), server_.get(), store_wire::kProofSize) &&
      copy(server_.get(), client_.get(), store_wire::kMacSize)) {
    std::thread back([this] { pass(server_.get(), client_.get(), to_client_); });
    pass(client_.get(), server_.get(), to_server_);
    back.join();
  }
  client_.reset();
  server_.reset();
}

void Relay::pass(int from, int to, const Rule& rule) {
  for (int number = 0;; ++number) {
    std::string frame(4, '\0');
    uint32_t length = 0;
    if (receive_all(from, frame.data(), 4, deadline_after(20s)) != IoResult::kOk) {
      break;
    }
    std::memcpy(&length, frame.data(), sizeof length);
    frame.resize(4 + length + store_wire::kMacSize);
    if (receive_all(from, frame.data() + 4, frame.size() - 4, deadline_after(20s)) !=
        IoResult::kOk) {
      break;
    }
    for (const auto& bytes : rule ? rule(number, frame) : std::vector<std::string>{frame}) {
      send_all(to, bytes.data(), bytes.size(), deadline_after(5s));
    }
  }
  // One direction's end is that of the connection.
  ::shutdown(from, SHUT_RDWR);
  ::shutdown(to, SHUT_RDWR);
}

}  // namespace coupler
