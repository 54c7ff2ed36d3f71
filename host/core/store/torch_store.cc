#include "store/torch_store.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <utility>

#include "store/wire.h"

namespace coupler::store {
namespace {

// TCPStore's protocol: a byte names the query; numbers are little-endian; strings and lists start
// with a 64-bit count. A connection begins with kValidate and a magic number.
enum class Query : uint8_t {
  kValidate = 0,
  kSet = 1,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kPing = 13
};
constexpr std::array<uint8_t, 5> kHello = {static_cast<uint8_t>(Query::kValidate), 0xce, 0xf7, 0x85,
                                           0x3c};
constexpr uint8_t kReady = 0;                          // the answer to kCheck
constexpr uint8_t kStopWaiting = 0;                    // the answer to kWait
constexpr size_t kMaxIdle = 4;                         // connections kept
constexpr auto kAnswerWait = std::chrono::seconds(5);  // for the answer to a get() without wait

// A namespace of our own, apart from torch's "/".
std::string value_key(const std::string& key) { return "/coupler/value/" + key; }
std::string number_key(const std::string& key) { return "/coupler/number/" + key; }

}  // namespace

// One exchange on one connection, which is reused only if the exchange succeeds.
class TorchStore::Call {
 public:
  Call(TorchStore& store, Deadline deadline, const std::string& what)
      : store_(store), deadline_(deadline), what_(what), fd_(store.take_connection(deadline)) {}

  template <typename T>
  Call& put(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Call& put(const std::string& text) {
    put(static_cast<uint64_t>(text.size()));
    out_.append(text);
    return *this;
  }
  void send() {
    check(send_all(fd_.get(), out_.data(), out_.size(), deadline_));
    out_.clear();
  }
  template <typename T>
  T take() {
    T value{};
    check(receive_all(fd_.get(), &value, sizeof value, deadline_));
    return value;
  }
  // Like take(), but nullopt if the deadline has passed.
  std::optional<uint8_t> take_byte_in_time() {
    uint8_t value = 0;
    const auto result = receive_all(fd_.get(), &value, sizeof value, deadline_);
    if (result == IoResult::kTimeout) {
      return std::nullopt;
    }
    check(result);
    return value;
  }
  std::string take_text() {
    const auto size = take<uint64_t>();
    if (size > store_wire::kMaxValue) {
      fail(ErrorCode::kMismatch, fmt::format("a value of {} bytes", size));
    }
    std::string text(size, '\0');
    check(receive_all(fd_.get(), text.data(), text.size(), deadline_));
    return text;
  }
  void extend(Deadline deadline) { deadline_ = deadline; }
  void finish() { store_.give_back(std::move(fd_)); }

 private:
  void check(IoResult result) {
    if (result == IoResult::kTimeout) {
      fail(ErrorCode::kTimeout, "it did not answer in time");
    }
    if (result == IoResult::kClosed) {
      fail(ErrorCode::kPeerLost, "it closed the connection");
    }
  }
  [[noreturn]] void fail(ErrorCode code, const std::string& reason) {
    store_.fail(code, fmt::format("failed ({}): {}", what_, reason));
  }

  TorchStore& store_;
  Deadline deadline_;
  const std::string what_;
  UniqueFd fd_;
  std::string out_;
};

TorchStore::TorchStore(std::string host, int port, std::chrono::nanoseconds timeout)
    : host_(std::move(host)), port_(port), timeout_(timeout) {
  Call call(*this, deadline_after(timeout), "join");
  const auto nonce = static_cast<uint32_t>(::getpid());
  call.put(Query::kPing).put(nonce).send();
  if (call.take<uint32_t>() != nonce) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("the listener at {}:{} is not torchrun's store", host_, port_),
                {.subject = fmt::format("{}:{}", host_, port_),
                 .hint = "check MASTER_ADDR and MASTER_PORT; torch 2.4 or newer is needed"});
  }
  call.finish();
}

void TorchStore::fail(ErrorCode code, const std::string& what) const {
  const auto address = fmt::format("{}:{}", host_, port_);
  throw Error(code, fmt::format("torchrun's store at {} {}", address, what),
              {.subject = address, .hint = "torchrun may have ended: look at its messages"});
}

UniqueFd TorchStore::take_connection(Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      UniqueFd connection = std::move(idle_.back());
      idle_.pop_back();
      return connection;
    }
  }
  UniqueFd connection = connect_tcp(host_, port_, deadline, true);
  if (send_all(connection.get(), kHello.data(), kHello.size(), deadline) != IoResult::kOk) {
    fail(ErrorCode::kPeerLost, "closed the connection");
  }
  return connection;
}

void TorchStore::give_back(UniqueFd connection) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < kMaxIdle) {
    idle_.push_back(std::move(connection));
  }
}

void TorchStore::set(const std::string& key, const std::string& value) {
  if (key.size() > store_wire::kMaxKey || value.size() > store_wire::kMaxValue) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a key of {} and a value of {} bytes are too large for the store",
                            key.size(), value.size()),
                {.subject = key.substr(0, 64), .hint = "split it over several keys"});
  }
  Call call(*this, deadline_after(timeout_), "set " + key);
  const auto full = value_key(key);
  call.put(Query::kSet).put(full).put(value);
  // A set has no answer; the check's answer confirms that it has taken effect.
  call.put(Query::kCheck).put(uint64_t{1}).put(full).send();
  call.take<uint8_t>();
  call.finish();
}

std::optional<std::string> TorchStore::get(const std::string& key,
                                           std::chrono::nanoseconds timeout) {
  const bool wait = timeout.count() > 0;
  Call call(*this, deadline_after(wait ? timeout : kAnswerWait), "get " + key);
  const auto full = value_key(key);
  call.put(wait ? Query::kWait : Query::kCheck).put(uint64_t{1}).put(full).send();
  const auto answer = wait ? call.take_byte_in_time() : call.take<uint8_t>();
  if (!answer) {
    return std::nullopt;  // drops the connection, on which an answer may still come
  }
  if (*answer != (wait ? kStopWaiting : kReady)) {
    call.finish();
    return std::nullopt;
  }
  call.extend(deadline_after(kAnswerWait));
  call.put(Query::kGet).put(full).send();
  auto value = call.take_text();
  call.finish();
  return value;
}

int64_t TorchStore::add(const std::string& key, int64_t delta) {
  Call call(*this, deadline_after(timeout_), "add " + key);
  call.put(Query::kAdd).put(number_key(key)).put(delta).send();
  const auto sum = call.take<int64_t>();
  call.finish();
  return sum;
}

}  // namespace coupler::store
