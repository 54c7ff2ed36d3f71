#include "http/http_client.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <cstring>
#include <limits>
#include <memory>

#include "base/text.h"

namespace coupler::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace wire = boost::beast::http;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr size_t kLargestBody = size_t{8} << 20;  // without a sink
constexpr uint32_t kLargestHead = 64 << 10;
constexpr size_t kPiece = size_t{256} << 10;

// Runs one asynchronous operation to its end; only asynchronous operations honor the stream's
// deadline. `begin` receives its handler.
template <class Begin>
error_code run_to_end(asio::io_context& context, Begin&& begin) {
  error_code result = asio::error::would_block;
  begin([&result](const error_code& error, auto&&...) { result = error; });
  context.restart();
  context.run();
  return result;
}

template <class Begin>
void await(asio::io_context& context, const char* what, Begin&& begin) {
  const error_code result = run_to_end(context, begin);
  if (result) throw boost::system::system_error(result, what);
}

std::string text_of(beast::string_view view) { return {view.data(), view.size()}; }

// One request over a connection that has been made. `restart_deadline` is called before each piece
// of the body that a sink receives.
template <class Stream>
HttpReply exchange(asio::io_context& context, Stream& stream,
                   const wire::request<wire::string_body>& request,
                   const HttpClient::BodySink& sink,
                   const std::function<void()>& restart_deadline) {
  await(context, "sending", [&](auto handler) { wire::async_write(stream, request, handler); });
  beast::flat_buffer buffer;
  wire::response_parser<wire::buffer_body> parser;
  parser.header_limit(kLargestHead);
  parser.body_limit(std::numeric_limits<uint64_t>::max());  // none: fails in Boost 1.74
  parser.skip(request.method() == wire::verb::head);
  await(context, "waiting for the reply",
        [&](auto handler) { wire::async_read_header(stream, buffer, parser, handler); });
  HttpReply reply{.status = parser.get().result_int()};
  for (const auto& field : parser.get()) {
    reply.headers.emplace_back(text_of(field.name_string()), text_of(field.value()));
  }
  const bool streamed = sink && reply.status / 100 == 2;
  const auto piece = std::make_unique<char[]>(kPiece);
  while (!parser.is_done()) {
    parser.get().body().data = piece.get();
    parser.get().body().size = kPiece;
    if (streamed) restart_deadline();
    const error_code error = run_to_end(
        context, [&](auto handler) { wire::async_read_some(stream, buffer, parser, handler); });
    if (error && error != wire::error::need_buffer) {
      throw boost::system::system_error(error, "receiving");
    }
    const std::string_view got(piece.get(), kPiece - parser.get().body().size);
    if (streamed) {
      if (!got.empty()) sink(reply, got);
    } else if (reply.body.size() + got.size() > kLargestBody) {
      throw boost::system::system_error(make_error_code(wire::error::body_limit), "receiving");
    } else {
      reply.body += got;
    }
  }
  return reply;
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// HOST:PORT, as a Host header and URLs have it.
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

std::string HttpAddress::url() const {
  return fmt::format("{}://{}{}", tls ? "https" : "http", place_of(*this), prefix);
}

bool HttpAddress::same_server(const HttpAddress& other) const {
  return tls == other.tls && lower(host) == lower(other.host) && port == other.port;
}

std::string HttpReply::header(std::string_view name) const {
  for (const auto& [known, value] : headers) {
    if (lower(known) == lower(std::string(name))) return value;
  }
  return "";
}

HttpClient::HttpClient(HttpAddress address, HttpOptions options)
    : address_(std::move(address)),
      options_(std::move(options)),
      lookup_(options_.proxy ? options_.proxy->address.host : address_.host,
              options_.proxy ? options_.proxy->address.port : address_.port) {}

namespace {

wire::request<wire::string_body> request_for(const HttpAddress& address, const HttpRequest& given,
                                             const std::optional<HttpProxy>& proxy) {
  const beast::string_view method(given.method.data(), given.method.size());
  std::string target = address.prefix + given.target;
  const bool by_proxy = proxy && !address.tls;
  if (by_proxy) target = fmt::format("http://{}{}", place_of(address), target);
  wire::request<wire::string_body> request(wire::string_to_verb(method), target, 11);
  request.set(wire::field::host, place_of(address));
  request.set(wire::field::user_agent, "coupler");
  request.set(wire::field::connection, "close");
  for (const auto& [name, value] : given.headers) request.set(name, value);
  if (by_proxy && !proxy->authorization.empty()) {
    request.set(wire::field::proxy_authorization, proxy->authorization);
  }
  request.body() = given.body;
  if (!given.body.empty() || given.method == "POST" || given.method == "PUT") {
    request.prepare_payload();
  }
  return request;
}

// Asks the proxy for a connection to the server, over which TLS then begins.
void open_tunnel(asio::io_context& context, beast::tcp_stream& stream, const HttpAddress& server,
                 const HttpProxy& proxy) {
  const std::string place = place_of(server);
  wire::request<wire::empty_body> request(wire::verb::connect, place, 11);
  request.set(wire::field::host, place);
  if (!proxy.authorization.empty()) {
    request.set(wire::field::proxy_authorization, proxy.authorization);
  }
  await(context, "sending", [&](auto handler) { wire::async_write(stream, request, handler); });
  beast::flat_buffer buffer;
  wire::response_parser<wire::empty_body> parser;
  parser.skip(true);
  await(context, "waiting for the proxy",
        [&](auto handler) { wire::async_read_header(stream, buffer, parser, handler); });
  if (parser.get().result_int() / 100 != 2) {
    throw HttpUnreachable(
        fmt::format("the proxy {} answers {} to a connection with {}", proxy.address.url(),
                    parser.get().result_int(), place),
        {.subject = proxy.address.url(),
         .hint = "check the proxy's variables (https_proxy, no_proxy) and its user and password"},
        /*certificate_refused=*/false);
  }
}

std::string reason_of(const boost::system::system_error& error) {
  const error_code& code = error.code();
  if (code == wire::error::end_of_stream || code == wire::error::partial_message ||
      code == asio::ssl::error::stream_truncated || code == asio::error::eof) {
    return "the connection was closed before the end of the reply";
  }
  return code.message();
}

bool refuses_certificate(const error_code& code) {
  return code.category() == asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(code.value())) ==
             SSL_R_CERTIFICATE_VERIFY_FAILED;
}

}  // namespace

