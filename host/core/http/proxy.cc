#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "http/http_client.h"

namespace coupler::http {
namespace {

struct Setting {
  std::string name;
  std::string value;
};

// The first of the variables that is set, each in lower case before upper case.
Setting first_set(std::initializer_list<const char*> lower_names) {
  for (const char* name : lower_names) {
    std::string upper = name;
    std::transform(upper.begin(), upper.end(), upper.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
    for (const std::string& each : {std::string(name), upper}) {
      std::string value = environment_value(each.c_str());
      if (!value.empty()) return {each, std::move(value)};
    }
  }
  return {};
}

// Whether no_proxy's entry is the host, or a domain that it is in: "example.org" and
// ".example.org" both include "a.example.org".
bool names_host(std::string_view entry, std::string_view host) {
  if (entry == "*") return true;
  if (entry.starts_with('.')) entry.remove_prefix(1);
  if (entry.empty() || !host.ends_with(entry)) return false;
  return host.size() == entry.size() || host[host.size() - entry.size() - 1] == '.';
}

std::string url_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const bool escaped =
        text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16).ptr == &text[i + 1] + 2;
    out += escaped ? static_cast<char>(value) : text[i];
    if (escaped) i += 2;
  }
  return out;
}

}  // namespace

std::optional<HttpProxy> proxy_from_environment(const HttpAddress& server) {
  const Setting setting = first_set({server.tls ? "https_proxy" : "http_proxy", "all_proxy"});
  if (setting.value.empty()) return std::nullopt;
  const std::string host = lower(server.host);
  for (const std::string& listed : split(first_set({"no_proxy"}).value, ',')) {
    std::string entry = lower(listed);
    std::erase(entry, ' ');
    if (names_host(entry, host) || names_host(entry, host + ":" + server.port)) {
      return std::nullopt;
    }
  }
  HttpProxy proxy;
  std::string text = setting.value;
  if (text.find("://") == std::string::npos) text = "http://" + text;
  const size_t start = text.find("://") + 3;
  const size_t at = text.rfind('@');
  if (at != std::string::npos && at > start) {
    const std::string user = text.substr(start, at - start);
    const size_t colon = user.find(':');
    proxy.authorization =
        basic_authorization(url_decoded(user.substr(0, colon)),
                            colon == std::string::npos ? "" : url_decoded(user.substr(colon + 1)));
    text.erase(start, at + 1 - start);
  }
  proxy.address = parse_http_address(text, setting.name);
  if (proxy.address.tls) {
    fail_config(fmt::format("{}: a proxy over TLS (https://) is not supported", setting.name),
                setting.name, "write http://HOST:PORT; requests over TLS pass through it as usual");
  }
  return proxy;
}

}  // namespace coupler::http
