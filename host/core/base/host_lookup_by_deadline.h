// HostLookup: looks up a host's addresses with a deadline. The system's resolver has none (it
// retries for half a minute or more) and cannot be interrupted, so a detached thread runs it. The
// thread ends when the resolver gives up, and blocks neither the destructor nor the program's exit.
// Used by one thread.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <string>

namespace coupler {

class HostLookup {
 public:
  using Addresses = boost::asio::ip::tcp::resolver::results_type;

  // None if there is no answer in time; the next call waits for the same lookup, so that there are
  // never two threads. Throws boost::system::system_error with the resolver's error.
  std::optional<Addresses> addresses(const std::string& host, const std::string& port,
                                     std::chrono::steady_clock::time_point deadline);

 private:
  std::future<Addresses> asked_;  // not valid: no lookup is running
};

}  // namespace coupler
