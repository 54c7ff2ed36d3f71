#include "mesh.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "common/op.h"
#include "setup_loop.h"
#include "wire.h"

namespace db::gloo_cpu {
namespace {

std::string rank_text(int32_t rank) { return "rank " + std::to_string(rank); }

Failure never_came(int32_t rank, const std::string& what) {
  return Failure::make(DB_ERR_TIMEOUT,
                       "gloo_cpu: " + rank_text(rank) + " " + what +
                           " before the timeout passed; is it running, and on the same backend?",
                       0, rank);
}

uint64_t random_number() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) {
    value = static_cast<uint64_t>(now_ns());  // without a random source: still no constant
  }
  return value;
}

// What a rank publishes: its nonce, then the address of its end of the pair to every other rank.
struct Record {
  uint64_t nonce = 0;
  std::vector<std::vector<char>> addresses;  // by rank; empty for the rank itself

  std::string encode() const {
    std::string text(reinterpret_cast<const char*>(&nonce), sizeof nonce);
    for (const auto& address : addresses) text.append(address.data(), address.size());
    return text;
  }
  static std::optional<Record> decode(const std::string& text, int32_t rank, int32_t size) {
    Record record;
    const auto others = static_cast<size_t>(size - 1);
    if (text.size() <= sizeof record.nonce) return std::nullopt;
    const size_t left = text.size() - sizeof record.nonce;
    if (others == 0 || left % others != 0) return std::nullopt;
    std::memcpy(&record.nonce, text.data(), sizeof record.nonce);
    const size_t each = left / others;
    const char* at = text.data() + sizeof record.nonce;
    for (int32_t i = 0; i < size; ++i) {
      record.addresses.emplace_back();
      if (i == rank) continue;
      record.addresses.back().assign(at, at + each);
      at += each;
    }
    return record;
  }
};

}  // namespace

Mesh::~Mesh() = default;

std::unique_ptr<Mesh> Mesh::connect(const MeshOptions& options, const BootstrapStore& store,
                                    Failure* failure) {
  std::unique_ptr<Mesh> mesh(new Mesh);
  mesh->descriptors_.assign(static_cast<size_t>(options.size), -1);
  mesh->nonces_.assign(static_cast<size_t>(options.size), 0);
  {
    std::optional<SetupLoop> loop;
    try {
      loop.emplace(options.interface_name);
    } catch (const std::exception& error) {
      *failure = Failure::make(
          DB_ERR_INVALID_ARGUMENT,
          "gloo_cpu cannot listen on '" +
              (options.interface_name.empty() ? "127.0.0.1" : options.interface_name) +
              "': " + error.what() +
              "; give the name or an address of an interface of this machine (see `ip address`)");
      return nullptr;
    }
    *failure = mesh->connect_pairs(options, store, loop->device());
    if (failure->ok()) {
      mesh->context_->forget_device();
    } else {
      mesh.reset();  // before the loop: unconnected pairs are still registered with it
    }
  }
  if (mesh == nullptr) return nullptr;
  *failure = mesh->greet(options);
  if (!failure->ok()) mesh.reset();
  return mesh;
}

