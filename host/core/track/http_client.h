// HttpClient: sends requests to one server, each on its own connection and with one deadline for
// the whole request. Used by one thread.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/network.h"

namespace coupler::track {

// http[s]://HOST[:PORT][/PREFIX]
struct HttpAddress {
  bool tls = false;
  std::string host;
  std::string port;
  std::string prefix;  // "" or "/…" without a trailing slash
};

// Throws Error(kConfig) naming `source` (a variable) if it is not such an address.
HttpAddress parse_http_address(std::string_view text, const std::string& source);

struct HttpReply {
  unsigned status = 0;
  std::string body;
};

struct HttpOptions {
  std::string authorization;                  // the header's value; empty: none
  std::chrono::milliseconds timeout{10'000};  // for a whole request
  bool verify = true;                         // the certificate of an HTTPS server
};

class HttpClient {
 public:
  HttpClient(HttpAddress address, HttpOptions options);

  // method: "GET" or "POST". `target` follows the prefix and begins with a slash; `body` is JSON,
  // "" if there is none. Throws TrackerUnavailable naming `url()` if there is no reply in time.
  HttpReply send(std::string_view method, const std::string& target, const std::string& body);

  std::string url() const;

 private:
  HttpAddress address_;
  HttpOptions options_;
  HostLookup lookup_;
};

// "a%20b": escaped for the value of a query.
std::string url_encoded(std::string_view text);

}  // namespace coupler::track
