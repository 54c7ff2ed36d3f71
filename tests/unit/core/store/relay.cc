#include "relay.h"

#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "base/socket.h"
#include "store/wire.h"

namespace coupler::store {
namespace {

using namespace std::chrono_literals;

}  // namespace

Relay::Relay(int server_port, Rule to_server, Rule to_client)
    : to_server_(std::move(to_server)), to_client_(std::move(to_client)) {
  thread_ = std::thread([this, server_port] { run(server_port); });
}

Relay::~Relay() {
  ::shutdown(listener_.fd.get(), SHUT_RDWR);
  thread_.join();
}

void Relay::say_to_client(const std::string& bytes) {
  send_all(client_.get(), bytes.data(), bytes.size(), deadline_after(5s));
}

void Relay::run(int server_port) {
  client_ = listener_.accept();
  if (!client_) {
    return;
  }
  server_ = connect_tcp("127.0.0.1", server_port, deadline_after(5s), false);
  // The handshake passes unchanged.
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
  // If one direction ends, the connection ends.
  ::shutdown(from, SHUT_RDWR);
  ::shutdown(to, SHUT_RDWR);
}

}  // namespace coupler::store
