#include "operation_log.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace coupler::testing_checkpoint {

std::vector<Operation> read_log(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<Operation> operations;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    Operation operation;
    std::string offset;
    std::string result;
    std::string bytes;
    std::getline(fields, operation.name, '\t');
    std::getline(fields, operation.path, '\t');
    std::getline(fields, operation.other, '\t');
    std::getline(fields, offset, '\t');
    std::getline(fields, result, '\t');
    if (!std::getline(fields, bytes)) throw std::runtime_error("not a log of operations: " + line);
    operation.offset = std::stoll(offset);
    operation.result = std::stoll(result);
    operation.data.resize(std::stoull(bytes));
    in.read(operation.data.data(), static_cast<std::streamsize>(operation.data.size()));
    operations.push_back(std::move(operation));
  }
  return operations;
}

long long last_committed(const std::string& reports) {
  const std::string word = "committed ";
  const auto at = reports.rfind(word);
  return at == std::string::npos ? -1 : std::atoll(reports.c_str() + at + word.size());
}

}  // namespace coupler::testing_checkpoint
