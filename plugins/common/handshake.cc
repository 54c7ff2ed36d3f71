#include "common/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace db {
namespace {

// Also detects a different byte order.
constexpr uint32_t kMagic = 0x32504343;  // "CCP2"
constexpr uint32_t kWelcome = 0x454d4c57;

struct Hello {
  uint32_t magic = kMagic;
  int32_t rank = -1;
  int32_t size = 0;
  uint32_t mode = 0;
  Bytes32 nonce{};
};
static_assert(sizeof(Hello) == 48 && std::is_trivially_copyable_v<Hello>);

struct Answer {
  uint32_t magic = kMagic;
  int32_t size = 0;
  uint32_t mode = 0;
  uint32_t zero = 0;
  Bytes32 nonce{};
  Bytes32 proof{};
};
static_assert(sizeof(Answer) == 80 && std::is_trivially_copyable_v<Answer>);

constexpr size_t kLargestMessage = sizeof(Answer);

}  // namespace

Handshake::Handshake(const HandshakeSelf& self, Descriptor fd, bool connects, int32_t peer,
                     const Bytes32& listener_id)
    : self_(self),
      fd_(std::move(fd)),
      connects_(connects),
      peer_(peer),
      listener_id_(listener_id),
      step_(connects ? Step::kConnecting : Step::kHello),
      own_nonce_(random_bytes32()) {}

Handshake Handshake::connect(const HandshakeSelf& self, Descriptor fd, int32_t peer,
                             const Bytes32& listener_id) {
  return {self, std::move(fd), true, peer, listener_id};
}

Handshake Handshake::accept(const HandshakeSelf& self, Descriptor fd, const Bytes32& listener_id) {
  return {self, std::move(fd), false, -1, listener_id};
}

short Handshake::events() const {
  return step_ == Step::kConnecting || !out_.empty() ? POLLOUT : POLLIN;
}

Handshake::State Handshake::fail(const std::string& problem) {
  problem_ = problem;
  return State::kFailed;
}

