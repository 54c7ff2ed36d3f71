#include "hub/hub_client.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/text.h"

namespace coupler::hub {
namespace {

using http::HttpAddress;
using http::HttpReply;
using http::HttpUnreachable;

constexpr int kMostRedirects = 10;
constexpr int kMostAttempts = 5;     // while the Hub is busy
constexpr int kMostConnections = 2;  // to find a file, if the Hub does not answer
constexpr auto kLongestWait = std::chrono::minutes(5);

struct Place {
  HttpAddress server;  // without a prefix
  std::string target;
};

// Takes a URL apart; `base` is that of a request whose reply has this Location.
Place place_of(const std::string& url, const Place* base) {
  if (base != nullptr && url.starts_with("//")) {
    return place_of((base->server.tls ? "https:" : "http:") + url, nullptr);
  }
  if (base != nullptr && url.starts_with('/')) return {base->server, url};
  const size_t scheme = url.find("://");
  const size_t host = scheme == std::string::npos ? 0 : scheme + 3;
  const size_t end = std::min(url.find_first_of("/?#", host), url.size());
  Place place{http::parse_http_address(url.substr(0, end), "the address of a redirect"),
              url.substr(end)};
  if (!place.target.starts_with('/')) place.target.insert(0, "/");
  return place;
}

std::string url_of(const Place& place) { return place.server.url() + place.target; }

// A URL as a message shows it: the signature of a download is in its query.
std::string shown(const std::string& url) { return for_message(url.substr(0, url.find('?'))); }

bool redirects(const HttpReply& reply) {
  return (reply.status >= 301 && reply.status <= 303) || reply.status == 307 || reply.status == 308;
}

bool is_busy(unsigned status) {
  return status == 408 || status == 429 || (status >= 500 && status != 501);
}

// `W/"abc"` and `"abc"` as huggingface_hub names the blob: abc. "" if that is not a plain file
// name.
std::string plain_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  std::erase(etag, '"');
  const bool plain = std::all_of(etag.begin(), etag.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
  return plain && etag.size() <= 128 ? etag : "";
}

std::string header_text(const HttpReply& reply, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    std::string value = reply.header(name);
    if (!value.empty()) return value;
  }
  return "";
}

}  // namespace

HubClient::HubClient(const HubSettings& settings, ModelName model, Beat beat)
    : settings_(settings),
      model_(std::move(model)),
      endpoint_(http::parse_http_address(settings.endpoint, "HF_ENDPOINT")),
      beat_(std::move(beat)) {}

void HubClient::wait(std::chrono::milliseconds time) {
  constexpr auto kStep = std::chrono::milliseconds(500);
  while (time.count() > 0) {
    beat_();
    std::this_thread::sleep_for(std::min<std::chrono::milliseconds>(time, kStep));
    time -= kStep;
  }
}

void HubClient::pause(int attempt) {
  wait(settings_.first_pause * (1 << std::min(attempt - 1, 4)));
}

void HubClient::wait_for_turn(const HttpReply& reply, int attempt, const std::string& url) {
  const auto asked = to_number<int64_t>(reply.header("Retry-After"));
  const bool too_long = asked && std::chrono::seconds(*asked) > kLongestWait;
  if (attempt < kMostAttempts && !too_long) {
    if (asked && *asked > 0) return wait(std::chrono::seconds(*asked));
    return pause(attempt);
  }
  throw Error(ErrorCode::kIo,
              fmt::format("{} answers {}{}", shown(url), reply.status,
                          too_long ? fmt::format(" and asks to come back in {} s", *asked)
                                   : fmt::format(" after {} attempts", attempt)),
              {.subject = url,
               .hint = reply.status == 429
                           ? "try again later; with a token (HF_TOKEN) the Hub allows more requests"
                           : "try again later; what has arrived is kept"});
}

// Sends the request to `url`, and follows redirects: those away from the Hub only if `follow_away`,
// or if the reply does not say yet what the file is. `url` becomes that of the last request, or
// where the last reply points to.
HttpReply HubClient::ask(const std::string& method, std::string& url,
                         const http::HttpHeaders& headers, std::chrono::milliseconds timeout,
                         bool follow_away, const http::HttpClient::BodySink& sink) {
  Place place = place_of(url, nullptr);
  bool away = !place.server.same_server(endpoint_);
  for (int count = 0; count <= kMostRedirects; ++count) {
    beat_();
    http::HttpRequest request{.method = method, .target = place.target, .headers = headers};
    request.headers.emplace_back("Accept-Encoding", "identity");  // sizes are those of the files
    if (!away && !settings_.token.empty()) {
      request.headers.emplace_back("Authorization", "Bearer " + settings_.token);
    }
    http::HttpOptions options{.timeout = timeout};
    options.proxy = http::proxy_from_environment(place.server);
    HttpReply reply = http::HttpClient(place.server, std::move(options)).send(request, sink);
    const std::string location = reply.header("Location");
    if (!redirects(reply) || location.empty()) {
      url = url_of(place);
      return reply;
    }
    const Place next = place_of(location, &place);
    if (place.server.tls && !next.server.tls) {
      throw Error(ErrorCode::kIo,
                  fmt::format("{} redirects to {}, which is not encrypted", shown(url_of(place)),
                              shown(url_of(next))),
                  {.subject = url, .hint = "check HF_ENDPOINT and the proxy"});
    }
    // Once away, the token is not sent again, even to the Hub: another server chose that URL.
    const bool leaves = !next.server.same_server(endpoint_);
    const bool known = !reply.header("X-Repo-Commit").empty() &&
                       !header_text(reply, {"X-Linked-Etag", "ETag"}).empty();
    if (leaves && !follow_away && known) {
      url = url_of(next);
      return reply;
    }
    away = away || leaves;
    place = next;
  }
  throw Error(ErrorCode::kIo,
              fmt::format("{} redirects more than {} times", shown(url), kMostRedirects),
              {.subject = url, .hint = "check HF_ENDPOINT and the proxy"});
}

