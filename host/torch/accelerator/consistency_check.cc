#include "accelerator/consistency_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/flight_recorder.h"
#include "tensors/tensor_ops.h"

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
using Line = std::pair<std::string, std::string>;

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

// The signature: the operation, then a line for each node of the value.
std::vector<Line> describe(const CollectiveSignature& signature) {
  std::vector<Line> lines = {{signature.operation, ""}};
  if (signature.value == nullptr) return lines;
  for (const detail::DescribedNode& node : detail::describe_nodes(*signature.value)) {
    lines.emplace_back(
        node.path,
        node.leaf < 0
            ? node.what
            : form_text(signature.value->leaves[static_cast<size_t>(node.leaf)], signature.same));
  }
  return lines;
}

// Sends the string of rank `from` to all ranks.
std::string broadcast_text(comm::Communicator& comm, std::string text, int from) {
  const auto broadcast = [&](db_dtype dtype, void* data, uint64_t count) {
    db_op op = tensors::host_op(DB_BROADCAST, dtype, data, data, count);
    op.root_or_peer = from;
    comm.run(op);
  };
  uint64_t size = text.size();
  broadcast(DB_U64, &size, 1);
  text.resize(size);
  if (size > 0) broadcast(DB_U8, text.data(), size);
  return text;
}

// Its number in the job, by which users know it.
int job_rank(const comm::Communicator& comm, int rank) {
  return comm.world_ranks()[static_cast<size_t>(rank)];
}

[[noreturn]] void throw_problem(comm::Communicator& comm, const CollectiveSignature& signature,
                                int rank, ErrorCode code) {
  const bool own = signature.problem.has_value();
  const std::string text = broadcast_text(comm, own ? signature.problem->what() : "", rank);
  if (own) throw Error(*signature.problem);
  throw Error(code,
              fmt::format("{}: rank {} cannot take part: {}", signature.operation,
                          job_rank(comm, rank), text),
              {.rank = job_rank(comm, rank), .subject = signature.operation});
}

// " (2 ranks differ from rank 0: 1, 3)"; "" if one does.
std::string all_text(int first, const std::vector<int>& others) {
  if (others.size() == 1) return "";
  return fmt::format(" ({} ranks differ from rank {}: {})", others.size(), first,
                     fmt::join(others, ", "));
}

// others: the ranks that differ from rank 0, in ascending order.
[[noreturn]] void throw_difference(comm::Communicator& comm, const CollectiveSignature& signature,
                                   const std::vector<int>& others) {
  const int rank_0 = job_rank(comm, 0), other = job_rank(comm, others[0]);
  const nlohmann::json own = describe(signature);
  const std::string sent = own.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto first = nlohmann::json::parse(broadcast_text(comm, sent, 0)).get<std::vector<Line>>();
  const auto second =
      nlohmann::json::parse(broadcast_text(comm, sent, others[0])).get<std::vector<Line>>();
  std::vector<int> in_job;
  for (const int rank : others) in_job.push_back(job_rank(comm, rank));
  const std::string also = all_text(rank_0, in_job);
  const std::string& operation = first[0].first;
  if (operation != second[0].first) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("rank {} calls {}, but rank {} calls {}{}", rank_0, operation, other,
                            second[0].first, also),
                {.rank = other,
                 .subject = operation,
                 .hint = "call the same collectives in the same order on every rank"});
  }
  size_t at = 1;
  while (at < std::min(first.size(), second.size()) && first[at] == second[at]) ++at;
  const Line missing = {"", "nothing"};
  const auto& [a_where, a_what] = at < first.size() ? first[at] : missing;
  const auto& [b_where, b_what] = at < second.size() ? second[at] : missing;
  throw Error(
      ErrorCode::kMismatch,
      fmt::format("{}: ranks {} and {} differ: value{} is {} on rank {}, value{} is {} on "
                  "rank {}{}",
                  operation, rank_0, other, a_where, a_what, rank_0, b_where, b_what, other, also),
      {.rank = other,
       .subject = "value" + a_where,
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

Error no_such_rank(const std::string& operation, const comm::Communicator& comm) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("{}: there is no such rank in a world of {}", operation, comm.size()),
          {.subject = operation, .hint = "name a rank from 0 to world - 1"}};
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
  comm.run(tensors::host_op(DB_ALL_GATHER, DB_U64, &mine, all.data(),
                            sizeof(Header) / sizeof(uint64_t)));

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

void require_same(const std::vector<int64_t>& numbers, const std::string& operation,
                  const std::string& does, ErrorCode code, ErrorDetail detail) {
  std::vector<int> others;
  for (size_t rank = 0; rank < numbers.size(); ++rank) {
    if (numbers[rank] != numbers.front()) others.push_back(static_cast<int>(rank));
  }
  if (others.empty()) return;
  detail.rank = others.front();
  throw Error(code,
              fmt::format("{}: rank {} {} than rank 0{}", operation, others.front(), does,
                          all_text(0, others)),
              std::move(detail));
}

}  // namespace coupler
