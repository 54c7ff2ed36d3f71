#include "accelerator/consistency_check.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "comm/flight_recorder.h"

namespace coupler {
namespace {

// What is exchanged first; the same size for every operation and value.
struct Header {
  uint64_t low = 0, high = 0;  // the hash
  int64_t number = 0;
  uint64_t problem = 0;  // 0: none; else ErrorCode + 1
};
static_assert(sizeof(Header) == 32);

// One line of a description: a place in the value, and what is there.
struct Line {
  std::string where, what;
};

constexpr int64_t kAnySize = -1;

int64_t shown_size(const at::Tensor& tensor, int64_t dim, SameSizes same) {
  const bool free = same == SameSizes::kNone || (same == SameSizes::kButRows && dim == 0);
  return free ? kAnySize : tensor.size(dim);
}

SignatureHash hash_of(const CollectiveSignature& signature) {
  SignatureHash hash;
  hash.add(signature.operation);
  if (signature.value == nullptr) return hash;
  for (const detail::Node& node : signature.value->nodes) {
    hash.add(static_cast<uint64_t>(node.kind));
    hash.add(node.count);
    hash.add(node.name);
  }
  for (const at::Tensor& leaf : signature.value->leaves) {
    hash.add(
        static_cast<uint64_t>(leaf.defined() ? leaf.scalar_type() : at::ScalarType::Undefined));
    if (!leaf.defined()) continue;
    hash.add(static_cast<uint64_t>(leaf.device().type()));
    hash.add(static_cast<uint64_t>(leaf.dim()));
    for (int64_t d = 0; d < leaf.dim(); ++d) {
      hash.add(static_cast<uint64_t>(shown_size(leaf, d, signature.same)));
    }
  }
  return hash;
}

std::string form_text(const at::Tensor& leaf, SameSizes same) {
  if (!leaf.defined()) return "undefined";
  std::vector<std::string> sizes;
  for (int64_t d = 0; d < leaf.dim(); ++d) {
    const int64_t size = shown_size(leaf, d, same);
    sizes.push_back(size == kAnySize ? "*" : std::to_string(size));
  }
  // Ranks use different devices of one type, so the index is left out.
  const std::string device =
      leaf.is_cpu() ? "" : " on " + c10::DeviceTypeName(leaf.device().type(), /*lower_case=*/true);
  return fmt::format("{} [{}]{}", toString(leaf.scalar_type()), fmt::join(sizes, ", "), device);
}

// The signature as a string: the operation, then a line for each node of the value. A NUL ends each
// part; no part contains one.
std::string describe(const CollectiveSignature& signature) {
  std::string text = signature.operation + '\0' + '\0';
  if (signature.value == nullptr) return text;
  for (const detail::DescribedNode& node : detail::describe_nodes(*signature.value)) {
    text += node.path + '\0';
    text += node.leaf < 0 ? node.what
                          : form_text(signature.value->leaves[static_cast<size_t>(node.leaf)],
                                      signature.same);
    text += '\0';
  }
  return text;
}

std::vector<Line> lines_of(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  std::vector<Line> lines;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) lines.push_back({parts[i], parts[i + 1]});
  return lines;
}

// Sends the string of rank `from` to all ranks.
std::string broadcast_text(comm::Communicator& comm, std::string text, int from) {
  db_op op{};
  op.kind = DB_BROADCAST;
  op.dtype = DB_U64;
  op.root_or_peer = from;
  uint64_t size = text.size();
  op.send = op.recv = &size;
  op.count = 1;
  comm.run(op);
  text.resize(size);
  op.dtype = DB_U8;
  op.send = op.recv = text.data();
  op.count = size;
  if (size > 0) comm.run(op);
  return text;
}

[[noreturn]] void throw_problem(comm::Communicator& comm, const CollectiveSignature& signature,
                                int rank, ErrorCode code) {
  const bool own = signature.problem.has_value();
  const std::string text = broadcast_text(comm, own ? signature.problem->what() : "", rank);
  if (own) throw Error(*signature.problem);
  throw Error(code,
              fmt::format("{}: rank {} cannot take part: {}", signature.operation, rank, text),
              {.rank = rank, .subject = signature.operation, .hint = {}});
}

// others: the ranks that differ from rank 0, in ascending order.
[[noreturn]] void throw_difference(comm::Communicator& comm, const CollectiveSignature& signature,
                                   const std::vector<int>& others) {
  const int other = others[0];
  const std::string own = describe(signature);
  const std::string first_text = broadcast_text(comm, own, 0);
  const std::string other_text = broadcast_text(comm, own, other);
  const std::vector<Line> first = lines_of(first_text), second = lines_of(other_text);
  const std::string also = others.size() == 1 ? ""
                                              : fmt::format(" ({} ranks differ from rank 0: {})",
                                                            others.size(), fmt::join(others, ", "));
  if (first[0].where != second[0].where) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("rank 0 calls {}, but rank {} calls {}{}", first[0].where, other,
                            second[0].where, also),
                {.rank = other,
                 .subject = first[0].where,
                 .hint = "call the same collectives in the same order on every rank"});
  }
  size_t at = 1;
  while (at < std::min(first.size(), second.size()) && first[at].where == second[at].where &&
         first[at].what == second[at].what) {
    ++at;
  }
  const Line missing = {"", "nothing"};
  const Line& a = at < first.size() ? first[at] : missing;
  const Line& b = at < second.size() ? second[at] : missing;
  throw Error(ErrorCode::kMismatch,
              fmt::format("{}: ranks 0 and {} differ: value{} is {} on rank 0, value{} is {} on "
                          "rank {}{}",
                          first[0].where, other, a.where, a.what, b.where, b.what, other, also),
              {.rank = other,
               .subject = "value" + a.where,
               .hint = "give values of the same structure, dtypes and shapes on every rank; "
                       "pad_across_processes makes sizes equal"});
}

}  // namespace

void SignatureHash::add(uint64_t word) {
  comm::Fingerprint next;
  next.what = word;
  low_ = comm::chain_hash(low_, next);
  high_ = comm::chain_hash(high_, next);
}

void SignatureHash::add(std::string_view text) {
  add(text.size());
  for (size_t at = 0; at < text.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    text.copy(reinterpret_cast<char*>(&word), sizeof(word), at);
    add(word);
  }
}

std::vector<int64_t> check_consistency(comm::Communicator& comm,
                                       const CollectiveSignature& signature) {
  if (comm.size() == 1) {
    if (signature.problem) throw Error(*signature.problem);
    return {signature.number};
  }
  const SignatureHash hash = hash_of(signature);
  const Header mine = {
      hash.low(), hash.high(), signature.number,
      signature.problem ? static_cast<uint64_t>(signature.problem->code()) + 1 : 0};
  std::vector<Header> all(static_cast<size_t>(comm.size()));
  db_op op{};
  op.kind = DB_ALL_GATHER;
  op.dtype = DB_U64;
  op.send = &mine;
  op.recv = all.data();
  op.count = sizeof(Header) / sizeof(uint64_t);
  comm.run(op);

  std::vector<int> others;
  std::vector<int64_t> numbers;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const Header& header = all[static_cast<size_t>(rank)];
    if (header.problem != 0) {
      throw_problem(comm, signature, rank, static_cast<ErrorCode>(header.problem - 1));
    }
    if (header.low != all[0].low || header.high != all[0].high) others.push_back(rank);
    numbers.push_back(header.number);
  }
  if (!others.empty()) throw_difference(comm, signature, others);
  return numbers;
}

}  // namespace coupler
