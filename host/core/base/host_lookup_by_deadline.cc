#include "base/host_lookup_by_deadline.h"

#include <boost/asio/io_context.hpp>
#include <exception>
#include <thread>
#include <utility>

namespace coupler {

std::optional<HostLookup::Addresses> HostLookup::addresses(
    const std::string& host, const std::string& port,
    std::chrono::steady_clock::time_point deadline) {
  if (!asked_.valid()) {
    std::promise<Addresses> answer;
    asked_ = answer.get_future();
    std::thread([answer = std::move(answer), host, port]() mutable {
      try {
        boost::asio::io_context context;
        answer.set_value(boost::asio::ip::tcp::resolver(context).resolve(host, port));
      } catch (...) {
        answer.set_exception(std::current_exception());
      }
    }).detach();
  }
  if (asked_.wait_until(deadline) == std::future_status::timeout) return std::nullopt;
  return asked_.get();
}

}  // namespace coupler
