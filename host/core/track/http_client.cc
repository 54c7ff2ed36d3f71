#include "track/http_client.h"

#include <coupler/tracker.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

namespace coupler::track {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr uint64_t kLargestReply = 8 << 20;

// Runs one asynchronous operation to its end; only asynchronous operations honor the stream's
// deadline. `begin` receives its handler.
template <class Begin>
void await(asio::io_context& context, const char* what, Begin&& begin) {
  error_code result = asio::error::would_block;
  begin([&result](const error_code& error, auto&&...) { result = error; });
  context.restart();
  context.run();
  if (result) throw boost::system::system_error(result, what);
}

template <class Stream>
HttpReply exchange(asio::io_context& context, Stream& stream,
                   http::request<http::string_body>& request) {
  await(context, "sending", [&](auto handler) { http::async_write(stream, request, handler); });
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(kLargestReply);
  await(context, "waiting for the reply",
        [&](auto handler) { http::async_read(stream, buffer, parser, handler); });
  return {parser.get().result_int(), std::move(parser.get().body())};
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// HOST:PORT
std::string place_of(const HttpAddress& address) {
  const bool six = address.host.find(':') != std::string::npos;
  return fmt::format("{}:{}", six ? "[" + address.host + "]" : address.host, address.port);
}

std::vector<asio::ip::tcp::endpoint> endpoints_of(const HostAddresses& host) {
  std::vector<asio::ip::tcp::endpoint> endpoints;
  for (const addrinfo* entry = host.list.get(); entry != nullptr; entry = entry->ai_next) {
    asio::ip::tcp::endpoint& endpoint = endpoints.emplace_back();
    std::memcpy(endpoint.data(), entry->ai_addr, entry->ai_addrlen);
    endpoint.resize(entry->ai_addrlen);
  }
  return endpoints;
}

}  // namespace

HttpAddress parse_http_address(std::string_view text, const std::string& source) {
  const auto refuse = [&](const char* why) {
    // The text may contain a password, but only before an @, so that part is left out.
    const size_t at = text.rfind('@');
    throw Error(ErrorCode::kConfig,
                fmt::format("{}: '{}' {}", source,
                            at == std::string_view::npos ? text : text.substr(at), why),
                {.subject = source, .hint = "write http://HOST:PORT or https://HOST"});
  };
  HttpAddress result;
  std::string_view rest = text;
  if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
    result.tls = true;
  } else {
    refuse("is not an HTTP address");
  }
  if (!is_printable(rest)) refuse("contains a space or a control character");
  const size_t slash = rest.find('/');
  if (slash != std::string_view::npos) result.prefix = rest.substr(slash);
  while (!result.prefix.empty() && result.prefix.back() == '/') result.prefix.pop_back();
  std::string_view place = rest.substr(0, slash);
  if (place.find('@') != std::string_view::npos) {
    refuse("contains a user name or password, which have their own variables");
  }
  const size_t bracket = place.find(']');  // [::1]:5000
  const size_t colon = place.find(':', bracket == std::string_view::npos ? 0 : bracket);
  result.host = place.substr(0, colon);
  if (bracket != std::string_view::npos && result.host.size() > 2) {
    result.host = result.host.substr(1, result.host.size() - 2);
  }
  result.port = result.tls ? "443" : "80";
  if (colon != std::string_view::npos) result.port = place.substr(colon + 1);
  const bool digits = !result.port.empty() && result.port.size() <= 5 &&
                      result.port.find_first_not_of("0123456789") == std::string::npos;
  if (result.host.empty() || !digits) refuse("has no host, or a port that is not a number");
  return result;
}

HttpClient::HttpClient(HttpAddress address, HttpOptions options)
    : address_(std::move(address)),
      options_(std::move(options)),
      lookup_(address_.host, address_.port) {}

std::string HttpClient::url() const {
  return fmt::format("{}://{}{}", address_.tls ? "https" : "http", place_of(address_),
                     address_.prefix);
}

HttpReply HttpClient::send(std::string_view method, const std::string& target,
                           const std::string& body) {
  http::request<http::string_body> request(
      http::string_to_verb(beast::string_view(method.data(), method.size())),
      address_.prefix + target, 11);
  request.set(http::field::host, place_of(address_));
  request.set(http::field::user_agent, "coupler");
  request.set(http::field::connection, "close");
  if (!options_.authorization.empty()) {
    request.set(http::field::authorization, options_.authorization);
  }
  if (!body.empty()) {
    request.set(http::field::content_type, "application/json");
    request.body() = body;
  }
  request.prepare_payload();
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  const std::string in_time = fmt::format(" in {} ms", options_.timeout.count());
  const auto unavailable = [&](const std::string& reason) {
    return TrackerUnavailable(fmt::format("{} cannot be reached: {}", url(), reason),
                              {.subject = url()});
  };
  try {
    const auto found = lookup_.addresses(deadline);
    if (!found) throw unavailable("the host name was not resolved" + in_time);
    if (!found->list) throw unavailable(found->failure);
    const auto endpoints = endpoints_of(*found);
    asio::io_context context;
    const auto connect = [&](beast::tcp_stream& stream) {
      stream.expires_at(deadline);
      await(context, "connecting", [&](auto handler) { stream.async_connect(endpoints, handler); });
    };
    if (!address_.tls) {
      beast::tcp_stream stream(context);
      connect(stream);
      return exchange(context, stream, request);
    }
    asio::ssl::context tls(asio::ssl::context::tls_client);
    tls.set_default_verify_paths();
    tls.set_verify_mode(options_.verify ? asio::ssl::verify_peer : asio::ssl::verify_none);
    beast::ssl_stream<beast::tcp_stream> stream(context, tls);
    if (options_.verify) {
      stream.set_verify_callback(asio::ssl::host_name_verification(address_.host));
    }
    ::SSL_set_tlsext_host_name(stream.native_handle(), address_.host.c_str());
    connect(stream.next_layer());
    await(context, "the TLS handshake",
          [&](auto handler) { stream.async_handshake(asio::ssl::stream_base::client, handler); });
    return exchange(context, stream, request);
  } catch (const boost::system::system_error& error) {
    throw unavailable(error.code() == beast::error::timeout ? "no answer" + in_time
                                                            : error.code().message());
  }
}

std::string url_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

}  // namespace coupler::track
