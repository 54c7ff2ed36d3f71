// HostLookup: the addresses of a host, waited for until a deadline. The system's resolver has none
// (without an answer it asks for half a minute or more) and cannot be interrupted, so it is asked
// by a thread of its own that is left to itself: it ends when the resolver gives up, and keeps
// neither its lookup nor the program from ending. Used by one thread.
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

  // None: there is no answer in time; the next call waits for the same one, so that there are never
  // two threads. Throws boost::system::system_error with what the resolver says.
  std::optional<Addresses> addresses(const std::string& host, const std::string& port,
                                     std::chrono::steady_clock::time_point deadline);

 private:
  std::future<Addresses> asked_;  // not valid: nothing is
};

}  // namespace coupler