void HubClient::refuse(const std::string& file, const HttpReply& reply) const {
  const std::string code = reply.header("X-Error-Code");
  const std::string page = fmt::format("https://huggingface.co/{}", model_.id);
  std::string message, hint;
  if (code == "GatedRepo" || (code.empty() && reply.status == 403)) {
    message = fmt::format("the Hub does not give '{}' to {} ({})", model_.id,
                          settings_.token.empty() ? "users without a token" : "this token's user",
                          reply.status);
    hint = fmt::format("ask for access at {}, then set HF_TOKEN, or run `hf auth login`", page);
  } else if (code == "RevisionNotFound") {
    message =
        fmt::format("the model '{}' has no revision '{}' on the Hub", model_.id, model_.revision);
    hint = fmt::format("choose a branch, a tag or a commit of {}", page);
  } else if (reply.status == 401 || reply.status == 404) {
    message =
        fmt::format("the Hub has no model '{}', or it is private ({})", model_.id, reply.status);
    hint = settings_.token.empty()
               ? "check the name; for a private model set HF_TOKEN, or run `hf auth login`"
               : "check the name, and whether the token in use may read this model";
  } else {
    const std::string said = reply.header("X-Error-Message");
    message = fmt::format("the Hub answers {} to {} of '{}'{}", reply.status, for_message(file),
                          model_.id, said.empty() ? "" : ": " + for_message(said));
    hint = "check HF_ENDPOINT and the proxy";
  }
  throw Error(ErrorCode::kIo, message, {.subject = model_.text(), .hint = hint});
}

HubClient::Answer HubClient::find(const std::string& file, const std::string& revision) {
  std::string url;
  HttpReply reply;
  int unreached = 0;
  for (int attempt = 1;; ++attempt) {
    url = fmt::format("{}/{}/resolve/{}/{}", settings_.endpoint, model_.id,
                      http::url_encoded(revision), http::url_encoded(file, "/"));
    try {
      reply = ask("HEAD", url, {}, settings_.answer_timeout, /*follow_away=*/false, nullptr);
    } catch (const HttpUnreachable& error) {
      if (error.certificate_refused() || ++unreached >= kMostConnections) throw;
      pause(attempt);
      continue;
    }
    if (!is_busy(reply.status)) break;
    wait_for_turn(reply, attempt, url);
  }
  Answer answer{.file = std::nullopt, .commit = reply.header("X-Repo-Commit")};
  if (!answer.commit.empty() && !is_commit(answer.commit)) answer.commit.clear();
  const std::string code = reply.header("X-Error-Code");
  const bool no_entry = code == "EntryNotFound" || (code.empty() && !answer.commit.empty());
  if (reply.status == 404 && no_entry) return answer;
  if (reply.status / 100 != 2 && !redirects(reply)) refuse(file, reply);
  RemoteFile found{.name = file, .commit = answer.commit, .url = url};
  found.etag = plain_etag(header_text(reply, {"X-Linked-Etag", "ETag"}));
  found.size = to_number<uint64_t>(reply.header("X-Linked-Size"));
  if (!found.size && !redirects(reply)) {
    found.size = to_number<uint64_t>(reply.header("Content-Length"));
  }
  if (found.commit.empty() || found.etag.empty()) {
    throw Error(ErrorCode::kIo,
                fmt::format("{} does not say which commit and contents it has (X-Repo-Commit, "
                            "ETag), so it is not a Hugging Face Hub",
                            shown(url)),
                {.subject = url, .hint = "check HF_ENDPOINT and the proxy"});
  }
  answer.file = std::move(found);
  return answer;
}

std::string HubClient::receive(const RemoteFile& file, uint64_t first, const Sink& sink,
                               const std::function<void()>& restart) {
  http::HttpHeaders headers;
  if (first > 0) headers.emplace_back("Range", fmt::format("bytes={}-", first));
  bool begun = false;
  const auto take = [&](const HttpReply& head, std::string_view piece) {
    if (!std::exchange(begun, true) && first > 0) {
      const std::string range = head.header("Content-Range");
      const bool right = head.status == 206 && range.starts_with(fmt::format("bytes {}-", first));
      if (head.status != 206) restart();
      if (head.status == 206 && !right) {
        throw Error(ErrorCode::kIo,
                    fmt::format("{}: asked for the bytes from {} on, the server sends '{}'",
                                shown(file.url), first, for_message(range)),
                    {.subject = file.name, .hint = "check HF_ENDPOINT and the proxy"});
      }
    }
    beat_();
    sink(piece);
  };
  std::string url = file.url;
  try {
    const HttpReply reply =
        ask("GET", url, headers, settings_.download_timeout, /*follow_away=*/true, take);
    if (reply.status / 100 == 2) return "";
    if (reply.status == 416) {  // what is there is not the beginning of this file
      restart();
      return fmt::format("{} answers 416 to the rest of the file", shown(url));
    }
    // A signed URL expires, which a new one, of the next attempt, does not.
    if (is_busy(reply.status) || !place_of(url, nullptr).server.same_server(endpoint_)) {
      const auto asked = to_number<int64_t>(reply.header("Retry-After")).value_or(0);
      if (asked > 0)
        wait(std::min<std::chrono::milliseconds>(std::chrono::seconds(asked), kLongestWait));
      return fmt::format("{} answers {}", shown(url), reply.status);
    }
    refuse(file.name, reply);
  } catch (const HttpUnreachable& error) {
    if (error.certificate_refused()) throw;
    return error.what();
  }
}

}  // namespace coupler::hub