HttpReply HttpClient::send(const HttpRequest& given, const BodySink& sink) {
  const auto request = request_for(address_, given, options_.proxy);
  const auto deadline = Clock::now() + options_.timeout;
  const std::string in_time = fmt::format(" in {} ms", options_.timeout.count());
  const auto unreachable = [&](const std::string& reason, bool certificate = false) {
    const std::string through =
        options_.proxy ? fmt::format(" through the proxy {}", options_.proxy->address.url()) : "";
    return HttpUnreachable(fmt::format("{} cannot be reached{}: {}", url(), through, reason),
                           {.subject = url()}, certificate);
  };
  try {
    const auto found = lookup_.addresses(deadline);
    if (!found) throw unreachable("the host name was not resolved" + in_time);
    if (!found->list) throw unreachable(found->failure);
    const auto endpoints = endpoints_of(*found);
    asio::io_context context;
    const auto connect = [&](beast::tcp_stream& stream) {
      stream.expires_at(deadline);
      await(context, "connecting", [&](auto handler) { stream.async_connect(endpoints, handler); });
    };
    if (!address_.tls) {
      beast::tcp_stream stream(context);
      connect(stream);
      return exchange(context, stream, request, sink,
                      [&] { stream.expires_after(options_.timeout); });
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
    if (options_.proxy) open_tunnel(context, stream.next_layer(), address_, *options_.proxy);
    await(context, "the TLS handshake",
          [&](auto handler) { stream.async_handshake(asio::ssl::stream_base::client, handler); });
    return exchange(context, stream, request, sink,
                    [&] { stream.next_layer().expires_after(options_.timeout); });
  } catch (const boost::system::system_error& error) {
    if (error.code() == beast::error::timeout) throw unreachable("no answer" + in_time);
    if (refuses_certificate(error.code())) {
      throw unreachable("its certificate is not trusted", /*certificate=*/true);
    }
    throw unreachable(reason_of(error));
  }
}

std::string url_encoded(std::string_view text, std::string_view kept) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~';
    if (plain || kept.find(c) != std::string_view::npos) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string basic_authorization(const std::string& user, const std::string& password) {
  const std::string text = user + ":" + password;
  std::string out(4 * ((text.size() + 2) / 3) + 1, '\0');
  const int size = ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                     reinterpret_cast<const unsigned char*>(text.data()),
                                     static_cast<int>(text.size()));
  out.resize(static_cast<size_t>(size));
  return "Basic " + out;
}

}  // namespace coupler::http