Failure Mesh::connect_pairs(const MeshOptions& options, const BootstrapStore& store,
                            const std::shared_ptr<gloo::transport::tcp::Device>& device) {
  const Clock::time_point deadline =
      Clock::now() + std::chrono::nanoseconds(std::max<int64_t>(options.deadline_ns - now_ns(), 0));
  int32_t peer = -1;
  try {
    context_ = std::make_shared<SocketContext>(device, options.rank, options.size);
    // Kept by libgloo in every socket; ours never block in it.
    context_->setTimeout(std::chrono::seconds(60));
    Record own;
    own.nonce = random_number();
    nonces_[static_cast<size_t>(options.rank)] = own.nonce;
    own.addresses.resize(static_cast<size_t>(options.size));
    for (int32_t i = 0; i < options.size; ++i) {
      if (i == options.rank) continue;
      own.addresses[static_cast<size_t>(i)] = context_->createPair(i)->address().bytes();
      context_->pair(i).set_deadline(deadline);
    }
    if (Failure failure = store.set("mesh/" + std::to_string(options.rank), own.encode());
        !failure.ok()) {
      return failure;
    }
    // In ascending order on every rank: then the listening ends cannot wait for each other.
    for (peer = 0; peer < options.size; ++peer) {
      if (peer == options.rank) continue;
      std::string text;
      const int64_t left = std::max<int64_t>(options.deadline_ns - now_ns(), 0);
      if (Failure failure = store.get("mesh/" + std::to_string(peer), left, &text); !failure.ok()) {
        if (failure.status != DB_ERR_TIMEOUT && failure.status != DB_ERR_NOT_FOUND) return failure;
        return never_came(peer, "did not announce itself in the store");
      }
      const std::optional<Record> record = Record::decode(text, peer, options.size);
      if (!record) {
        return Failure::make(
            DB_ERR_MISMATCH,
            "gloo_cpu: " + rank_text(peer) + " announced itself for another number of ranks", 0,
            peer);
      }
      nonces_[static_cast<size_t>(peer)] = record->nonce;
      context_->pair(peer).connect(record->addresses[static_cast<size_t>(options.rank)]);
      descriptors_[static_cast<size_t>(peer)] = context_->pair(peer).take_over();
    }
  } catch (const std::exception& error) {
    if (peer >= 0 && now_ns() >= options.deadline_ns) return never_came(peer, "did not connect");
    return Failure::make(peer >= 0 ? DB_ERR_PEER_LOST : DB_ERR_SYSTEM,
                         "gloo_cpu cannot connect" + (peer >= 0 ? " to " + rank_text(peer) : "") +
                             ": " + error.what(),
                         0, peer);
  }
  return {};
}

Failure Mesh::greet(const MeshOptions& options) {
  for (int32_t peer = 0; peer < options.size; ++peer) {
    if (peer == options.rank) continue;
    const Hello hello{Hello::kMagic, options.rank, nonces_[static_cast<size_t>(peer)]};
    // A fresh connection has room for 16 bytes.
    const ssize_t sent =
        ::send(descriptors_[static_cast<size_t>(peer)], &hello, sizeof hello, MSG_NOSIGNAL);
    if (sent != sizeof hello) {
      return Failure::make(DB_ERR_PEER_LOST,
                           "gloo_cpu: " + rank_text(peer) + " went away while connecting", 0, peer,
                           errno);
    }
  }
  for (int32_t peer = 0; peer < options.size; ++peer) {
    if (peer == options.rank) continue;
    const int fd = descriptors_[static_cast<size_t>(peer)];
    Hello hello;
    size_t got = 0;
    while (got < sizeof hello) {
      const int64_t left = options.deadline_ns - now_ns();
      if (left <= 0) return never_came(peer, "did not greet");
      pollfd waited{fd, POLLIN, 0};
      if (poll(&waited, 1, static_cast<int>(std::min<int64_t>(left / 1000000 + 1, 1000))) <= 0) {
        continue;
      }
      const ssize_t bytes =
          recv(fd, reinterpret_cast<char*>(&hello) + got, sizeof hello - got, MSG_DONTWAIT);
      if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (bytes <= 0) {
        return Failure::make(DB_ERR_PEER_LOST,
                             "gloo_cpu: " + rank_text(peer) + " went away while connecting", 0,
                             peer, bytes < 0 ? errno : 0);
      }
      got += static_cast<size_t>(bytes);
    }
    if (hello != Hello{Hello::kMagic, peer, nonces_[static_cast<size_t>(options.rank)]}) {
      return Failure::make(DB_ERR_PEER_LOST,
                           "gloo_cpu: a stranger answered in place of " + rank_text(peer) +
                               " (wrong greeting); refused",
                           0, peer);
    }
  }
  return {};
}

}  // namespace db::gloo_cpu
