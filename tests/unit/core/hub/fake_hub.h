// FakeHub: a Hugging Face Hub with one model, whose answers a test can spoil. Large files are on a
// second server, as on the real Hub. Any thread may change it between requests.
#pragma once

#include <fmt/format.h>
#include <openssl/sha.h>

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "core/http/test_server.h"

namespace coupler::hub {

inline std::string sha256_of(const std::string& text) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

// As `git hash-object` computes it.
inline std::string git_hash_of(const std::string& text) {
  const std::string whole = fmt::format("blob {}", text.size()) + std::string(1, '\0') + text;
  std::array<unsigned char, SHA_DIGEST_LENGTH> digest{};
  ::SHA1(reinterpret_cast<const unsigned char*>(whole.data()), whole.size(), digest.data());
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

class FakeHub {
 public:
  using Request = http::TestServer::Request;
  using Reply = http::TestServer::Reply;
  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

  explicit FakeHub(std::string id, std::optional<http::TestCertificate> certificate = {})
      : id_(std::move(id)),
        away_([this](const Request& request) { return serve_large(request); }, certificate),
        hub_([this](const Request& request) { return serve(request); }, certificate) {}

  std::string url() const { return hub_.url(); }
  std::string away_url() const { return away_.url(); }

  std::map<std::string, std::string> files;  // small ones
  std::map<std::string, std::string> large;  // in LFS: elsewhere, and hashed with SHA-256
  std::string token;                         // required, unless empty
  // Changes the reply to a request of a file ("" for another path); of the Hub itself, and of the
  // second server.
  std::function<void(const std::string&file, const Request&, Reply&)> spoil, spoil_away;

  std::vector<std::string> asked() {  // "HEAD config.json", "GET away model.safetensors"
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  std::vector<Request> away_requests() {
    const std::lock_guard lock(mutex_);
    return away_requests_;
  }

 private:
  static void range(const Request& request, Reply& reply) {
    const auto asked = request.headers.find("range");
    if (asked == request.headers.end()) return;
    const size_t first = std::stoull(asked->second.substr(6));
    if (first >= reply.body.size()) {
      reply = {.status = 416};
      return;
    }
    reply.status = 206;
    reply.headers["Content-Range"] =
        fmt::format("bytes {}-{}/{}", first, reply.body.size() - 1, reply.body.size());
    reply.body.erase(0, first);
  }

  void note(const std::string& what) {
    const std::lock_guard lock(mutex_);
    asked_.push_back(what);
  }

  Reply serve(const Request& request) {
    Reply reply;
    const std::string start = "/" + id_ + "/resolve/";
    std::string file;
    if (request.target.starts_with(start)) {
      const std::string rest = request.target.substr(start.size());
      const size_t slash = rest.find('/');
      const std::string revision = rest.substr(0, slash);
      file = rest.substr(slash + 1);
      note(request.method + " " + file);
      const auto authorization = request.headers.find("authorization");
      if (!token.empty() &&
          (authorization == request.headers.end() || authorization->second != "Bearer " + token)) {
        reply = {.status = 401, .headers = {{"X-Error-Code", "GatedRepo"}}};
      } else if (revision != "main" && revision != kCommit) {
        reply = {.status = 404, .headers = {{"X-Error-Code", "RevisionNotFound"}}};
      } else if (const auto small = files.find(file); small != files.end()) {
        reply.body = small->second;
        reply.headers = {{"ETag", "\"" + git_hash_of(reply.body) + "\""}};
        range(request, reply);
      } else if (const auto lfs = large.find(file); lfs != large.end()) {
        reply.status = 302;
        reply.headers = {{"X-Linked-Etag", "\"" + sha256_of(lfs->second) + "\""},
                         {"X-Linked-Size", std::to_string(lfs->second.size())},
                         {"Location", away_.url() + "/" + file + "?signature=secret"}};
      } else {
        reply = {.status = 404, .headers = {{"X-Error-Code", "EntryNotFound"}}};
      }
      if (reply.status != 401) reply.headers["X-Repo-Commit"] = kCommit;
    } else {
      note(request.method + " " + request.target);
      reply = {.status = 401, .headers = {{"X-Error-Code", "RepoNotFound"}}};
    }
    if (spoil) spoil(file, request, reply);
    return reply;
  }

  Reply serve_large(const Request& request) {
    const std::string file = request.target.substr(1, request.target.find('?') - 1);
    note(request.method + " away " + file);
    {
      const std::lock_guard lock(mutex_);
      away_requests_.push_back(request);
    }
    Reply reply{.body = large.at(file)};
    range(request, reply);
    if (spoil_away) spoil_away(file, request, reply);
    return reply;
  }

  std::string id_;
  std::mutex mutex_;
  std::vector<std::string> asked_;
  std::vector<Request> away_requests_;
  http::TestServer away_;
  http::TestServer hub_;
};

}  // namespace coupler::hub
