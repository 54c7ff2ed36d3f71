// OutputRelay: forwards what a rank writes to one of our own descriptors and keeps its last lines.
// Single-threaded; never blocks on the rank.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "cli/process/child_process.h"

namespace coupler::cli {

// The last lines of output that arrives in pieces. A line redrawn by carriage returns (a progress
// bar) counts once, in its last state.
class LineTail {
 public:
  void add(std::string_view text);
  std::deque<std::string> lines() const;  // oldest first, including an unfinished one

 private:
  std::deque<std::string> lines_;
  std::string current_;
  bool redraw_ = false;  // after a carriage return: the next character restarts the line
};

class OutputRelay {
 public:
  // Reads from `from` and writes to `to`: line by line, each with the prefix before it, or at once
  // and unchanged if the prefix is empty. copy, if set, gets all output unchanged.
  OutputRelay(UniqueFd from, int to, std::string prefix, UniqueFd copy = {});

  int fd() const { return from_.get(); }  // to poll; -1 after the end
  void pump();                            // forwards what is available
  void finish();  // after the rank has ended: forwards the rest, with an unfinished last line
  const LineTail& tail() const { return tail_; }

 private:
  void forward(std::string_view text);

  UniqueFd from_;
  int to_;
  UniqueFd copy_;
  std::string prefix_;
  std::string partial_;  // an unfinished line, with a prefix only
  LineTail tail_;
};

// Writes all of it; gives up silently if the reader is gone, as a program in a pipe does.
void write_all(int fd, std::string_view text);

// Opens a file for appending and creates it if missing; empty for "". Throws Error(kIo) naming it.
UniqueFd open_log(const std::string& path);

// The files of --log-dir.
// Creates the folder and its parents, and checks that files can be created in it. Throws Error(kIo)
// naming it.
void make_log_folder(const std::string& folder);

// "FOLDER/rank-3.log"; "" without a folder.
std::string log_path(const std::string& folder, int rank);

// A pipe whose reading end, which is ours, never blocks.
Pipe make_output_pipe();

}  // namespace coupler::cli