Handshake::State Handshake::advance() {
  while (true) {
    const State state = step();
    if (!out_.empty()) {
      const ssize_t sent = send(fd_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
      if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        return fail(std::string("the connection broke: ") + std::strerror(errno));
      }
    }
    if (state != State::kUnderWay) return out_.empty() ? state : State::kUnderWay;
    std::array<char, kLargestMessage> bytes;
    // Read only this message: bytes after the handshake belong to another reader.
    const size_t wanted = step_ == Step::kHello    ? sizeof(Hello)
                          : step_ == Step::kAnswer ? sizeof(Answer)
                          : step_ == Step::kProof  ? sizeof(Bytes32)
                                                   : sizeof kWelcome;
    if (step_ == Step::kConnecting) return State::kUnderWay;
    const ssize_t got = recv(fd_.get(), bytes.data(), wanted - in_.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return State::kUnderWay;
    if (got < 0) return fail(std::string("the connection broke: ") + std::strerror(errno));
    if (got == 0) return fail("the connection was closed");
    in_.append(bytes.data(), static_cast<size_t>(got));
  }
}

bool Handshake::take(void* message, size_t size) {
  if (in_.size() < size) return false;
  std::memcpy(message, in_.data(), size);
  in_.clear();
  return true;
}

void Handshake::put(const void* message, size_t size) {
  out_.append(static_cast<const char*>(message), size);
}

// HMAC over the purpose and the transcript.
Bytes32 Handshake::keyed_hash(const char* purpose) const {
  const Address local = local_address(fd_.get());
  const Address remote = peer_address(fd_.get());
  const auto number = [](int64_t value) { return std::to_string(value) + "\n"; };
  const auto bytes = [](const Bytes32& value) {
    return std::string(reinterpret_cast<const char*>(value.data()), value.size());
  };
  // From the connecting end's view; the parts of variable length are last, each ended by a newline.
  std::string text = std::string("coupler ") + self_.backend + " " + purpose + "\n";
  text += bytes(listener_id_);
  text += bytes(connects_ ? own_nonce_ : peer_nonce_);
  text += bytes(connects_ ? peer_nonce_ : own_nonce_);
  text += number(connects_ ? self_.rank : peer_) + number(connects_ ? peer_ : self_.rank);
  text += number(connects_ ? self_.size : peer_size_) + number(connects_ ? peer_size_ : self_.size);
  const uint32_t first = connects_ ? self_.mode : peer_mode_;
  const uint32_t second = connects_ ? peer_mode_ : self_.mode;
  text += number(first) + number(second);
  text += (connects_ ? local : remote).text() + "\n" + (connects_ ? remote : local).text() + "\n";
  Bytes32 mac{};
  if (HMAC(EVP_sha256(), self_.key.data(), static_cast<int>(self_.key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac.data(),
           nullptr) == nullptr) {
    throw std::runtime_error("HMAC-SHA256 failed in OpenSSL");
  }
  return mac;
}

Handshake::State Handshake::step() {
  switch (step_) {
    case Step::kConnecting: {
      int error = 0;
      socklen_t size = sizeof error;
      pollfd ready{fd_.get(), POLLOUT, 0};
      if (poll(&ready, 1, 0) == 0) return State::kUnderWay;
      (void)getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      refused_ = error == ECONNREFUSED;
      if (error != 0) return fail(std::string("the connection failed: ") + std::strerror(error));
      if (local_address(fd_.get()).family() == AF_UNIX && !is_same_user(fd_.get())) {
        return fail("a process of another user listens at its address");
      }
      const Hello hello{kMagic, self_.rank, self_.size, self_.mode, own_nonce_};
      put(&hello, sizeof hello);
      step_ = Step::kAnswer;
      return State::kUnderWay;
    }
    case Step::kHello: {
      Hello hello;
      if (!take(&hello, sizeof hello)) return State::kUnderWay;
      // The rank is trusted only once it is proved.
      if (hello.magic != kMagic || hello.rank < 0) return fail("not a greeting of this backend");
      peer_ = hello.rank;
      peer_size_ = hello.size;
      peer_mode_ = hello.mode;
      peer_nonce_ = hello.nonce;
      const Answer answer{kMagic, self_.size, self_.mode, 0, own_nonce_, keyed_hash("accepts")};
      put(&answer, sizeof answer);
      step_ = Step::kProof;
      return State::kUnderWay;
    }
    case Step::kAnswer: {
      Answer answer;
      if (!take(&answer, sizeof answer)) return State::kUnderWay;
      peer_size_ = answer.size;
      peer_mode_ = answer.mode;
      peer_nonce_ = answer.nonce;
      const Bytes32 expected = keyed_hash("accepts");
      if (answer.magic != kMagic ||
          CRYPTO_memcmp(expected.data(), answer.proof.data(), expected.size()) != 0) {
        return fail(
            "the process that answered does not hold this job's secret, or a proxy or address "
            "translation between the ranks changes their addresses");
      }
      const Bytes32 own = keyed_hash("connects");
      put(own.data(), own.size());
      step_ = Step::kWelcome;
      return State::kUnderWay;
    }
    case Step::kProof: {
      Bytes32 given;
      if (!take(given.data(), given.size())) return State::kUnderWay;
      const Bytes32 expected = keyed_hash("connects");
      if (CRYPTO_memcmp(expected.data(), given.data(), expected.size()) != 0) {
        return fail("a connection without this job's secret");
      }
      put(&kWelcome, sizeof kWelcome);
      step_ = Step::kDone;
      return State::kDone;
    }
    case Step::kWelcome: {
      uint32_t welcome = 0;
      if (!take(&welcome, sizeof welcome)) return State::kUnderWay;
      if (welcome != kWelcome) return fail("not a welcome of this backend");
      step_ = Step::kDone;
      return State::kDone;
    }
    case Step::kDone:
      return State::kDone;
  }
  return State::kFailed;
}

}  // namespace db
