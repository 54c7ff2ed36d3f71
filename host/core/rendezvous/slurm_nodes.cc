#include "rendezvous/slurm_nodes.h"

namespace coupler {

std::string first_slurm_node(std::string_view list) {
  std::string node;
  bool skipping = false;  // the rest of a bracket, after its first number
  bool inside = false;
  for (const char c : list) {
    if (c == '[') {
      inside = true;
    } else if (c == ']') {
      inside = skipping = false;
    } else if (inside) {
      skipping = skipping || c == ',' || c == '-';
      if (!skipping) node += c;
    } else if (c == ',') {
      break;
    } else {
      node += c;
    }
  }
  return node;
}

}  // namespace coupler
