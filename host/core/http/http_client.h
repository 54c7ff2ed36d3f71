// HttpClient: sends requests to one server, each on its own connection and with deadlines. Used by
// one thread.
#pragma once

#include <coupler/error.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/network.h"

namespace coupler::http {

// http[s]://HOST[:PORT][/PREFIX]
struct HttpAddress {
  bool tls = false;
  std::string host;
  std::string port;
  std::string prefix;  // "" or "/…" without a trailing slash

  // "https://HOST:PORT/PREFIX", with the port in any case.
  std::string url() const;
  // Whether both have the same scheme, host and port.
  bool same_server(const HttpAddress& other) const;
};

// Throws Error(kConfig) naming `source` (a variable) if it is not such an address.
HttpAddress parse_http_address(std::string_view text, const std::string& source);

struct HttpProxy {
  HttpAddress address;        // not over TLS
  std::string authorization;  // the value of Proxy-Authorization; "": none
};

// The proxy that https_proxy, http_proxy or all_proxy names for this server, in lower or upper
// case, unless no_proxy lists the server's host. Throws Error(kConfig) naming the variable.
std::optional<HttpProxy> proxy_from_environment(const HttpAddress& server);

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method = "GET";  // GET, HEAD, POST, PUT
  std::string target = "/";    // follows the address's prefix and begins with a slash
  HttpHeaders headers = {};
  std::string body = {};
};

struct HttpReply {
  unsigned status = 0;
  HttpHeaders headers = {};
  std::string body = {};

  // The value of the first header of that name, whatever its case; "" if there is none.
  std::string header(std::string_view name) const;
};

struct HttpOptions {
  std::chrono::milliseconds timeout{10'000};
  bool verify = true;  // the certificate of an HTTPS server
  std::optional<HttpProxy> proxy = std::nullopt;
};

// The server does not answer, or the connection broke; names the URL.
class HttpUnreachable : public Error {
 public:
  HttpUnreachable(const std::string& message, ErrorDetail detail, bool certificate_refused)
      : Error(ErrorCode::kIo, message, std::move(detail)),
        certificate_refused_(certificate_refused) {}

  // Whether it answers, but as someone else: trying again does not help.
  bool certificate_refused() const { return certificate_refused_; }

 private:
  bool certificate_refused_;
};

class HttpClient {
 public:
  HttpClient(HttpAddress address, HttpOptions options);

  // Receives a piece of the body of a reply with a 2xx status; `head` has no body. May throw, which
  // ends the request.
  using BodySink = std::function<void(const HttpReply& head, std::string_view piece)>;

  // Redirects are not followed. Without a sink, the timeout is for the whole request, and a body
  // may have 8 MiB. With one, it is for the reply's head, and again for each piece of the body.
  // Throws HttpUnreachable.
  HttpReply send(const HttpRequest& request, const BodySink& sink = nullptr);

  std::string url() const { return address_.url(); }

 private:
  HttpAddress address_;
  HttpOptions options_;
  HostLookup lookup_;
};

// "a%20b": escaped for the value of a query, or for a part of a path. Characters in `kept` stay.
std::string url_encoded(std::string_view text, std::string_view kept = "");

// The value of an Authorization header: "Basic …".
std::string basic_authorization(const std::string& user, const std::string& password);

}  // namespace coupler::http
